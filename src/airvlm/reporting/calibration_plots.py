"""The drawings of a calibration: every setting beside the control's curve, and what each field does.

Knows nothing of how settings are tried. Needs `airvlm[plots]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airvlm.evaluation.task_results import VANILLA
from airvlm.reporting.plots import COLOURS, SHAPES

if TYPE_CHECKING:
    from airvlm.evaluation.calibrated import Calibration, Stage

__all__ = ["draw"]


def draw(found: Calibration, folder: Path) -> list[Path]:
    """calibration-TASK.png for each task, and calibration-fields.png; where they were written."""
    from matplotlib.figure import Figure

    written = []
    for key in found.stages[-1].tasks:
        figure = Figure(figsize=(6.2, 4.4))
        _plane(figure.subplots(), found.stages, key)
        written.append(folder / f"calibration-{key.split(',')[0]}.png")
        figure.savefig(written[-1], dpi=140, bbox_inches="tight")
    figure = _fields(found.stages[0])
    if figure is not None:
        written.append(folder / "calibration-fields.png")
        figure.savefig(written[-1], dpi=140, bbox_inches="tight")
    return written


def _plane(axis, stages: tuple[Stage, ...], key: str) -> None:  # type: ignore[no-untyped-def]  # matplotlib's axes
    """What must be equal across, what is compared upwards; later stages are drawn larger."""
    last = stages[-1].tasks[key]
    trade = last.trade_off
    assert trade is not None, "a calibration has no other tasks"
    curve = sorted((s.value(trade.x), s.value(trade.ys[0])) for s in last.curve_samples())
    axis.plot(*zip(*curve), "--", color="#999999", label=f"{trade.control} bias")
    vanilla = last.sample(VANILLA)
    axis.plot(vanilla.value(trade.x), vanilla.value(trade.ys[0]), "o", color="black", label="vanilla", zorder=5)
    names = list(dict.fromkeys(f.candidate.name for f in stages[0].found))
    for k, stage in enumerate(stages):
        for i, name in enumerate(names):
            own = [f.figures[key] for f in stage.found if f.candidate.name == name and key in f.figures]
            axis.plot(
                [values[trade.x] for values in own],
                [values[trade.ys[0]] for values in own],
                SHAPES[(i + 1) % len(SHAPES)],
                color=COLOURS[(i + 1) % len(COLOURS)],
                markersize=3 + 5 * (k + 1) / len(stages),
                alpha=0.25 + 0.75 * (k + 1) / len(stages),
                label=name if k == len(stages) - 1 else None,
                linestyle="none",
            )
    axis.set_xlabel(trade.x)
    axis.set_ylabel(trade.ys[0])
    axis.set_title(f"{key}: every setting, small where few items were asked")
    axis.legend()


def _fields(stage: Stage):  # type: ignore[no-untyped-def]  # matplotlib's figure, or None
    """The gain over each field's values, on the first stage, where all settings are."""
    from matplotlib.figure import Figure

    values: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for found in stage.found:
        for field, value in found.candidate.fields:
            number = value[0] if isinstance(value, tuple) else value
            if isinstance(number, int | float):
                values.setdefault((found.candidate.name, field), []).append((float(number), found.gain.value))
    if not values:
        return None
    columns = 4
    rows = -(-len(values) // columns)
    figure = Figure(figsize=(3 * columns, 2.4 * rows))
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, ((name, field), points) in zip(axes, values.items()):
        axis.plot(*zip(*sorted(points)), "o", markersize=4)
        axis.axhline(0, color="#999999", linewidth=0.8)
        axis.set_title(f"{name}: {field}", fontsize=8)
    for axis in list(axes):
        axis.axis("off")
    figure.supylabel("gain on the first stage, points")
    figure.tight_layout()
    return figure
