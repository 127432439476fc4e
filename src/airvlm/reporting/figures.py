"""The plots of results, of sweeps and of calibrations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airvlm.evaluation.results import VANILLA, Results, TaskResults
from airvlm.evaluation.statistics import Estimate
from airvlm.evaluation.sweeps import SweepResults, list_sweeps
from airvlm.reporting.plots import Point, Series, available, draw_intervals, figure, forest, scatter, style_of, to_svg

if TYPE_CHECKING:
    from airvlm.evaluation.calibration import Calibration, Stage

__all__ = ["draw_calibration", "draw_curves", "draw_sweep", "list_figures"]

BINS = 4
PANELS = 3  # leading metrics of a sweep


def list_figures(runs: Sequence[Results]) -> list[tuple[str, str]]:
    """(caption, SVG) of everything that can be drawn; nothing without matplotlib."""
    if not available():
        return []
    drawn = []
    for run in runs:
        model = run.model_name
        drawn.append((f"{model}: differences with 95 % intervals.", _effects(run)))
        for name, task in run.tasks.items():
            known = set(task.scores(VANILLA).definitions)
            if {"CHAIR_S", "recall"} <= known:
                note = "Dashed: an EOS-bias baseline, which only says less, and each method with the same biases."
                drawn.append((f"{name}, {model}: CHAIR_S over recall. {note}", _trade(task, "recall", "CHAIR_S")))
                drawn.append((f"{name}, {model}: CHAIR_I of short and long answers.", _by_length(task)))
            if {"precision", "recall", "yes_ratio"} <= known:
                note = "Dashed: a yes-bias baseline. A method gains above it."
                drawn.append((f"{name}, {model}: precision over recall. {note}", _trade(task, "recall", "precision")))
        for name, sweep in list_sweeps(run).items():
            drawn.append((f"{model}: sweep {name}, with 95 % intervals.", _sweep_svg(sweep)))
    drawn.append(("CHAIR_S over the token cap.", _by_cap(runs)))
    return [(caption, svg) for caption, svg in drawn if svg]


def _point(x: float, estimate: Estimate) -> Point:
    return Point(x, estimate.value, estimate.low, estimate.high)


def _effects(run: Results) -> str:
    """Every method's difference to vanilla, and to the trivial control at equal recall."""
    rows = []
    for name, task in run.tasks.items():
        metric = next(iter(task.scores(VANILLA).definitions), None)
        if metric is None or task.better(metric) == "neither":
            continue
        heading = f"{name}: {metric}, {task.better(metric)} is better"
        rows.append((f"{heading}, to vanilla", [(m, task.difference(m, metric)) for m in task.others]))
        at = [(m, found[metric].difference) for m in task.others if metric in (found := task.at_equal(m))]
        if at and task.trade_off:
            rows.append((f"{heading}, at equal {task.trade_off.held_equal}", at))
    lines = [(heading, [(m, Point(e.value, 0.0, e.low, e.high)) for m, e in found]) for heading, found in rows]
    return forest("Differences", "difference in points", lines)


def draw_curves(task: TaskResults, path: Path) -> Path | None:
    """Draw every method's curve beside vanilla's into a file; None for a task without a curve."""
    trade = task.trade_off
    if trade is None or len(task.own_curve(VANILLA)) < 2:
        return None
    return path if _trade(task, trade.x, trade.ys[0], path) else None


def _trade(task: TaskResults, x: str, y: str, path: Path | None = None) -> str:
    """All methods, the control's curve through vanilla, and each method's own curve where it is known."""
    series = []
    control = "EOS bias" if y.startswith("CHAIR") else "yes bias"
    for n, label in enumerate((VANILLA, *task.others)):
        points = tuple(Point(sample.value(x), sample.value(y)) for sample in task.own_curve(label).values())
        if len(points) > 1:
            name = f"{control.replace(' ', '-')} baseline" if label == VANILLA else f"{label} with {control}"
            series.append(Series(name, points, line=True, style=8 if label == VANILLA else n % 8))
    for n, label in enumerate((VANILLA, *task.others)):
        sample = task.sample(label)
        series.append(Series(label, (_point(sample.value(x), sample.estimate(y)),), style=n % 8))
    return scatter(f"{y} over {x}", f"{x} (%)", f"{y} (%)", series, path)


def _by_length(task: TaskResults) -> str:
    """CHAIR_I of each method's answers, grouped by their length."""
    lengths = {label: [counts.get("tokens") for counts in task.scores(label).per_item] for label in task.methods}
    pooled = [value for found in lengths.values() for value in found if value is not None]
    edges = np.unique(np.quantile(pooled, np.linspace(0, 1, BINS + 1))) if len(pooled) >= BINS else np.array([])
    if len(edges) < 3:
        return ""
    series = []
    for n, label in enumerate((VANILLA, *task.others)):
        bins = [None if v is None else min(len(edges) - 2, int(np.searchsorted(edges, v, "right")) - 1)
                for v in lengths[label]]  # fmt: skip
        points = []
        for k in range(len(edges) - 1):
            inside = [i for i, own in enumerate(bins) if own == k]
            value = task.scores(label).select(inside).metrics["CHAIR_I"] if inside else math.nan
            points.append(Point(float(np.mean([lengths[label][i] for i in inside])) if inside else math.nan, value))
        series.append(Series(label, tuple(points), line=True, style=n % 8))
    return scatter("CHAIR_I by length", "words in the answer", "CHAIR_I (%)", series)


def _by_cap(runs: Sequence[Results]) -> str:
    """CHAIR_S over the token cap, if runs differ in it."""
    found: dict[str, list[Point]] = {}
    for task in (task for run in runs for task in run.tasks.values()):
        cap = task.spec.generation.get("max_new_tokens")
        if cap is None or "CHAIR_S" not in task.scores(VANILLA).definitions:
            continue
        for label in task.methods:
            point = _point(float(cap), task.sample(label).estimate("CHAIR_S"))
            found.setdefault(f"{task.spec.name} {label}", []).append(point)
    series = [Series(name, tuple(points), line=True) for name, points in found.items()]
    if len({point.x for one in series for point in one.points}) < 2:
        return ""
    return scatter("CHAIR_S by token cap", "max_new_tokens", "CHAIR_S (%)", series)


# -- sweeps


def draw_sweep(sweep: SweepResults, path: Path) -> Path:
    """Draw each leading metric over what varies, vanilla beside it, into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with figure(3.2, 3.4 * PANELS) as drawn:
        _draw_panels(drawn, sweep, 1, PANELS)
        drawn.savefig(path, dpi=150)
    return path


def _sweep_svg(sweep: SweepResults) -> str:
    with figure(2.1 * PANELS) as drawn:
        _draw_panels(drawn, sweep, PANELS, 1)
        return to_svg(drawn, sweep.title)


def _draw_panels(drawn: Any, sweep: SweepResults, rows: int, columns: int) -> None:
    task = sweep.points[0][2]
    metrics = list(task.scores(VANILLA).definitions)[:PANELS]
    ticks = [value.partition("=")[2] or value for value, _, _ in sweep.points]
    numbers = [n for tick in ticks if (n := _number(tick)) is not None]
    numeric = len(numbers) == len(ticks) > 1
    xs = numbers if numeric else [float(i) for i in range(len(ticks))]
    panels = drawn.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels[len(metrics) :]:
        axes.set_visible(False)
    for axes, metric in zip(panels, metrics):
        vanilla = [own.sample(VANILLA).estimate(metric) for _, _, own in sweep.points]
        method = [own.sample(label).estimate(metric) for _, label, own in sweep.points]
        for name, found, style, joined in ((VANILLA, vanilla, 8, True), ("method", method, 1, numeric)):
            points, (color, marker) = [_point(x, e) for x, e in zip(xs, found)], style_of(style)
            draw_intervals(axes, points, color)
            line = "-" if joined else "none"
            ys = [p.y for p in points]
            axes.plot(xs, ys, label=name, color=color, marker=marker, markersize=4, linestyle=line, linewidth=1.2)
        axes.set_title(metric)
        if not numeric or len(ticks) <= 8:
            slanted = max(map(len, ticks)) > 5
            axes.set_xticks(xs, ticks, rotation=35 if slanted else 0, ha="right" if slanted else "center")
    panels[len(metrics) - 1].set_xlabel(sweep.varies)
    panels[0].set_ylabel("%")
    drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    drawn.suptitle(f"{sweep.title}, {len(task.items)} items", fontsize=8, x=0.01, ha="left")


def _number(text: str) -> float | None:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        return None


# -- calibrations


def draw_calibration(found: Calibration, folder: Path) -> list[Path]:
    """Draw calibration-TASK.png (all settings beside the control's curve) and calibration-options.png."""
    written = []
    for name in found.stages[-1].tasks:
        with figure(4.4, 6.2) as drawn:
            _draw_plane(drawn.subplots(), found.stages, name)
            written.append(folder / f"calibration-{name}.png")
            drawn.savefig(written[-1], dpi=140)
    values: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for measured in found.stages[0].measured:
        for option, value in measured.candidate.changed.items():
            value = value[0] if isinstance(value, tuple) else value
            if isinstance(value, int | float):
                key = (measured.candidate.base.label, option)
                values.setdefault(key, []).append((float(value), measured.gain.value))
    if values:
        columns = 4
        rows = -(-len(values) // columns)
        with figure(2.4 * rows, 3.0 * columns) as drawn:
            panels = drawn.subplots(rows, columns, squeeze=False).flatten()
            for axes, ((method, option), points) in zip(panels, values.items()):
                axes.plot(*zip(*sorted(points)), "o", markersize=4)
                axes.axhline(0, color="#999999", linewidth=0.8)
                axes.set_title(f"{method}: {option}")
            for axes in panels[len(values) :]:
                axes.set_visible(False)
            drawn.supylabel("gain on the first stage, points")
            written.append(folder / "calibration-options.png")
            drawn.savefig(written[-1], dpi=140)
    return written


def _draw_plane(axes: Any, stages: tuple[Stage, ...], name: str) -> None:
    """What is held equal across, what is compared upwards; later stages are larger."""
    last = stages[-1].tasks[name]
    trade = last.trade_off
    assert trade is not None, "a calibration has no other tasks"
    x, y = trade.x, trade.ys[0]
    curve = sorted((last.sample(label).value(x), last.sample(label).value(y)) for label in last.curve_labels())
    axes.plot(*zip(*curve), "--", color="#999999", label=trade.control)
    vanilla = last.sample(VANILLA)
    axes.plot(vanilla.value(x), vanilla.value(y), "o", color="black", label=VANILLA, zorder=5)
    bases = list(dict.fromkeys(m.candidate.base.label for m in stages[0].measured))
    for k, stage in enumerate(stages, 1):
        for i, base in enumerate(bases, 1):
            own = [m.figures[name] for m in stage.measured if m.candidate.base.label == base and name in m.figures]
            color, marker = style_of(i)
            axes.plot(
                [values[x] for values in own],
                [values[y] for values in own],
                color=color,
                marker=marker,
                markersize=3 + 5 * k / len(stages),
                alpha=0.25 + 0.75 * k / len(stages),
                label=base if k == len(stages) else None,
                linestyle="none",
            )
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(f"{name}: every setting, small where few items were asked")
    axes.legend()
