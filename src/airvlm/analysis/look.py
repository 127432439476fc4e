"""A drawing of what a method looked at: the picture and its crops, each with d_OT, the kept ones marked, and beside
them the norm ratio by layer.

Drawn with Pillow alone. Reads a Report; knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont, ImageOps

from airvlm.report import Crop, Report

__all__ = ["draw_look"]

PAPER, INK, FAINT = (255, 255, 255), (32, 36, 42), (150, 156, 164)
KEPT, LEFT_OUT = (0, 145, 90), (178, 182, 188)
SIDE = 480  # longest side of the picture in the drawing
THUMB = 104  # side of a crop's thumbnail
GAP = 16
CHART = 220  # width of the chart


def draw_look(picture: Image.Image, report: Report, which: int = 0) -> Image.Image:
    """The drawing for one picture of a row's report (`which`, where the row has several)."""
    crops = report.crops[which] if report.crops else ()
    scale = SIDE / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    columns = max(1, (SIDE + GAP + CHART + 8) // (THUMB + 8))
    rows = -(-len(crops) // columns)
    width = 2 * GAP + SIDE + GAP + CHART
    top = 2 * GAP + 20
    grid = top + size[1] + GAP
    drawing = Image.new("RGB", (width, grid + rows * (THUMB + 26) + GAP), PAPER)
    pen = ImageDraw.Draw(drawing)
    pen.text((GAP, GAP), _title(report, crops), fill=INK, font=_font(15))
    drawing.paste(_with_boxes(picture.resize(size, Image.Resampling.LANCZOS), crops, scale), (GAP, top))
    notes = _notes(report)
    _chart(pen, report, (GAP + SIDE + GAP, top, width - GAP, top + size[1] - 20 * len(notes) - GAP))
    for i, note in enumerate(notes):
        beside = (GAP + SIDE + GAP, top + size[1] - 20 * (len(notes) - i))
        pen.text(beside, note, fill=INK, font=_font(12))
    # nearest first: the reader sees where the line was drawn
    for place, number in enumerate(sorted(range(len(crops)), key=lambda i: crops[i].distance)):
        corner = (GAP + place % columns * (THUMB + 8), grid + place // columns * (THUMB + 26))
        _thumbnail(drawing, picture, crops[number], number + 1, corner)
    return drawing


def _title(report: Report, crops: Sequence[Crop]) -> str:
    name = str(report.method.get("name", "method"))
    kept = sum(crop.kept for crop in crops)
    did = f"kept {kept} of {len(crops)} crops" if report.fired else f"did not act: {report.reason}"
    return f"{name}: {did}"


def _notes(report: Report) -> list[str]:
    """What else the report tells, a line each."""
    notes = []
    if report.tokens:
        notes.append(f"{report.tokens} tokens changed in {report.passes} pass{'es' * (report.passes != 1)}")
    if report.sinkhorn is not None:
        state = "converged" if report.sinkhorn.converged else "not converged"
        notes.append(f"transport: {report.sinkhorn.iterations} iterations, {state}")
    notes += [f"{name}: {seconds:.3f} s" for name, seconds in report.seconds.items()]
    return notes


def _with_boxes(view: Image.Image, crops: Sequence[Crop], scale: float) -> Image.Image:
    """The picture with every crop outlined; those left out first, so that the kept ones lie on top."""
    pen = ImageDraw.Draw(view, "RGBA")
    # the nearest crops strongest: where all are kept, the eye still finds what mattered
    near = {id(crop): rank for rank, crop in enumerate(sorted(crops, key=lambda crop: crop.distance))}
    order = sorted(enumerate(crops, 1), key=lambda item: (item[1].kept, -near[id(item[1])]))
    for number, crop in order:
        strong = near[id(crop)] < max(1, len(crops) // 4)
        x0, y0, x1, y1 = (round(edge * scale) for edge in crop.box)
        box = (x0, y0, max(x0, x1 - 1), max(y0, y1 - 1))
        line = (*KEPT, 255 if strong else 120) if crop.kept else (*LEFT_OUT, 255)
        pen.rectangle(box, outline=line, width=4 if crop.kept and strong else 2 if crop.kept else 1)
        if crop.kept:
            label = f"{number}  {crop.distance:.3f}"
            # a label for each box, at a height of its own, so that boxes with a common corner stay readable
            at = (x0 + 4, min(y0 + 4 + 18 * (number % 3), view.height - 18))
            frame = pen.textbbox(at, label, font=_font(12))
            pen.rectangle(
                (frame[0] - 3, frame[1] - 2, frame[2] + 3, frame[3] + 2), fill=(*KEPT, 255 if strong else 150)
            )
            pen.text(at, label, fill=(255, 255, 255), font=_font(12))
    return view


def _thumbnail(
    drawing: Image.Image, picture: Image.Image, crop: Crop, number: int, corner: tuple[int, int]
) -> None:
    """One crop, fitted into a square, its number and d_OT below."""
    pen = ImageDraw.Draw(drawing)
    view = picture.crop(crop.box)
    view = ImageOps.contain(view, (THUMB, THUMB), Image.Resampling.LANCZOS)
    x, y = corner
    drawing.paste(view, (x + (THUMB - view.width) // 2, y + (THUMB - view.height) // 2))
    colour = KEPT if crop.kept else LEFT_OUT
    pen.rectangle((x, y, x + THUMB - 1, y + THUMB - 1), outline=colour, width=3 if crop.kept else 1)
    label = f"{number}  d {crop.distance:.3f}" + ("  kept" if crop.kept else "")
    pen.text((x, y + THUMB + 4), label, fill=KEPT if crop.kept else FAINT, font=_font(12))


def _chart(pen: ImageDraw.ImageDraw, report: Report, box: tuple[int, int, int, int]) -> None:
    """Bars: the norm of what was added over the norm of what was there, by layer."""
    x0, y0, x1, y1 = box
    pen.text((x0, y0), "norm ratio by layer", fill=INK, font=_font(13))
    layers = dict(sorted(report.norm_ratio.layers.items())) if report.norm_ratio else {}
    if not layers:
        pen.text((x0, y0 + 24), "nothing was added", fill=FAINT, font=_font(12))
        return
    largest = max(layers.values()) or 1.0
    step = max(4.0, min(26.0, (y1 - y0 - 30) / len(layers)))
    names = {layer: "input" if layer < 0 else f"layer {layer}" for layer in layers}
    label, value = 58, 46  # room for the name before a bar and the figure after it
    for i, (layer, ratio) in enumerate(layers.items()):
        y = y0 + 28 + i * step
        length = (x1 - x0 - label - value) * ratio / largest
        size = max(7, min(12, round(step * 0.6)))
        pen.text((x0, y), names[layer], fill=INK, font=_font(size))
        pen.rectangle((x0 + label, y + 1, x0 + label + max(1.0, length), y + max(2.0, step * 0.7)), fill=KEPT)
        pen.text((x0 + label + length + 6, y), f"{ratio:.3f}", fill=FAINT, font=_font(size))


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
