"""The plots of a report, drawn from runs:

effects, the trade-off curves, CHAIR by length. Knows nothing of pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from airvlm.evaluation.results import Results
from airvlm.evaluation.statistics import Estimate
from airvlm.evaluation.sweeps import found_in
from airvlm.evaluation.task_results import VANILLA, TaskResults
from airvlm.reporting.plots import Point, Series, available, forest, scatter
from airvlm.reporting.sweep_plot import sweep_svg

__all__ = ["figures"]

BINS = 4


def figures(runs: Sequence[Results]) -> list[tuple[str, str]]:
    """(caption, SVG) of everything that can be drawn; nothing where matplotlib is missing."""
    if not available():
        return []
    drawn = []
    for run in runs:
        model = str(run.model["name"]).rstrip("/").rsplit("/", 1)[-1]
        drawn.append((f"{model}: difference to vanilla, with 95 % intervals; to the right is better.", _effects(run)))
        for name, task in run.tasks.items():
            known = set(task.scores(VANILLA).definitions)
            if {"CHAIR_S", "recall"} <= known:
                said = "The dashed line is the EOS-bias curve: what saying less buys. A method gains below it."
                drawn.append((f"{name}, {model}: CHAIR_S over recall. {said}", _trade(task, "recall", "CHAIR_S")))
                drawn.append((f"{name}, {model}: CHAIR_I of short and long answers.", _by_length(task)))
            if {"precision", "recall", "yes_ratio"} <= known:
                said = "The dashed line is drawn by a bias on yes against no alone. A method gains above it."
                drawn.append((f"{name}, {model}: precision over recall. {said}", _trade(task, "recall", "precision")))
        for name, sweep in found_in(run).items():
            drawn.append((f"{name}, {model}: what a sweep found, with 95 % intervals.", sweep_svg(sweep, name)))
    drawn.append(("CHAIR_S by the cap on new tokens.", _by_cap(runs)))
    return [(caption, svg) for caption, svg in drawn if svg]


def _others(task: TaskResults) -> list[str]:
    return [label for label in task.methods if label != VANILLA]


def _effects(run: Results) -> str:
    rows = []
    for name, task in run.tasks.items():
        definitions = task.scores(VANILLA).definitions
        lead = next(iter(definitions), None)
        if lead is None or definitions[lead].better == "neither":
            continue
        sign = 1.0 if definitions[lead].better == "higher" else -1.0
        differences = [(m, task.sample(m).difference(task.sample(VANILLA), lead)) for m in _others(task)]
        rows.append((f"{name}: {lead}", [(m, _turned(e, sign)) for m, e in differences]))
        at = [(m, found[lead].difference) for m in _others(task) if lead in (found := task.at_equal(m))]
        if at and task.trade_off:
            title = f"{name}: {lead} at equal {task.trade_off.x.replace('_', '-')}"
            rows.append((title, [(m, _turned(e, sign)) for m, e in at]))
    return forest("Differences to vanilla", "points, right is better", rows)


def _turned(estimate: Estimate, sign: float) -> Point:
    low, high = sorted((sign * estimate.low, sign * estimate.high))
    return Point(sign * estimate.value, 0.0, low, high)


def _trade(task: TaskResults, x: str, y: str) -> str:
    """All methods, and the control's curve through vanilla."""
    samples = task.curve_samples()
    series = []
    if len(samples) > 1:
        points = tuple(Point(sample.value(x), sample.value(y)) for sample in samples)
        series.append(
            Series("EOS-bias curve" if y.startswith("CHAIR") else "yes-bias curve", points, line=True, style=8)
        )
    for n, label in enumerate((VANILLA, *_others(task))):
        sample = task.sample(label)
        estimate = sample.estimate(y)
        point = Point(sample.value(x), estimate.value, estimate.low, estimate.high)
        series.append(Series(label, (point,), style=n % 8))
    return scatter(f"{y} over {x}", f"{x} (%)", f"{y} (%)", series)


def _by_length(task: TaskResults) -> str:
    """CHAIR_I of each method's answers, grouped by how long they are."""
    lengths = {label: [counts.get("tokens") for counts in task.scores(label).per_item] for label in task.methods}
    pooled = [value for found in lengths.values() for value in found if value is not None]
    if len(pooled) < BINS:
        return ""
    edges = np.unique(np.quantile(pooled, np.linspace(0, 1, BINS + 1)))
    if len(edges) < 3:
        return ""
    series = []
    for n, label in enumerate((VANILLA, *_others(task))):
        points = []
        for low, high, last in zip(edges[:-1], edges[1:], [*[False] * (len(edges) - 2), True]):
            inside = [
                i
                for i, v in enumerate(lengths[label])
                if v is not None and low <= v and (v < high or (last and v <= high))
            ]
            value = task.scores(label).only(inside).metrics["CHAIR_I"] if inside else math.nan
            middle = float(np.mean([lengths[label][i] for i in inside])) if inside else math.nan
            points.append(Point(middle, value))
        series.append(Series(label, tuple(points), line=True, style=n % 8))
    return scatter("CHAIR_I by length", "words in the answer", "CHAIR_I (%)", series)


def _by_cap(runs: Sequence[Results]) -> str:
    """CHAIR_S over the cap on new tokens, where runs differ in it."""
    found: dict[str, list[Point]] = {}
    for run in runs:
        for task in run.tasks.values():
            cap = task.asked.generation.get("max_new_tokens")
            if cap is None or "CHAIR_S" not in task.scores(VANILLA).definitions:
                continue
            for label in task.methods:
                e = task.sample(label).estimate("CHAIR_S")
                found.setdefault(f"{task.asked.name} {label}", []).append(Point(float(cap), e.value, e.low, e.high))
    series = [Series(name, tuple(points), line=True) for name, points in found.items()]
    if len({point.x for one in series for point in one.points}) < 2:
        return ""
    return scatter("CHAIR_S by length", "at most so many tokens", "CHAIR_S (%)", series)
