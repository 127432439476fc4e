"""The laws that every task keeps: items in a fixed order, prompts, and scores that can be computed of any answers."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from airvlm.tasks import Item, Scores, Task, load_task
from airvlm.testing.laws import Law, check_laws

__all__ = ["TASK_LAWS", "TaskWithItems", "check_task"]

LIMIT = 12  # items that are looked at
ANSWERS = ("", "yes", "No, there is not.", "A dog sits on a red chair.", "\u200b \n")


def check_task(task: Task | type[Task] | str, *, limit: int = LIMIT, verbose: bool = False) -> list[str]:
    """Check every law of a task. No model is needed.

    Args:
        task: an object, a class (with its default options) or a name, "package.module:Class" included.
        limit: items that are looked at.
        verbose: print a line per law.

    Returns:
        The names of the laws that hold.

    Raises:
        AssertionError: naming the task and the first law that does not hold.
    """
    chosen: Task = task() if isinstance(task, type) else load_task(task) if isinstance(task, str) else task
    return check_laws(chosen.name, TASK_LAWS, TaskWithItems(chosen, chosen.items(limit=limit), limit), verbose=verbose)


@dataclass
class TaskWithItems:
    """A task and its first items."""

    task: Task
    items: list[Item]
    limit: int

    def score(self, answers: list[str | None]) -> Scores:
        """The scores of answers to the items."""
        return self.task.score(self.items, answers)

    def mixed_answers(self) -> list[str | None]:
        """Answers of all kinds, and some that are missing."""
        kinds: tuple[str | None, ...] = (*ANSWERS, None)
        return [kinds[i % len(kinds)] for i in range(len(self.items))]


def check_items(subject: TaskWithItems) -> None:
    """There are items, each has an id of its own, and they come in the same order again."""
    items = subject.items
    assert 0 < len(items) <= subject.limit, f"items(limit={subject.limit}) gives {len(items)}"
    ids = [item.id for item in items]
    assert all(isinstance(one, str) and one for one in ids), "an item's id must be a string"
    assert len(set(ids)) == len(ids), f"ids repeat: {sorted(one for one in set(ids) if ids.count(one) > 1)[:3]}"
    again = [item.id for item in subject.task.items(limit=subject.limit)]
    assert again == ids, "the items come in another order the second time"
    fewer = [item.id for item in subject.task.items(limit=1)]
    assert fewer == ids[:1], f"items(limit=1) gives {fewer}"


def check_prompts(subject: TaskWithItems) -> None:
    """Every item has a prompt, the same each time."""
    for item in subject.items:
        prompt = subject.task.prompt(item)
        assert isinstance(prompt, str) and prompt.strip(), f"the prompt of {item.id} is empty"
        assert subject.task.prompt(item) == prompt, f"the prompt of {item.id} differs the second time"


def check_description(subject: TaskWithItems) -> None:
    """The task has a name, and is a frozen dataclass."""
    kind: Any = type(subject.task)
    assert subject.task.name, f"{kind.__name__} has no name"
    assert vars(kind)["__dataclass_params__"].frozen, "a task is a frozen dataclass"


def check_settings(subject: TaskWithItems) -> None:
    """Settings are JSON, and hold every option."""
    settings = subject.task.settings()
    assert json.loads(json.dumps(settings)), "settings are empty"
    # a judge is not an option, and tasks are compared without it
    options = {f.name for f in dataclasses.fields(subject.task) if f.compare} - {"data"}
    assert options <= set(settings), f"settings leave out {sorted(options - set(settings))}"


def check_missing(subject: TaskWithItems) -> None:
    """Missing answers count in no metric, empty ones are scored."""
    nothing = subject.score([None] * len(subject.items))
    assert nothing.missing == len(subject.items), f"{nothing.missing} of {len(subject.items)} are counted as missing"
    empty = subject.score([""] * len(subject.items))
    assert empty.missing == 0, "empty answers are counted as missing"


def check_scores(subject: TaskWithItems) -> None:
    """Scores are numbers, of as many items as there are, and the same each time."""
    answers = subject.mixed_answers()
    scores, again = subject.score(answers), subject.score(answers)
    assert len(scores.per_item) == len(scores.groups) == len(subject.items), "there is not one entry per item"
    assert scores.metrics, "there is no metric"
    assert all(isinstance(value, float) for value in scores.metrics.values()), f"metrics: {scores.metrics}"
    for name, value in scores.metrics.items():
        other = again.metrics[name]
        assert value == other or (math.isnan(value) and math.isnan(other)), f"{name}: {value}, then {other}"


def check_resampling(subject: TaskWithItems) -> None:
    """Drawing each item once gives each metric itself, so that intervals can be computed."""
    scores = subject.score(subject.mixed_answers())
    for name, value in scores.metrics.items():
        (drawn,) = scores.resample(name, np.ones((1, len(subject.items))))
        np.testing.assert_allclose(drawn, value, err_msg=name)


def _is_scored_alone(subject: TaskWithItems) -> bool:
    """Whether answers can be scored without a judge."""
    return subject.task.kind != "judged"


def _scores_text(subject: TaskWithItems) -> bool:
    return _is_scored_alone(subject) and subject.task.protocol == "text"


TASK_LAWS: list[Law[TaskWithItems]] = [
    Law("it is a frozen dataclass with a name", check_description),
    Law("items have ids of their own and a fixed order", check_items),
    Law("every item has a prompt", check_prompts),
    Law("settings are JSON and hold every option", check_settings),
    Law("missing answers count in no metric, empty ones are scored", check_missing, _scores_text),
    Law("scores are numbers, the same each time", check_scores, _scores_text),
    Law("a resample of each item once gives each metric", check_resampling, _scores_text),
]
