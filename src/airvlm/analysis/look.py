"""A drawing of what a method looked at: the image and its crops with d_OT, the kept ones marked, a heat map of where
the image's tokens were changed, and the norm ratio by layer.

Drawn with matplotlib, without its global state: servers draw in threads. Reads a Report; knows nothing of models.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from airvlm.report import Crop, Report

if TYPE_CHECKING:
    from airvlm.analysis.changed import TokenChanges

__all__ = ["draw_look"]

INK, FAINT, KEPT, LEFT_OUT = "#20242a", "#969ca4", "#00915a", "#b2b6bc"
COLUMNS = 7  # thumbnails in a row
WIDTH = 8.0  # inches
DPI = 100
BARS = 6  # bars that the chart has room for at least
TALLEST, FLATTEST = 2.0, 0.25  # height over width that a panel follows; an image beyond is letterboxed


def draw_look(image: Image.Image, report: Report, which: int = 0, changes: TokenChanges | None = None) -> Image.Image:
    """The drawing for one image of a row's report (`which`, where the row has several)."""
    crops = report.crops[which] if report.crops else ()
    grid = None if changes is None else _grid(changes.ratios[which], image)
    lines = math.ceil(len(crops) / COLUMNS)
    shape = min(max(image.height / image.width, FLATTEST), TALLEST)
    panels = 2 if grid is None else 3
    top = max(2.2, WIDTH / panels * shape)
    height = 0.7 + top + 1.35 * lines
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    figure.suptitle(_title(report, crops), x=0.02, y=1 - 0.12 / height, ha="left", va="top", fontsize=11, color=INK)
    outer = figure.add_gridspec(
        2 if lines else 1, 1, height_ratios=[top, 1.35 * lines] if lines else [1], hspace=0.3 / height,
        left=0.02, right=0.97, top=1 - 0.7 / height, bottom=0.12 / height,
    )  # fmt: skip
    upper = outer[0].subgridspec(1, panels, wspace=0.4)
    _boxes(figure.add_subplot(upper[0]), image, crops)
    if grid is not None and changes is not None:
        _heat(figure, figure.add_subplot(upper[1]), image, grid, changes)
    _chart(figure.add_subplot(upper[panels - 1]), report)
    if lines:
        lower = outer[1].subgridspec(lines, COLUMNS, wspace=0.08, hspace=0.35)
        # nearest first: the reader sees where the line was drawn
        for place, number in enumerate(sorted(range(len(crops)), key=lambda i: crops[i].distance)):
            axis = figure.add_subplot(lower[place // COLUMNS, place % COLUMNS])
            _thumbnail(axis, image, crops[number], number + 1)
    return _rendered(figure)


def _rendered(figure: Figure) -> Image.Image:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    content.seek(0)
    return Image.open(content).convert("RGB")


def _title(report: Report, crops: Sequence[Crop]) -> str:
    name = str(report.method.get("name", "method"))
    kept = sum(crop.kept for crop in crops)
    acted = f"kept {kept} of {len(crops)} crops" if crops else "acted, without crops"
    did = acted if report.fired else f"did not act: {report.reason}"
    return f"{name}: {did}"


def _boxes(axis: Any, image: Image.Image, crops: Sequence[Crop]) -> None:
    """The image with every crop outlined; those left out first, so that the kept ones lie on top."""
    _show(axis, image)
    # the nearest crops strongest: where all are kept, the reader still finds what mattered
    near = {id(crop): rank for rank, crop in enumerate(sorted(crops, key=lambda crop: crop.distance))}
    for number, crop in sorted(enumerate(crops, 1), key=lambda item: (item[1].kept, -near[id(item[1])])):
        strong = crop.kept and near[id(crop)] < max(1, len(crops) // 4)
        x0, y0, x1, y1 = crop.box
        colour, alpha = (KEPT, 1.0 if strong else 0.5) if crop.kept else (LEFT_OUT, 1.0)
        width = 2.5 if strong else 1.5 if crop.kept else 0.8
        axis.add_patch(
            Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0, fill=False, edgecolor=colour, alpha=alpha, lw=width)
        )
        if strong:
            box = {"facecolor": KEPT, "edgecolor": "none", "pad": 1.5}
            axis.text(x0, y0, f"{number}  {crop.distance:.3f}", fontsize=7, color="white", va="top", bbox=box)
    axis.set_title("crops, the nearest with d" if crops else "the image", fontsize=8, color=INK, loc="left")


def _heat(figure: Figure, axis: Any, image: Image.Image, grid: list[list[float]], changes: TokenChanges) -> None:
    """Where the visual tokens were changed, over the image."""
    _show(axis, image.convert("L"))
    extent = (-0.5, image.width - 0.5, image.height - 0.5, -0.5)
    if changes.layer is None:
        axis.set_title(changes.place, fontsize=8, color=INK, loc="left")
        return
    drawn = axis.imshow(grid, cmap="inferno", alpha=0.7, extent=extent, vmin=0)
    bar = figure.colorbar(drawn, ax=axis, fraction=0.046, pad=0.02)
    bar.ax.tick_params(labelsize=6)
    axis.set_title(f"token change at {changes.place}", fontsize=8, color=INK, loc="left")


def _grid(values: Sequence[float], image: Image.Image) -> list[list[float]] | None:
    """Values in reading order as rows and columns of the image's own shape; None where they form no such grid."""
    count = len(values)
    sides = [(h, count // h) for h in range(1, count + 1) if count % h == 0]
    square = math.isqrt(count) ** 2 == count
    wanted = 1.0 if square else image.width / image.height  # most towers see a square, whatever the image's shape
    h, w = min(sides, key=lambda side: abs(math.log(side[1] / side[0] / wanted)), default=(0, 0))
    if not count or not 0.5 < w / h / wanted < 2:
        return None
    return [list(values[i * w : (i + 1) * w]) for i in range(h)]


def _chart(axis: Any, report: Report) -> None:
    """Bars: the norm of what was added over the norm of what was there, by layer; below, what else is told."""
    layers = dict(sorted(report.norm_ratio.layers.items())) if report.norm_ratio else {}
    names = ["input" if layer < 0 else f"layer {layer}" for layer in layers]
    bars = axis.barh(range(len(layers)), list(layers.values()), color=KEPT, height=0.6)
    axis.bar_label(bars, fmt="%.3f", fontsize=7, color=FAINT, padding=2)
    axis.set_yticks(range(len(layers)), names)
    axis.set_ylim(max(len(layers), BARS) + 0.5, -0.7)  # the first layer on top, and room for the notes
    axis.margins(x=0.3)
    axis.tick_params(labelsize=max(4, min(8, 120 // max(1, len(layers)))), length=0)
    axis.set_xticks([])
    for side in axis.spines.values():
        side.set_visible(False)
    title = "norm ratio by layer" if layers else "nothing was added"
    axis.set_title(title, fontsize=8, color=INK, loc="left")
    notes = "\n".join(_notes(report))
    axis.text(0, 0, notes, fontsize=7, color=INK, va="bottom", transform=axis.transAxes)


def _notes(report: Report) -> list[str]:
    """What else the report tells, a line each."""
    notes = []
    if report.tokens:
        notes.append(f"{report.tokens} tokens changed in {report.passes} pass{'es' * (report.passes != 1)}")
    if report.sinkhorn is not None:
        state = "converged" if report.sinkhorn.converged else "not converged"
        notes.append(f"transport: {report.sinkhorn.iterations} iterations, {state}")
    return notes + [f"{name}: {seconds:.3f} s" for name, seconds in report.seconds.items()]


def _thumbnail(axis: Any, image: Image.Image, crop: Crop, number: int) -> None:
    """One crop, its number and d_OT below."""
    _show(axis, image.crop(crop.box), framed=KEPT if crop.kept else LEFT_OUT, width=2.5 if crop.kept else 0.8)
    label = f"{number}  d {crop.distance:.3f}"
    axis.set_xlabel(label, fontsize=7, color=KEPT if crop.kept else FAINT, labelpad=2)


def _show(axis: Any, image: Image.Image, framed: str | None = None, width: float = 1.0) -> None:
    axis.imshow(image, cmap="gray" if image.mode == "L" else None)
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(framed is not None)
        side.set_edgecolor(framed or "none")
        side.set_linewidth(width)
