"""A drawing of what a method did to one image: the crops it used and left out, the visual tokens it changed, and the
norm ratio per layer.

Drawn with matplotlib's Figure, without its global state: servers draw in threads.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from airvlm.report import Crop, Report

if TYPE_CHECKING:
    from torch import Tensor

    from airvlm.methods.base import Method
    from airvlm.vlm import VLM

__all__ = ["TokenChanges", "draw_report", "measure_token_changes"]

INPUT = -1  # the decoder's input, in place of a layer's number
INK, FAINT, USED, UNUSED = "#20242a", "#969ca4", "#00915a", "#b2b6bc"
COLUMNS = 7  # thumbnails per row
WIDTH = 8.0  # inches
DPI = 100
MIN_BARS = 6  # bars that the chart has room for at least
TALLEST, FLATTEST = 2.0, 0.25  # height over width of a panel; an image beyond is letterboxed


# -- measuring


@dataclass(frozen=True)
class TokenChanges:
    """How much each visual token of a prompt was changed: norm of the difference over the norm before."""

    layer: int | None  # first layer whose output differs; -1 is the decoder's input, None: nothing differs
    ratios: tuple[tuple[float, ...], ...]  # per image, one value per token in reading order

    @property
    def place(self) -> str:
        """Where it was measured, in words."""
        if self.layer is None:
            return "no visual token was changed"
        return "the decoder's input" if self.layer == INPUT else f"layer {self.layer}"


def measure_token_changes(vlm: VLM, images: Sequence[Image.Image], question: str, method: Method) -> TokenChanges:
    """Compare a pass over the prompt without the method and one with it.

    The change is measured at the first place in the decoder where the two differ: its input, or a layer's output.

    Args:
        vlm: the model.
        images: of one prompt.
        question: of the prompt.
        method: what is measured.
    """
    import torch

    row = vlm.builder.read(list(images), question)
    inputs = vlm.builder.build([row], pixels=True)
    visual = inputs["input_ids"][0] == vlm.parts.image_token_id  # (L,)
    with torch.no_grad():
        before = _visual_states(vlm, inputs, visual)
        with method(vlm.model, vlm.processor, images=[list(images)], parts=vlm.parts):
            after = _visual_states(vlm, inputs, visual)
    ratio = torch.zeros(int(visual.sum()))
    for layer in sorted(before):
        old, new = before[layer].float(), after[layer].float()  # (K, d)
        ratio = (new - old).norm(dim=-1) / old.norm(dim=-1).clamp_min(1e-30)
        if bool((ratio > 0).any()):
            return TokenChanges(layer, _split_by_image(ratio, visual, len(images)))
    return TokenChanges(None, _split_by_image(ratio, visual, len(images)))


def _visual_states(vlm: VLM, inputs: dict[str, Any], visual: Tensor) -> dict[int, Tensor]:
    """The visual tokens (K, d) at the decoder's input and after each layer, in one pass."""
    from airvlm.runtime.intervention import DISABLED

    states: dict[int, Tensor] = {}

    def keep(layer: int, h: Tensor) -> None:
        if not DISABLED.get():  # a method's second pass, over another image say, is not what the answer is made from
            states[layer] = h[0, visual.to(h.device)].detach().cpu()

    with ExitStack() as stack:
        hook = vlm.parts.decoder.register_forward_pre_hook(
            lambda _, __, options: keep(INPUT, options["inputs_embeds"]), with_kwargs=True
        )
        stack.callback(hook.remove)
        for number, module in enumerate(vlm.parts.layers):
            hook = module.register_forward_hook(
                lambda _, __, output, number=number: keep(number, output[0] if isinstance(output, tuple) else output)
            )
            stack.callback(hook.remove)
        vlm.model(**inputs, use_cache=False)
    return states


def _split_by_image(ratio: Tensor, visual: Tensor, images: int) -> tuple[tuple[float, ...], ...]:
    """The values of each image's tokens: runs of image tokens, or equal shares where images touch."""
    positions = visual.nonzero().flatten().cpu()
    gaps = (positions.diff() != 1).nonzero().flatten() + 1
    if images == 1:
        parts = [ratio]
    elif len(gaps) + 1 == images:
        parts = list(ratio.tensor_split(gaps))
    else:
        parts = list(ratio.tensor_split(images))
    return tuple(tuple(part.tolist()) for part in parts)


# -- drawing


def draw_report(image: Image.Image, report: Report, which: int = 0, changes: TokenChanges | None = None) -> Image.Image:
    """Draw what a report tells of one image.

    Args:
        image: the image.
        report: of one row.
        which: the image's number, if the row has several.
        changes: of the visual tokens; without them no heat map is drawn.
    """
    crops = report.crops[which] if report.crops else ()
    grid = None if changes is None else token_grid(changes.ratios[which], image)
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
    _draw_boxes(figure.add_subplot(upper[0]), image, crops)
    if grid is not None and changes is not None:
        _draw_changes(figure, figure.add_subplot(upper[1]), image, grid, changes)
    _draw_norms(figure.add_subplot(upper[panels - 1]), report)
    if lines:
        lower = outer[1].subgridspec(lines, COLUMNS, wspace=0.08, hspace=0.35)
        for place, number in enumerate(sorted(range(len(crops)), key=lambda i: crops[i].distance)):
            axis = figure.add_subplot(lower[place // COLUMNS, place % COLUMNS])
            _draw_thumbnail(axis, image, crops[number], number + 1)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    content.seek(0)
    return Image.open(content).convert("RGB")


def _title(report: Report, crops: Sequence[Crop]) -> str:
    name = str(report.method.get("name", "method"))
    if not report.fired:
        return f"{name}: did not act ({report.reason})"
    return f"{name}: used {sum(crop.kept for crop in crops)} of {len(crops)} crops" if crops else f"{name}: acted"


def _draw_boxes(axis: Any, image: Image.Image, crops: Sequence[Crop]) -> None:
    """The image with every crop outlined; unused crops first, so that the used ones lie on top."""
    _draw_image(axis, image)
    # the nearest crops are drawn strongest: if all are used, the reader still sees an order
    rank = {id(crop): number for number, crop in enumerate(sorted(crops, key=lambda crop: crop.distance))}
    for number, crop in sorted(enumerate(crops, 1), key=lambda item: (item[1].kept, -rank[id(item[1])])):
        strong = crop.kept and rank[id(crop)] < max(1, len(crops) // 4)
        x0, y0, x1, y1 = crop.box
        color, alpha = (USED, 1.0 if strong else 0.5) if crop.kept else (UNUSED, 1.0)
        width = 2.5 if strong else 1.5 if crop.kept else 0.8
        box = Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0, fill=False, edgecolor=color, alpha=alpha, lw=width)
        axis.add_patch(box)
        if strong:
            label = {"facecolor": USED, "edgecolor": "none", "pad": 1.5}
            axis.text(x0, y0, f"{number}  {crop.distance:.3f}", fontsize=7, color="white", va="top", bbox=label)
    title = "crops (green: used), nearest with distance" if crops else "the image"
    axis.set_title(title, fontsize=8, color=INK, loc="left")


def _draw_changes(
    figure: Figure, axis: Any, image: Image.Image, grid: list[list[float]], changes: TokenChanges
) -> None:
    """A heat map of the token changes over the image."""
    _draw_image(axis, image.convert("L"))
    if changes.layer is None:
        axis.set_title(changes.place, fontsize=8, color=INK, loc="left")
        return
    extent = (-0.5, image.width - 0.5, image.height - 0.5, -0.5)
    heat = axis.imshow(grid, cmap="inferno", alpha=0.7, extent=extent, vmin=0)
    figure.colorbar(heat, ax=axis, fraction=0.046, pad=0.02).ax.tick_params(labelsize=6)
    axis.set_title(f"token change at {changes.place}", fontsize=8, color=INK, loc="left")


def token_grid(values: Sequence[float], image: Image.Image) -> list[list[float]] | None:
    """Values in reading order as rows and columns that fit the image; None if they form no such grid."""
    count = len(values)
    sides = [(h, count // h) for h in range(1, count + 1) if count % h == 0]
    square = math.isqrt(count) ** 2 == count
    wanted = 1.0 if square else image.width / image.height  # most towers see a square, whatever the image's shape
    h, w = min(sides, key=lambda side: abs(math.log(side[1] / side[0] / wanted)), default=(0, 0))
    if not count or not 0.5 < w / h / wanted < 2:
        return None
    return [list(values[i * w : (i + 1) * w]) for i in range(h)]


def _draw_norms(axis: Any, report: Report) -> None:
    """Bars of the norm ratio per layer; below them what else the report tells."""
    layers = dict(sorted(report.norm_ratio.layers.items())) if report.norm_ratio else {}
    names = ["input" if layer < 0 else f"layer {layer}" for layer in layers]
    bars = axis.barh(range(len(layers)), list(layers.values()), color=USED, height=0.6)
    axis.bar_label(bars, fmt="%.3f", fontsize=7, color=FAINT, padding=2)
    axis.set_yticks(range(len(layers)), names)
    axis.set_ylim(max(len(layers), MIN_BARS) + 0.5, -0.7)  # the first layer on top, and room for the notes
    axis.margins(x=0.3)
    axis.tick_params(labelsize=max(4, min(8, 120 // max(1, len(layers)))), length=0)
    axis.set_xticks([])
    for side in axis.spines.values():
        side.set_visible(False)
    title = "norm of the change / norm before" if layers else "no norm was measured"
    axis.set_title(title, fontsize=8, color=INK, loc="left")
    axis.text(0, 0, "\n".join(_notes(report)), fontsize=7, color=INK, va="bottom", transform=axis.transAxes)


def _notes(report: Report) -> list[str]:
    notes = []
    if report.tokens:
        notes.append(f"{report.tokens} tokens changed in {report.passes} pass{'es' * (report.passes != 1)}")
    if report.sinkhorn is not None:
        state = "converged" if report.sinkhorn.converged else "not converged"
        notes.append(f"transport: {report.sinkhorn.iterations} iterations, {state}")
    return notes + [f"{name}: {seconds:.3f} s" for name, seconds in report.seconds.items()]


def _draw_thumbnail(axis: Any, image: Image.Image, crop: Crop, number: int) -> None:
    """One crop, its number and distance below."""
    _draw_image(axis, image.crop(crop.box), frame=USED if crop.kept else UNUSED, width=2.5 if crop.kept else 0.8)
    label = f"{number}  d {crop.distance:.3f}"
    axis.set_xlabel(label, fontsize=7, color=USED if crop.kept else FAINT, labelpad=2)


def _draw_image(axis: Any, image: Image.Image, frame: str | None = None, width: float = 1.0) -> None:
    axis.imshow(image, cmap="gray" if image.mode == "L" else None)
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(frame is not None)
        side.set_edgecolor(frame or "none")
        side.set_linewidth(width)
