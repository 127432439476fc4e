"""Curves of a sweep, as a picture: each leading metric over what varies, with 95 % intervals, vanilla beside it.

Needs `airvlm[plots]`. Knows nothing about how sweeps are answered.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

from airvlm.evaluation.run import VANILLA
from airvlm.evaluation.statistics import Estimate
from airvlm.evaluation.sweeps import Sweep

__all__ = ["draw_sweep"]

PANELS = 3  # leading metrics that are drawn


def draw_sweep(sweep: Sweep, path: Path) -> Path:
    """Write the sweep's curves to `path`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install 'airvlm[plots]'") from error
    task = sweep.found[0]
    names = list(task.scores(VANILLA).definitions)[:PANELS]
    ticks = [setting.value.partition("=")[2] or setting.value for setting in sweep.settings]
    numbers = [_number(tick) for tick in ticks]
    scale = [n for n in numbers if n is not None]
    numeric = len(scale) == len(ticks) > 1
    xs = scale if numeric else [float(i) for i in range(len(ticks))]
    figure = Figure(figsize=(3.6 * len(names), 3.4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names):
        method = [t.sample(s.value).estimate(name) for s, t in zip(sweep.settings, sweep.found)]
        vanilla = [t.sample(VANILLA).estimate(name) for t in sweep.found]
        _line(axes, xs, vanilla, "vanilla", "#888888", joined=True)
        _line(axes, xs, method, "method", "#1f5fa8", joined=numeric)
        axes.set_title(name)
        axes.set_xlabel(sweep.name)
        axes.grid(alpha=0.25)
        if not numeric or len(ticks) <= 8:
            slanted = max(map(len, ticks)) > 5
            axes.set_xticks(xs, ticks, rotation=35 if slanted else 0, ha="right" if slanted else "center")
    panels[0].set_ylabel("%")
    panels[0].legend(frameon=False)
    figure.suptitle(f"{task.asked.name}, {task.asked.split} split, {len(task.items)} items", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _line(axes: Any, xs: list[float], found: list[Estimate], label: str, colour: str, joined: bool) -> None:
    ys = [estimate.value for estimate in found]
    below = [max(0.0, e.value - e.low) if math.isfinite(e.low) else 0.0 for e in found]
    above = [max(0.0, e.high - e.value) if math.isfinite(e.high) else 0.0 for e in found]
    line = "-" if joined else "none"
    axes.errorbar(
        xs, ys, yerr=[below, above], label=label, color=colour, marker="o", ls=line, ms=4, capsize=2
    )


def _number(text: str) -> float | None:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        return None
