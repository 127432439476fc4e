"""Accuracy and detailedness of two methods' descriptions, by a judge that sees the image (VCD's way).

A judge's scale drifts, so only the difference between two answers in one verdict means anything: each pair
is judged in both orders and averaged. Knows nothing of what the two methods are: the other one's answers
come from a file.
"""

from __future__ import annotations

import base64
import io
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from airvlm.inputs.images import load_image
from airvlm.tasks.base import DESCRIBE, Counts, Item, Metric, Ratio, Scores, TaskDataMissing
from airvlm.tasks.files.answers import given_answers, in_order_of
from airvlm.tasks.files.reading import read_records
from airvlm.tasks.judges.judge import JudgeQuestion, pairwise, say
from airvlm.tasks.judges.judged import JudgedTask, fill, missing, unjudged

__all__ = ["GPT4V", "read_aspects"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
LONGEST_SIDE = 1024  # pixels sent to the judge
ASPECTS = ("accuracy", "detailedness")


@dataclass(frozen=True)
class GPT4V(JudgedTask):
    """Descriptions of a folder's images, or answers to its questions.jsonl, beside another method's."""

    against: Path | None = None  # the other method's answers: ids and texts, e.g. vanilla's store
    method: str = ""  # of a run's answers: the method to compare with plain decoding, if it has several
    images: int = 50  # drawn from a folder without questions
    seed: int = 0

    name: ClassVar[str] = "gpt4v"
    max_new_tokens: ClassVar[int] = 512
    renamed: ClassVar[Mapping[str, str]] = {"pictures": "images"}
    source: ClassVar[str] = "VCD (Leng et al.), prompt as in OPERA; any folder of images, VCD: LLaVA-Bench in the wild"
    judge_prompt: ClassVar[str] = (
        "You see a picture, and what two AI assistants answered when they were asked:\n{question}\n\n"
        "[Assistant 1]\n{first}\n[End of Assistant 1]\n\n[Assistant 2]\n{second}\n[End of Assistant 2]\n\n"
        "Score each answer from 1 to 10, higher being better, in two respects. Pay attention above "
        "all to hallucination: "
        "anything an answer says of the picture that is not so, such as things that are not there, "
        "or wrong numbers, places or "
        "colours.\nAccuracy: does the answer agree with the picture? Hallucination lowers this score.\n"
        "Detailedness: is the answer rich in details that matter? What is hallucinated is not a detail.\n"
        "The order of the assistants must not influence you. Write exactly:\n"
        "Accuracy: <score of Assistant 1> <score of Assistant 2>\nReason:\n"
        "Detailedness: <score of Assistant 1> <score of Assistant 2>\nReason:"
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.folder("images to describe, or questions.jsonl (question_id, image, text) with images/")
        questions = folder / "questions.jsonl"
        if questions.is_file():
            return [
                Item(
                    str(r["question_id"]),
                    folder / "images" / r["image"],
                    r["text"],
                    None,
                    {"group": str(r["image"])},
                )
                for r in read_records(questions)[:limit]
            ]
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        if not paths:
            raise TaskDataMissing(f"gpt4v: no images ({', '.join(SUFFIXES)}) and no questions.jsonl in {folder}")
        drawn = sorted(random.Random(self.seed).sample(paths, min(self.images, len(paths))))
        return [Item(path.stem, path, DESCRIBE) for path in drawn[:limit]]

    def parse(self, item: Item, text: str) -> str | None:
        return text.strip() or None

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        if self.against is None:
            how = "this benchmark compares two methods: airvlm score gpt4v RUN --data IMAGES --set method=NAME"
            return unjudged({item.id: text for item, text in zip(items, answers, strict=True)}, how)
        return self.compare(items, answers, _plain_answers(items, self.against))

    def compare(self, items: Sequence[Item], answers: Sequence[str | None], others: Sequence[str | None]) -> Scores:
        """Scores of `answers` beside `others`; an item that lacks either, or a verdict, is missing."""
        asked = [i for i in range(len(items)) if answers[i] is not None and others[i] is not None]
        shown = {i: _data_url(items[i].image) for i in asked}
        pairs = [(str(answers[i]), str(others[i])) for i in asked]

        def ask(n: int, first: str, second: str) -> JudgeQuestion[tuple[float, ...]]:
            item = items[asked[n]]
            text = fill(self.template(), question=self.prompt(item), first=first, second=second)
            return JudgeQuestion(say(text, image=shown[asked[n]]), read_aspects, max_tokens=512)

        verdicts = dict(zip(asked, pairwise(self.the_judge(), pairs, ask)))
        per_item = []
        for i in range(len(items)):
            verdict = verdicts.get(i)
            if verdict is None:
                per_item.append(missing())
                continue
            ours, theirs = verdict
            counts = {"n": 1.0} | dict(zip(ASPECTS, ours)) | {f"{a}_other": v for a, v in zip(ASPECTS, theirs)}
            per_item.append(counts)
        details = [{**counts} for counts in per_item]
        return Scores(per_item, _METRICS, [item.group for item in items], details)

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """Answers by id, compared with those in truth; or a run's folder: its method against plain decoding."""
        path = answers / "answers.jsonl" if answers.is_dir() else answers
        stored = any("fingerprint" in record for record in read_records(path)[:1])
        items, against = self.items(), truth or self.against or (path if stored else None)
        if against is None:
            raise TaskDataMissing("gpt4v compares two files of answers: give the other one as --truth")
        mine, coverage = in_order_of(items, given_answers(path, self._is_ours), path, lenient=lenient)
        return replace(self.compare(items, mine, _plain_answers(items, against)), coverage=coverage)

    def _is_ours(self, record: Mapping[str, Any]) -> bool:
        """Of a run's store, the answers of the method that is compared; of any other file, all."""
        if "fingerprint" not in record:
            return True
        method = record.get("method")
        return method is not None and self.method in ("", method.get("name"))


def _plain_answers(items: Sequence[Item], path: Path) -> list[str | None]:
    """The other method's answers; of a store of ours, those of plain decoding."""
    given = given_answers(path, keep=lambda record: record.get("method") is None)
    return in_order_of(items, given, path)[0]


def read_aspects(verdict: str) -> tuple[float, ...] | None:
    """(accuracy 1, accuracy 2, detailedness 1, detailedness 2) of a verdict, if it names all four within 1 to 10."""
    scores: list[float] = []
    for aspect in ASPECTS:
        named = re.search(rf"{aspect}\W*?:?\s*\**\s*(\d+(?:\.\d+)?)[\s,/]+(\d+(?:\.\d+)?)", verdict, re.IGNORECASE)
        if named is None:
            return None
        scores += [float(named[1]), float(named[2])]
    return tuple(scores) if all(1 <= score <= 10 for score in scores) else None


def _data_url(image: Any) -> str:
    shown: Image.Image = load_image(image)
    shown.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    data = io.BytesIO()
    shown.save(data, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()


@dataclass(frozen=True)
class Gain:
    """How much more the answers score than the others, in points of ten."""

    aspect: str

    def __call__(self, counts: Counts) -> Any:
        ours = Ratio(self.aspect, "n", scale=1.0)(counts)
        return ours - Ratio(f"{self.aspect}_other", "n", scale=1.0)(counts)


_METRICS: Mapping[str, Metric] = {
    **{f"{aspect}_10": Metric(Ratio(aspect, "n", scale=1.0)) for aspect in ASPECTS},
    **{f"{aspect}_10_other": Metric(Ratio(f"{aspect}_other", "n", scale=1.0), "neither") for aspect in ASPECTS},
    **{f"{aspect}_gain": Metric(Gain(aspect)) for aspect in ASPECTS},
}
