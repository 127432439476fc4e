"""Calibration: which method at which setting helps this model, found on one split and measured once on another.

Successive halving: many settings on few items, then the better half on twice as many. What a setting is worth is its
distance from the curve that a trivial control draws, at equal recall or yes-ratio, so that saying less wins nothing.
A setting that beats the curve but loses recall goes on beside a control that gives the recall back. The best on the
calibration split is measured once on the validation split; that figure is the result, and stands beside what the
calibration had promised (calibrated.py). What it costs is spending.py. Knows nothing of files beyond the store.
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
from airvlm.evaluation.spending import Budget, Spending
from airvlm.evaluation.statistics import Estimate
from airvlm.evaluation.store import Store
from airvlm.evaluation.task_results import VANILLA, TaskResults

__all__ = ["calibrate"]

SMALLEST = 32  # items of a task in the first stage: fewer tell nothing; what they cost tells how many are affordable
SURVIVORS = 3  # settings that are measured on the validation split
SEARCH = 0.6  # share of a budget for the calibration split
STRONGEST = 4.0  # bias of a companion


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
    known, began = len(store), time.monotonic()
    batch_size = min(batch_size, SMALLEST)  # stages end where batches do
    answering = _Answering(model, store, worker, shard, batch_size, progress)
    spending = Spending(budget, shard.count if shard.helps else 1)
    largest = max(len(one.items) for one in ask("calibration", None))
    rounds = 1 + max(0, math.ceil(math.log2(len(settings) / (2 * SURVIVORS))))
    price = spending.take(answering.answer(ask("calibration", SMALLEST), settings))
    first = price.items(SEARCH * spending.budget / rounds, most=largest // 2 ** (rounds - 1))
    size = min(largest, max(SMALLEST, _whole(first, batch_size)))
    running, stages = list(settings), list[Stage]()
    while True:
        stages.append(answering.stage("calibration", ask("calibration", size), running))
        price = spending.take(stages[-1].tasks)
        if len(stages) == rounds or size == largest:
            break
        following = _survivors(stages[-1], max_recall_loss)
        added = len(set(following) - set(running))
        left = SEARCH * spending.budget - spending.spent - size * price.of_new(added)
        more = _whole(price.among(len(following)).items(left, most=min(size, largest - size)), batch_size)
        if not following or more < size / 4:  # a few more items tell nothing new
            break
        running, size = following, size + more
    # the first of the last stage is what is promised: those that may not be chosen must not stand before it
    last = stages[-1]
    able = [f for f in last.found if f.gain.high > 0 and not f.loses_recall(max_recall_loss)]
    kept = [f.candidate for f in able[:SURVIVORS]]
    stages[-1] = replace(last, found=tuple(sorted(last.found, key=lambda f: f.candidate not in kept)))
    validation = None
    if kept:
        left = spending.budget - spending.spent
        most = max(SMALLEST, price.among(len(kept)).items(left, most=10**9))
        validation = answering.stage("validation", ask("validation", most), kept)
    seconds = time.monotonic() - began
    return Calibration(model, tuple(stages), validation, max_recall_loss, len(store) - known, seconds)


def _whole(items: int, batch_size: int) -> int:
    """As many as fill batches: of a batch that is answered in part, the rest cannot be asked alone."""
    return items // batch_size * batch_size


@dataclass(frozen=True)
class _Answering:
    """How items are answered: by whom, into which store, and which part of them is ours."""

    model: ModelFacts
    store: Store
    worker: Worker
    shard: Shard
    batch_size: int
    progress: bool

    def answer(self, asked: Sequence[Asked], settings: Sequence[Candidate]) -> dict[str, TaskResults]:
        """Vanilla, all settings and the control's curve on these items."""
        methods: dict[str, Any] = {VANILLA: None, **{c.label: c.method for c in settings}}
        curves = {one.name: first_curve(one) for one in asked}
        plan = [(one, methods | curves[one.name]) for one in asked]
        how: dict[str, Any] = {"batch_size": self.batch_size, "progress": self.progress}
        answer_all(self.worker, plan, self.model, self.store, shard=self.shard, **how)
        spelled = {label: None if method is None else method.to_json() for label, method in methods.items()}
        tasks = {}
        for one in asked:
            drawn = {label: control.to_json() for label, control in curves[one.name].items()}
            tasks[one.name] = TaskResults.of(one, spelled, drawn, self.store, self.model.fingerprint)
            if tasks[one.name].trade_off is None:
                raise ValueError(f"{one.name} has no trade-off to hold equal: calibrate on captioning and yes/no tasks")
        return tasks

    def stage(self, split: str, asked: Sequence[Asked], settings: Sequence[Candidate]) -> Stage:
        """What all settings are worth on these items, the best first."""
        tasks = self.answer(asked, settings)
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


def _survivors(stage: Stage, limit: float) -> list[Candidate]:
    """The better half of what may still gain, without what is surely worse than the best.

    A default stays until it is surely worse: that little was seen of it is no reason. A setting that loses more recall
    than the limit goes on beside its companion, or, where that is impossible, as it is until the loss is sure.
    """
    staying: list[tuple[Found, list[Candidate]]] = []
    for found in stage.found:
        own = [found.candidate] if not found.surely_loses_recall(limit) else []
        helped = _companion(found, stage) if found.loses_recall(limit) else None
        if helped is not None:
            own = [helped] + [c for c in own if c.is_default]
        if own and found.gain.high > 0:
            staying.append((found, own))
    best = staying[0][0].draws if staying else 0.0
    staying = [(f, own) for f, own in staying if np.percentile(best - f.draws, 2.5) <= 0]
    half = max(SURVIVORS, math.ceil(len(stage.found) / 2))
    chosen = [c for i, (f, own) in enumerate(staying) if i < half or f.candidate.is_default for c in own]
    return list(dict.fromkeys(chosen))  # a default that stays has the companion that it had before


def _companion(found: Found, stage: Stage) -> Candidate | None:
    """The setting beside as much of the control as gives vanilla the recall that the setting loses."""
    for task in stage.tasks.values():
        trade = task.trade_off
        assert trade is not None, "checked where the stage was made"
        if trade.x == "yes_ratio" or found.recall_change is None or found.candidate.companion:
            continue
        # the slope of the whole curve: on few images one step of it may change nothing
        most, least = (task.sample(trade.method(bias(trade.biases))).value(trade.x) for bias in (min, max))
        slope = (most - least) / (max(trade.biases) - min(trade.biases))
        if slope > 0:
            steps = math.ceil(-2 * found.recall_change.value / slope) / 2
            return found.candidate.beside(trade.method(-min(STRONGEST, steps)))
    return None
