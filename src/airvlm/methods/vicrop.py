"""ViCrop (ICLR 2025): looks where one layer attends, crops the image there, and asks with the image and the crop.

A(prompt) is the attention of the prompt's last token to the visual tokens in one middle layer, mean over heads, as a
grid. The map A(question) / A("Write a general description of the image.") is searched for the square window with the
largest sum; of six window sizes the one whose best window exceeds its neighbors most, per cell, is cut out of the
original image. The answer comes from the prompt with both images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from torch import Tensor

from airvlm.inputs.prompts import image_token, prompt_text
from airvlm.methods.base import option
from airvlm.methods.templates.reask import Asked, ReAskMethod
from airvlm.methods.views import find_grid
from airvlm.runtime.intervention import Context, GenerateCall
from airvlm.runtime.probe import run_probe
from airvlm.runtime.row_images import split_positions

__all__ = ["ViCrop", "find_box"]

GENERAL = "Write a general description of the image."
LAYER = 14 / 32  # of LLaVA-1.5-7B
SCALES = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class ViCrop(ReAskMethod):
    """Crops where the model attends, and asks with both images."""

    name: ClassVar[str] = "vicrop"
    paper: ClassVar[str | None] = "MLLMs know where to look: ViCrop (ICLR 2025, arXiv 2502.17422)"
    summary: ClassVar[str] = "crops the image where the model attends, and asks again with image and crop"
    cost: ClassVar[str] = "2 prefills, and then 1 pass with twice the visual tokens"

    layer: int | None = option(None, "decoder layer whose attention is read; none is layer 14 of 32, scaled", low=0)
    size: int = option(336, "side of the smallest crop in pixels: what the vision tower sees at once", low=1)
    relative: bool = option(True, "divide by the attention for a general description")

    def span(self, depth: int) -> int:
        """The layer that is read in a decoder of `depth` layers."""
        layer = min(depth - 1, round(LAYER * depth)) if self.layer is None else self.layer
        if layer >= depth:
            raise ValueError(f"layer = {layer}, but the decoder has {depth} layers")
        return layer

    def reask(self, rows: Sequence[Asked], call: GenerateCall, context: Context) -> list[Asked | None]:
        boxes = self.find_boxes(rows, call, context)
        unit = _placeholder(context)
        answers: list[Asked | None] = []
        for row, own in zip(rows, boxes, strict=True):
            if all(box is None for box in own):
                answers.append(None)
                continue
            images: list[Image.Image] = []
            pieces = row.prompt.split(unit)
            prompt = pieces[0]
            for image, box, piece in zip(row.images, own, pieces[1:], strict=True):
                images += [image] if box is None else [image, image.crop(box)]
                prompt += (unit if box is None else unit + unit) + piece
            answers.append(Asked(tuple(images), prompt, {"boxes": [list(box) if box else None for box in own]}))
        return answers

    def find_boxes(self, rows: Sequence[Asked], call: GenerateCall, context: Context) -> list[list[Box | None]]:
        """The crop of every image of every row; None where the whole image is used."""
        maps = self._maps(rows, call.arguments, context)
        if self.relative:
            known = self._maps(rows, self._general_inputs(rows, call, context), context)
            maps = [[a / b for a, b in zip(own, other, strict=True)] for own, other in zip(maps, known, strict=True)]
        return [
            [find_box(attention, image.size, self.size) for attention, image in zip(own, row.images, strict=True)]
            for own, row in zip(maps, rows, strict=True)
        ]

    def _general_inputs(self, rows: Sequence[Asked], call: GenerateCall, context: Context) -> dict[str, Any]:
        processor, parts = context.processor, context.parts
        mark = image_token(processor, parts.image_token_id)
        texts = [prompt_text(processor, parts.family, mark, GENERAL, len(row.images)) for row in rows]
        options: dict[str, Any] = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        bos = getattr(processor.tokenizer, "bos_token", None)
        if bos and all(text.startswith(str(bos)) for text in texts):
            options["add_special_tokens"] = False
        images = [list(row.images) for row in rows]
        made = processor(text=texts, images=images if any(images) else None, **options)
        model: Any = call.model
        return {
            name: value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
            for name, value in made.items()
            if isinstance(value, Tensor)
        }

    def _maps(
        self, rows: Sequence[Asked], arguments: dict[str, Any], context: Context
    ) -> list[list[np.ndarray[Any, Any]]]:
        """The attention to every image of every row, as a grid."""
        layer = self.span(len(context.parts.layers))
        probe = run_probe(context.parts, arguments, attention=[layer])
        attention = probe.attention[layer].float().mean(1).cpu()  # (B, L)
        found = []
        for row, values, visual in zip(rows, attention, probe.visual.cpu(), strict=True):
            images = list(row.images)
            parts = split_positions(visual.nonzero().flatten(), images) if images else []
            maps = []
            for image, at in zip(images, parts or [], strict=parts is not None):
                grid = find_grid(context.parts, len(at), image.size)
                if grid is None:
                    break
                maps.append(values[at].view(grid).double().numpy())
            if len(maps) < len(images):
                raise ValueError(
                    f"{self.name}: the visual tokens of {context.parts.family} form no grid over an image, so there is "
                    "no map to crop by. Use a family with one view per image (LLaVA-1.5, Qwen-VL, Gemma 3)"
                )
            found.append(maps)
        return found


def find_box(attention: np.ndarray[Any, Any], size: tuple[int, int], side: int) -> Box | None:
    """The crop of an image; None if it is not larger than the smallest crop.

    Args:
        attention: (rows, columns), over the whole image.
        size: width and height of the image.
        side: of the smallest crop, in pixels.
    """
    rows, columns = attention.shape
    cell = size[0] / columns, size[1] / rows
    total = np.pad(attention, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    best: tuple[float, float, tuple[int, int], tuple[int, int]] | None = None
    for scale in SCALES:
        w, h = (max(1, min(int(side * scale / c), n)) for c, n in zip(cell, (columns, rows), strict=True))
        if w == columns and h == rows:
            if scale == 1:
                return None
            continue
        sums = total[h:, w:] - total[:-h, w:] - total[h:, :-w] + total[:-h, :-w]  # of every window
        y, x = (int(i) for i in np.unravel_index(sums.argmax(), sums.shape))
        beside = [(y, x - 1), (y, x + 1), (y - 1, x), (y + 1, x)]
        near = [sums[j, i] for j, i in beside if 0 <= j < sums.shape[0] and 0 <= i < sums.shape[1]]
        sharpness = float((sums[y, x] - np.mean(near)) / (w * h))
        if best is None or sharpness > best[0]:
            best = sharpness, side * scale, (x, y), (w, h)
    assert best is not None
    _, chosen, corner, cells = best
    box = []
    for at, c, n, limit in zip(corner, cell, cells, size, strict=True):
        half = chosen // 2
        middle = min(max(int(at * c + c * n / 2), half), max(half, limit - half))
        box.append((int(max(0, middle - half)), int(min(limit, middle + half))))
    (left, right), (top, bottom) = box
    return left, top, right, bottom


def _placeholder(context: Context) -> str:
    """The text of one image in a prompt, with the marks around it that the model's template writes."""
    mark = image_token(context.processor, context.parts.image_token_id)
    try:
        one, two = (prompt_text(context.processor, context.parts.family, mark, GENERAL, n) for n in (1, 2))
    except ValueError:
        return mark
    length, at = len(two) - len(one), one.index(mark)
    for start in range(max(0, at + len(mark) - length), at + 1):
        unit = one[start : start + length]
        if mark in unit and one[:start] + unit + one[start:] == two and unit.count(mark) == 1:
            return unit
    return mark
