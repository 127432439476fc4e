"""What a calibration may cost and has cost, in answers or in seconds.

Every answer that a calibration uses counts, whether it was given now or long ago: so the same budget always takes the
same decisions, in a run that was stopped, in a second one, and in processes that help each other. Knows nothing of
methods or of what the answers say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from airvlm.evaluation.task_results import TaskResults

__all__ = ["Budget", "Price", "Spending", "parse_budget"]

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
ANSWERING = 0.8  # share of a time that goes into answers: the rest loads the model, reads images and scores


@dataclass(frozen=True)
class Budget:
    """How much a calibration may cost: answers, or seconds."""

    answers: int | None = None
    seconds: float | None = None


def parse_budget(text: str) -> Budget:
    """`20000` answers, or a time: `90s`, `20m`, `2h`."""
    for unit in sorted(UNITS, key=len, reverse=True):
        if text.endswith(unit):
            try:
                seconds = float(text.removesuffix(unit)) * UNITS[unit]
            except ValueError:
                break
            if math.isfinite(seconds) and seconds > 0:
                return Budget(seconds=seconds)
            break
    else:
        if text.isdigit() and int(text) > 0:
            return Budget(answers=int(text))
    raise ValueError(f"--budget {text}: give a number of answers (20000) or a time (90s, 20m, 2h)")


@dataclass(frozen=True)
class Price:
    """What the items of a stage cost, each under all of its methods."""

    item: float
    cheapest: float  # of the settings: what one more or less changes at least
    settings: int

    @property
    def shared(self) -> float:
        """What an item costs beyond its answers: crops that the first setting encodes and all others use."""
        return max(0.0, self.item - self.settings * self.cheapest)

    def among(self, settings: int) -> Price:
        """The price with another number of settings."""
        return replace(self, item=self.item + (settings - self.settings) * self.cheapest, settings=settings)

    def of_new(self, settings: int) -> float:
        """What these settings cost on an item that was answered without them."""
        return self.shared + settings * self.cheapest if settings else 0.0

    def items(self, left: float, *, most: int) -> int:
        """Items that what is left buys."""
        return most if left >= most * self.item else max(0, int(left / self.item))


class Spending:
    """A budget, and what of it is spent."""

    def __init__(self, budget: Budget, processes: int) -> None:
        self._timed = budget.answers is None and budget.seconds is not None
        self.budget = math.inf if budget.answers is None else float(budget.answers)
        if self._timed and budget.seconds is not None:
            self.budget = ANSWERING * budget.seconds * processes
        self._spent: dict[str, float] = {}  # an answer's key -> what it cost

    @property
    def spent(self) -> float:
        return sum(self._spent.values())

    def take(self, tasks: Mapping[str, TaskResults]) -> Price:
        """Count these answers, and say what an item costs; with several tasks, one item of each."""
        item, means = 0.0, dict[str, float]()
        for task in tasks.values():
            for label in (*task.methods, *task.curve):
                records = [record for record in task.records(label) if record is not None]
                costs = {record.key: record.seconds if self._timed else 1.0 for record in records}
                mean = sum(costs.values()) / max(1, len(costs))
                self._spent |= costs
                item += mean
                if label in task.methods and task.methods[label] is not None:
                    means[label] = means.get(label, 0.0) + mean
        return Price(item, min(means.values(), default=0.0), len(means))
