"""The curves of a sweep: each leading metric over what varies, with 95 % intervals, vanilla beside it.

Knows what a sweep found; nothing about how sweeps are answered.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from airvlm.evaluation.sweeps import Sweep
from airvlm.evaluation.task_results import VANILLA
from airvlm.reporting.plots import Point, figure, intervals, to_svg

__all__ = ["draw_sweep", "sweep_svg"]

PANELS = 3  # leading metrics that are drawn
GREY, BLUE = "#888888", "#1f5fa8"


def draw_sweep(sweep: Sweep, path: Path) -> Path:
    """Write the sweep's curves to `path`, in the format that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with figure(3.2, 3.4 * PANELS) as drawn:
        _panels(drawn, sweep, 1, PANELS)
        drawn.savefig(path, dpi=150)
    return path


def sweep_svg(sweep: Sweep, title: str) -> str:
    """The sweep's curves, one below the other, for a page."""
    with figure(2.1 * PANELS) as drawn:
        _panels(drawn, sweep, PANELS, 1)
        return to_svg(drawn, title)


def _panels(drawn: Any, sweep: Sweep, rows: int, columns: int) -> None:
    task = sweep.found[0]
    names = list(task.scores(VANILLA).definitions)[:PANELS]
    ticks = [setting.value.partition("=")[2] or setting.value for setting in sweep.settings]
    numbers = [_number(tick) for tick in ticks]
    scale = [n for n in numbers if n is not None]
    numeric = len(scale) == len(ticks) > 1
    xs = scale if numeric else [float(i) for i in range(len(ticks))]
    panels = drawn.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(panels, names):
        method = [t.sample(s.label).estimate(name) for s, t in zip(sweep.settings, sweep.found)]
        vanilla = [t.sample(VANILLA).estimate(name) for t in sweep.found]
        for label, found, colour, joined in (
            ("vanilla", vanilla, GREY, True),
            ("method", method, BLUE, numeric),
        ):
            points = [Point(x, e.value, e.low, e.high) for x, e in zip(xs, found)]
            intervals(axes, points, colour)
            axes.plot(
                xs,
                [p.y for p in points],
                label=label,
                color=colour,
                marker="o",
                markersize=4,
                linestyle="-" if joined else "none",
                linewidth=1.2,
            )
        axes.set_title(name)
        if not numeric or len(ticks) <= 8:
            slanted = max(map(len, ticks)) > 5
            axes.set_xticks(xs, ticks, rotation=35 if slanted else 0, ha="right" if slanted else "center")
    panels[len(names) - 1].set_xlabel(sweep.name)
    panels[0].set_ylabel("%")
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
    drawn.suptitle(f"{task.asked.key}, {len(task.items)} items", fontsize=8, x=0.01, ha="left")


def _number(text: str) -> float | None:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        return None
