"""A model, a method and tasks that answer at once and by rule, without torch: workers of a cluster import this file."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from airvlm.report import Report
from airvlm.tasks.base import MISSING, UNPARSED, Item, Metric, Ratio, Scores, Task


@dataclass(frozen=True)
class PlainMethod:
    """Has what the evaluation needs of a method, and is none."""

    bias: float = 0.0
    fires: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"name": "plain", "bias": self.bias, "fires": self.fires}


@dataclass(frozen=True)
class FakeAnswer:
    text: str
    report: Report | None
    prompt: str
    tokens: int
    finished: bool
    seconds: float


class FakeVLM:
    """Answers by a hash of the image and the method's bias; raises on images named in `fails`."""

    name = "fake"
    fingerprint = "fake-1"
    parts: Any = SimpleNamespace(layers=range(6))

    def __init__(self, fails: Sequence[str] = (), seconds: float = 0.0) -> None:
        self.fails = set(fails)
        self.seconds = seconds
        self.sizes: list[int] = []  # of the batches seen

    def batch(
        self,
        requests: Iterable[tuple[Any, str]],
        *,
        method: Any,
        batch_size: int,
        progress: bool,
        **generation: Any,
    ) -> Iterator[FakeAnswer]:
        rows = list(requests)
        self.sizes.append(len(rows))
        for image, _ in rows:
            if str(image) in self.fails:
                raise ValueError(f"cannot see {image}")
        for image, question in rows:
            time.sleep(self.seconds)
            text = self.speak(str(image), question, 0.0 if method is None else method.bias)
            report = None
            if method is not None:
                fires = getattr(method, "fires", True)
                report = Report(method.to_json(), fires, None if fires else "too far")
            yield FakeAnswer(text, report, question, len(text), True, self.seconds)

    def speak(self, image: str, question: str, bias: float) -> str:
        if question.startswith("Is"):
            return "Yes." if _unit(image, question) + 0.1 * bias > 0.5 else "No."
        seen = [i for i in range(8) if _unit(image, i) < 0.8 - 0.05 * bias]
        return " ".join(f"thing{i}" for i in seen)


class MortalVLM(FakeVLM):
    """Kills its process on one image, `lives` times over all workers; the folder remembers."""

    def __init__(self, folder: Path, lives: int) -> None:
        super().__init__()
        self.folder, self.lives = folder, lives

    def batch(self, requests: Iterable[tuple[Any, str]], **options: Any) -> Iterator[FakeAnswer]:
        requests = list(requests)
        dead = len(list(self.folder.iterdir()))
        if any(str(image) == "test/11.png" for image, _ in requests) and dead < self.lives:
            (self.folder / f"death-{dead}").touch()
            os._exit(1)
        return super().batch(requests, **options)


def first_come(folder: Path) -> FakeVLM:
    """A model for the first worker; the others find no room for theirs."""
    (folder / "taken").touch(exist_ok=False)
    return FakeVLM()


def _unit(*parts: Any) -> float:
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 2**32


@dataclass(frozen=True)
class FakeCaptions(Task):
    """Eight things per image; the last two are never there."""

    n: int = 40
    name: ClassVar[str] = "fake-captions"
    kind: ClassVar[Any] = "caption"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        return [Item(f"{split}-{i}", f"{split}/{i}.png", "Describe.") for i in range(self.n)][:limit]

    def parse(self, item: Item, text: str) -> list[str] | None:
        return text.split() or None

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        return Scores(
            [self._counts(item, text) for item, text in zip(items, answers)],
            CHAIR,
            [i.image for i in items],
        )

    def _counts(self, item: Item, text: str | None) -> dict[str, float]:
        if text is None:
            return {MISSING: 1.0}
        things = self.parse(item, text) or []
        wrong = sum(thing in ("thing6", "thing7") for thing in things)
        return {
            "captions": 1.0, "bad": float(wrong > 0), "wrong": float(wrong), "mentions": float(len(things)),
            "found": float(len(things) - wrong), "objects": 6.0, UNPARSED: float(not things),
        }  # fmt: skip


CHAIR = {
    "CHAIR_S": Metric(Ratio("bad", "captions"), "lower"),
    "CHAIR_I": Metric(Ratio("wrong", "mentions"), "lower"),
    "recall": Metric(Ratio("found", "objects")),
}


@dataclass(frozen=True)
class FakeQuestions(Task):
    """Two questions per image, one of them to be answered with yes."""

    n: int = 60
    name: ClassVar[str] = "fake-questions"
    kind: ClassVar[Any] = "yesno"
    max_new_tokens: ClassVar[int] = 8

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        return [
            Item(f"{split}-{i}", f"{split}/{i // 2}.png", f"Is it {i}?", i % 2 == 0, {"group": str(i // 2)})
            for i in range(self.n)
        ][:limit]

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        counts = []
        for item, text in zip(items, answers):
            said = None if text is None else {"Yes.": True, "No.": False}.get(text)
            counted = {"n": 1.0, "right": float(said == item.truth), "yes": float(said is True)}
            counts.append({MISSING: 1.0} if text is None else counted | ({UNPARSED: 1.0} if said is None else {}))
        metrics = {"accuracy": Metric(Ratio("right", "n")), "yes_ratio": Metric(Ratio("yes", "n"), "neither")}
        return Scores(counts, metrics, [item.group for item in items])


TASKS = {"fake-captions": FakeCaptions, "fake-questions": FakeQuestions}
