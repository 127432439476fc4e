"""Calibration: which method at which setting helps this model, found on one split and measured once on another.

Successive halving: many settings on few items, then the better half on twice as many. What a setting is worth is its
distance from the curve that a trivial control draws, at equal recall or yes-ratio, so that saying less wins nothing.
The best on the calibration split is measured once on the validation split; that figure is the result, and stands beside
what the calibration had promised (calibrated.py). Knows nothing of files beyond the store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from airvlm.evaluation.calibrated import Calibration, Found, Stage
from airvlm.evaluation.candidates import Candidate
from airvlm.evaluation.evaluate import Worker, answer_all, first_curve
from airvlm.evaluation.plan import Asked, ModelFacts
from airvlm.evaluation.shards import Shard
from airvlm.evaluation.statistics import Estimate
from airvlm.evaluation.store import Json, Store
from airvlm.evaluation.task_results import VANILLA, TaskResults

__all__ = ["Budget", "calibrate", "parse_budget"]

SMALLEST = 32  # items of a task in the first stage: fewer tell nothing
SURVIVORS = 3  # settings that are measured on the validation split
TRIAL = 8  # items of a task whose answers tell how many a budget of time buys
SEARCH = 0.6  # share of a budget for the calibration split
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


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


def calibrate(
    ask: Callable[[str, int | None], Sequence[Asked]],  # split and most items -> the tasks, as they are asked
    settings: Sequence[Candidate],
    model: ModelFacts,
    store: Store,
    worker: Worker,
    *,
    budget: Budget,
    max_recall_loss: float = 1.0,
    shard: Shard = Shard(),  # processes that help each other all decide the same, from the same store
    batch_size: int = 16,
    progress: bool = True,
) -> Calibration:
    """Find the best of the settings on the calibration split, and measure it on the validation split."""
    if not settings:
        raise ValueError("no setting to search")
    known = len(store)
    answering = _Answering(model, store, worker, shard, batch_size, progress)
    began = time.monotonic()
    if budget.seconds is not None:  # what the time buys is measured, on the first items of the first stage
        trial = ask("calibration", TRIAL)
        answering.answer(trial, settings)
        budget = replace(budget, answers=_bought(budget.seconds, trial, store, shard))
    meter = _Meter(store, known, budget)
    final = ask("validation", None)
    rounds = _sizes(ask("calibration", None), len(settings), budget)
    running, stages = list(settings), list[Stage]()
    for size in rounds:
        asked = ask("calibration", size)
        # the items of the stage before are answered already, and the validation must be affordable afterwards
        new = _cost(asked, len(running)) - _cost(ask("calibration", _before(size, rounds)), len(running))
        if stages and not meter.affords(new, _cost(final, SURVIVORS)):
            break
        stages.append(answering.stage("calibration", asked, running))
        running = _survivors(stages[-1], max_recall_loss, last=size == rounds[-1])
        if not running:
            break
    kept = [f.candidate for f in stages[-1].found if f.candidate in running][:SURVIVORS]
    kept = [c for c in kept if not _of(stages[-1], c).loses_recall(max_recall_loss)]
    # the first of the last stage is what is promised: those that lose recall must not stand before it
    stages[-1] = replace(
        stages[-1], found=tuple(sorted(stages[-1].found, key=lambda f: f.candidate not in kept))
    )
    validation = None
    if kept:
        asked = ask("validation", meter.most(final, len(kept)))
        validation = answering.stage("validation", asked, kept)
    return Calibration(
        model, tuple(stages), validation, max_recall_loss, meter.answers, time.monotonic() - began
    )


def _of(stage: Stage, candidate: Candidate) -> Found:
    return next(found for found in stage.found if found.candidate == candidate)


class _Meter:
    """What was spent, in answers, and what is left."""

    def __init__(self, store: Store, known: int, budget: Budget) -> None:
        self.store, self.known, self.budget = store, known, budget

    @property
    def answers(self) -> int:
        return len(self.store) - self.known

    def affords(self, answers: float, later: float) -> bool:
        """Whether that many more answers fit, and those of later, or their share of the budget, afterwards."""
        if self.budget.answers is None:
            return True
        later = min(later, (1 - SEARCH) * self.budget.answers)
        return self.answers + answers + later <= self.budget.answers

    def most(self, asked: Sequence[Asked], settings: int) -> int | None:
        """Items of a task that what is left affords; None for all of them."""
        if self.budget.answers is None or self.answers + _cost(asked, settings) <= self.budget.answers:
            return None
        left = self.budget.answers - self.answers
        return max(SMALLEST, left // sum(settings + _beside(one) for one in asked))


def _bought(seconds: float, trial: Sequence[Asked], store: Store, shard: Shard) -> int:
    """Answers that the time buys. Read from the store, so that processes that help each other agree."""
    tasks = {one.name: {item.id for item in one.items} for one in trial}
    spent = [r.seconds for r in store if r.question.item in tasks.get(r.question.task, ()) and r.seconds > 0]
    if not spent:
        return 10**9
    return max(1, int(seconds * (shard.count if shard.helps else 1) * len(spent) / sum(spent)))


def _before(size: int, rounds: Sequence[int]) -> int:
    """Items of the stage before this one."""
    return max((other for other in rounds if other < size), default=0)


def _sizes(asked: Sequence[Asked], settings: int, budget: Budget) -> list[int]:
    """Items of a task in each stage: doubling until all are in, the settings halving meanwhile."""
    largest = max(len(one.items) for one in asked)
    stages = max(1, math.ceil(math.log2(max(2, settings / SURVIVORS))) + 1)
    first = min(largest, max(SMALLEST, largest // 2 ** (stages - 1)))
    # a stage costs about as much as the next: half as many settings, twice the items
    if budget.answers is not None:
        share = SEARCH * budget.answers / stages / sum(settings + _beside(one) for one in asked)
        first = min(first, max(SMALLEST, int(share)))
    sizes = [min(largest, first * 2**k) for k in range(stages)]
    return sorted(set(sizes))


def _cost(asked: Sequence[Asked], settings: int) -> int:
    return sum(len(one.items) * (settings + _beside(one)) for one in asked)


def _beside(asked: Asked) -> int:
    """Answers to an item beside the settings': vanilla's, and those that draw the control's curve."""
    return 1 + len(first_curve(replace(asked, items=asked.items[:1])))


@dataclass(frozen=True)
class _Answering:
    """How items are answered: by whom, into which store, and which part of them is ours."""

    model: ModelFacts
    store: Store
    worker: Worker
    shard: Shard
    batch_size: int
    progress: bool

    def answer(self, asked: Sequence[Asked], settings: Sequence[Candidate]) -> dict[str, dict[str, Any]]:
        """Let these items be answered under all settings; the controls of each task's curve."""
        methods = {candidate.label: candidate.method for candidate in settings}
        curves = {one.name: first_curve(one) for one in asked}
        plan = [(one, {VANILLA: None, **methods, **curves[one.name]}) for one in asked]
        how: dict[str, Any] = {"batch_size": self.batch_size, "progress": self.progress}
        answer_all(self.worker, plan, self.model, self.store, shard=self.shard, **how)
        return curves

    def stage(self, split: str, asked: Sequence[Asked], settings: Sequence[Candidate]) -> Stage:
        """All settings, vanilla and the control's curve on these items."""
        curves = self.answer(asked, settings)
        spelled: dict[str, Json | None] = {VANILLA: None, **{c.label: c.method.to_json() for c in settings}}
        tasks = {}
        for one in asked:
            drawn = {label: control.to_json() for label, control in curves[one.name].items()}
            tasks[one.name] = TaskResults.of(one, spelled, drawn, self.store, self.model.fingerprint)
            if tasks[one.name].trade_off is None:
                raise ValueError(
                    f"{one.name} has no trade-off to hold equal: calibrate on captioning and yes/no tasks"
                )
        found = [_measure(candidate, tasks) for candidate in settings]
        found.sort(key=lambda f: -f.gain.value if math.isfinite(f.gain.value) else math.inf)
        return Stage(split, {one.name: len(one.items) for one in asked}, tuple(found), tasks)


def _measure(candidate: Candidate, tasks: Mapping[str, TaskResults]) -> Found:
    label = candidate.label
    gains, draws, figures = [], [], {}
    recall, answers, changed, fired, images = None, 0, 0, 0, 0
    for name, task in tasks.items():
        trade = task.trade_off
        assert trade is not None, "checked where the stage was made"
        y = trade.ys[0]
        sign = -1.0 if task.scores(label).definitions[y].better == "lower" else 1.0
        equal = task.at_equal(label)[y]
        gains.append(sign * equal.difference.value)
        draws.append(sign * equal.draws)
        figures[name] = dict(task.scores(label).metrics)
        if trade.x != "yes_ratio":
            recall = task.sample(label).difference(task.sample(VANILLA), trade.x)
        answers += len(task.items)
        images = max(images, task.sample(label).images)
        changed += task.changed(label)
        fired += task.fired(label) or 0
    together = np.mean(draws, axis=0)
    gain = Estimate.of(float(np.mean(gains)), together, answers, images=images)
    return Found(candidate, gain, together, figures, recall, changed / answers, fired / answers)


def _survivors(stage: Stage, limit: float, *, last: bool) -> list[Candidate]:
    """The better half, without what is surely worse than the best, or surely loses recall."""
    able = [f for f in stage.found if not f.surely_loses_recall(limit) and math.isfinite(f.gain.value)]
    if not able:
        return []
    best = able[0]
    near = [f for f in able if f is best or np.percentile(best.draws - f.draws, 2.5) <= 0]
    most = SURVIVORS if last else max(SURVIVORS, math.ceil(len(stage.found) / 2))
    return [f.candidate for f in near[:most]]
