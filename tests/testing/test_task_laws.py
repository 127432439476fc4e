"""check_task: what is right passes, and what is wrong is told by the law it breaks."""

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from airvlm.tasks import Item, Metric, Ratio, Scores, Task
from airvlm.testing import check_task
from airvlm.testing.task_laws import TASK_LAWS

COUNTER = itertools.count()


@dataclass(frozen=True)
class Cups(Task):
    """Is there a cup?"""

    name: ClassVar[str] = "test-cups"
    polite: bool = False

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        return [Item(str(i), None, "Is there a cup?", truth="yes") for i in range(20)][:limit]

    def prompt(self, item: Item) -> str:
        return f"{item.question} Please." if self.polite else item.question

    def score(self, items: Any, answers: Any) -> Scores:
        def count(item: Item, answer: str) -> tuple[dict[str, float], dict[str, Any]]:
            return {"right": float(answer == item.truth), "asked": 1.0}, {}

        return Scores.of(items, answers, count, {"accuracy": Metric(Ratio("right", "asked"))})


@dataclass(frozen=True)
class SameIds(Cups):
    name: ClassVar[str] = "test-same-ids"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        return [Item("0", None, "Is there a cup?") for _ in range(20)][:limit]


@dataclass(frozen=True)
class OtherOrder(Cups):
    name: ClassVar[str] = "test-other-order"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        return super().items(limit, split)[:: 1 if next(COUNTER) % 2 else -1]


@dataclass(frozen=True)
class EmptyPrompt(Cups):
    name: ClassVar[str] = "test-empty-prompt"

    def prompt(self, item: Item) -> str:
        return " "


@dataclass(frozen=True)
class NotJson(Cups):
    name: ClassVar[str] = "test-not-json"

    def settings(self) -> dict[str, Any]:
        return {"task": self.name, "polite": {1, 2}}


@dataclass(frozen=True)
class Forgetful(Cups):
    name: ClassVar[str] = "test-forgetful"

    def settings(self) -> dict[str, Any]:
        return {"task": self.name}


@dataclass(frozen=True)
class CrashesOnNone(Cups):
    name: ClassVar[str] = "test-crashes-on-none"

    def score(self, items: Any, answers: Any) -> Scores:
        return super().score(items, [answer.lower() for answer in answers])


@dataclass(frozen=True)
class Undecided(Cups):
    name: ClassVar[str] = "test-undecided"

    def score(self, items: Any, answers: Any) -> Scores:
        changed = [None if answer is None else ("yes" if next(COUNTER) % 7 else "no") for answer in answers]
        return super().score(items, changed)


@dataclass(frozen=True)
class NotASum(Cups):
    name: ClassVar[str] = "test-not-a-sum"

    def score(self, items: Any, answers: Any) -> Scores:
        scores = super().score(items, answers)
        metric = Metric(lambda counts: 0 * counts["asked"] + np.ndim(counts["asked"]))
        return Scores(scores.per_item, {"odd": metric}, scores.groups)


def test_a_right_task_passes_every_law(capsys: pytest.CaptureFixture[str]) -> None:
    names = [law.name for law in TASK_LAWS]
    assert check_task(Cups, verbose=True) == check_task(Cups(polite=True)) == names
    assert capsys.readouterr().out.splitlines() == [f"test-cups: {name}" for name in names]
    assert check_task("tiny-pope", limit=5) == check_task(f"{__name__}:Cups") == names


@pytest.mark.parametrize(
    ("task", "law", "told"),
    [
        (SameIds, "items have ids of their own and a fixed order", "ids repeat"),
        (OtherOrder, "items have ids of their own and a fixed order", "another order"),
        (EmptyPrompt, "every item has a prompt", "the prompt of 0 is empty"),
        (NotJson, "settings are JSON and hold every option", "TypeError"),
        (Forgetful, "settings are JSON and hold every option", r"settings leave out \['polite'\]"),
        (CrashesOnNone, "missing answers count in no metric, empty ones are scored", "AttributeError"),
        (Undecided, "scores are numbers, the same each time", "accuracy: "),
        (NotASum, "a resample of each item once gives each metric", "odd"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_wrong_task_is_told_by_the_law(task: Any, law: str, told: str) -> None:
    with pytest.raises(AssertionError, match=told) as caught:
        check_task(task)
    assert str(caught.value).startswith(f"{task.name} breaks the law {law!r}: ")
