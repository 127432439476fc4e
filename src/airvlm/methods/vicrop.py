"""ViCrop (ICLR 2025): looks where one layer attends, crops the image there, and asks with the image and the crop.

A(prompt) is the attention of the prompt's last token to the visual tokens in one middle layer, mean over heads, as a
grid. The map A(question) / A("Write a general description of the image.") is searched for the square window with the
largest sum; of six window sizes the one whose best window exceeds its neighbors most, per cell, is cut out of the
original image. The answer comes from the prompt with both images.

`map="focus"` searches FOCUS's map (NeurIPS 2025) instead, which needs no attention weights: how similar the value
features of an object's name are to those of the visual tokens, when the model is asked whether the object is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from airvlm.inputs.prompts import image_token, prompt_text
from airvlm.methods.base import option
from airvlm.methods.templates.reask import ReAskMethod, RowPrompt
from airvlm.methods.views import find_grid
from airvlm.runtime.intervention import Context, GenerateCall
from airvlm.runtime.probe import run_probe
from airvlm.runtime.row_images import split_positions

__all__ = ["ViCrop", "find_box", "object_relevance"]

GENERAL = "Write a general description of the image."
EXISTS = "Is there a {} in the image?"
NAMED = re.compile(r"\bis there (?:an? |any |the )?([\w' -]+?) in (?:the|this) (?:image|picture|photo)", re.IGNORECASE)
LAYER = 14 / 32  # of LLaVA-1.5-7B
SCALES = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
Box = tuple[int, int, int, int]  # left, top, right, bottom
Map = np.ndarray[Any, Any]  # (rows, columns) over one image


@dataclass(frozen=True)
class ViCrop(ReAskMethod):
    """Crops where the model attends, and asks with both images."""

    name: ClassVar[str] = "vicrop"
    paper: ClassVar[str | None] = "MLLMs know where to look: ViCrop (ICLR 2025, arXiv 2502.17422)"
    summary: ClassVar[str] = "crops the image where the model attends, and asks again with image and crop"
    cost: ClassVar[str] = "2 prefills (1 with FOCUS's map), and then 1 pass with twice the visual tokens"

    map: Literal["attention", "focus"] = option(
        "attention", "what is searched: attention, or FOCUS's similarity of value features"
    )
    layer: int | None = option(
        None, "decoder layer that is read (FOCUS: from this one on); none is layer 14 of 32, scaled", low=0
    )
    size: int = option(336, "side of the smallest crop in pixels: what the vision tower sees at once", low=1)
    relative: bool = option(True, "divide the attention by that for a general description")
    target: str = option("", "object that FOCUS's map looks for; by default that of 'Is there a ... in the image?'")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.map == "attention" and self.target:
            raise ValueError("target has no effect on the map of attention: give map=focus")
        if self.map == "focus" and not self.relative:
            raise ValueError("relative has no effect on FOCUS's map: leave it out")

    @property
    def unchanged_reason(self) -> str:  # type: ignore[override]  # an option decides
        whole = super().unchanged_reason
        return whole if self.map == "attention" else f"{whole}: it is small, or the question names no object (target=)"

    def span(self, depth: int) -> int:
        """The layer that is read in a decoder of `depth` layers."""
        layer = min(depth - 1, round(LAYER * depth)) if self.layer is None else self.layer
        if layer >= depth:
            raise ValueError(f"layer = {layer}, but the decoder has {depth} layers")
        return layer

    def reask(self, rows: Sequence[RowPrompt], call: GenerateCall, context: Context) -> list[RowPrompt | None]:
        boxes = self.find_boxes(rows, call, context)
        unit = _placeholder(context)
        answers: list[RowPrompt | None] = []
        for row, own in zip(rows, boxes, strict=True):
            if all(box is None for box in own):
                answers.append(None)
                continue
            images: list[Image.Image] = []
            pieces = row.prompt.split(unit)
            if len(pieces) != len(row.images) + 1:
                raise ValueError(
                    f"{self.name}: the prompt has {len(pieces) - 1} times {unit!r}, but {len(row.images)} images: "
                    f"{row.prompt[:80]!r}. Pass the model's own processor, or prompts=[...] with one per image"
                )
            prompt = pieces[0]
            for image, box, piece in zip(row.images, own, pieces[1:], strict=True):
                images += [image] if box is None else [image, image.crop(box)]
                prompt += (unit if box is None else unit + unit) + piece
            answers.append(RowPrompt(tuple(images), prompt, {"boxes": [list(box) if box else None for box in own]}))
        return answers

    def find_boxes(self, rows: Sequence[RowPrompt], call: GenerateCall, context: Context) -> list[list[Box | None]]:
        """The crop of every image of every row; None where the whole image is used."""
        if self.map == "focus":
            maps = self._relevance(rows, call, context)
        else:
            maps = self._attention(rows, call.arguments, context)
            if self.relative:
                questions = [GENERAL] * len(rows)
                known = self._attention(rows, _build_inputs(rows, questions, call, context), context)
                maps = [[a / b for a, b in zip(*both, strict=True)] for both in zip(maps, known, strict=True)]
        return [
            [find_box(one, image.size, self.size) for one, image in zip(own, row.images, strict=True)]
            if own
            else [None] * len(row.images)
            for own, row in zip(maps, rows, strict=True)
        ]

    def _attention(self, rows: Sequence[RowPrompt], arguments: dict[str, Any], context: Context) -> list[list[Map]]:
        """The attention of the prompt's last token to every image of every row."""
        layer = self.span(len(context.parts.layers))
        probe = run_probe(context.parts, arguments, attention=[layer])
        attention = probe.attention[layer].float().mean(1).cpu()  # (B, L)
        visual = probe.visual.cpu()
        return [self._grids(row, attention[i], visual[i], context) for i, row in enumerate(rows)]

    def _relevance(self, rows: Sequence[RowPrompt], call: GenerateCall, context: Context) -> list[list[Map]]:
        """FOCUS's map of every image of every row; none for a row that names no object."""
        maps: list[list[Map]] = [[] for _ in rows]
        named = {i: target for i, row in enumerate(rows) if row.images and (target := self._find_target(row.prompt))}
        if not named:
            return maps
        asked = [rows[i] for i in named]
        questions = [EXISTS.format(target) for target in named.values()]
        depth = len(context.parts.layers)
        layers = range(self.span(depth), depth)
        probe = run_probe(context.parts, _build_inputs(asked, questions, call, context), values=layers)
        for j, (i, target) in enumerate(named.items()):
            at = _locate(target, _text(rows[i], questions[j], context), probe.mask.shape[1], context)
            values = {layer: v[j].float().cpu() for layer, v in probe.values.items()}
            relevance = object_relevance(values, at, probe.visual[j].cpu(), probe.mask[j].bool().cpu())
            maps[i] = self._grids(rows[i], relevance, probe.visual[j].cpu(), context)
        return maps

    def _find_target(self, prompt: str) -> str:
        return self.target or next((found[1].strip() for found in reversed(list(NAMED.finditer(prompt)))), "")

    def _grids(self, row: RowPrompt, values: Tensor, visual: Tensor, context: Context) -> list[Map]:
        """Values (L,) at the visual tokens of a row, as one grid per image."""
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
        return maps


def object_relevance(values: Mapping[int, Tensor], target: Sequence[int], visual: Tensor, real: Tensor) -> Tensor:
    """FOCUS's map of an object, (L,), 0 where no visual token is.

    For each token of the object's name and each layer: the cosines between its value features and every token's, summed
    over heads, plus 1 for the token itself, divided by the sum over all tokens. These are summed over layers, divided
    by the sum over the visual tokens, and multiplied over the tokens of the name.

    Args:
        values: per layer (H, L, D).
        target: positions of the object's name.
        visual: (L,) True at visual tokens.
        real: (L,) False at padding.
    """
    total = torch.zeros(len(target), len(visual), dtype=torch.double)
    itself = nn.functional.one_hot(torch.tensor(target), len(visual))
    for v in values.values():
        x = nn.functional.normalize(v.double(), dim=-1).transpose(0, 1).flatten(1)  # (L, H * D)
        rows = (x[list(target)] @ x.T + itself) / 2 * real
        total += rows / rows.sum(-1, keepdim=True)
    total = total * visual
    return (total / total.sum(-1, keepdim=True)).prod(0)


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


def _text(row: RowPrompt, question: str, context: Context) -> str:
    """The prompt of a question about a row's images."""
    mark = image_token(context.processor, context.parts.image_token_id)
    return prompt_text(context.processor, context.parts.family, mark, question, len(row.images))


def _build_inputs(
    rows: Sequence[RowPrompt], questions: Sequence[str], call: GenerateCall, context: Context
) -> dict[str, Any]:
    """The model's inputs for other questions about the rows' images."""
    texts = [_text(row, question, context) for row, question in zip(rows, questions, strict=True)]
    options: dict[str, Any] = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
    bos = getattr(context.processor.tokenizer, "bos_token", None)
    if bos and all(text.startswith(str(bos)) for text in texts):
        options["add_special_tokens"] = False
    images = [list(row.images) for row in rows]
    made = context.processor(text=texts, images=images if any(images) else None, **options)
    model: Any = call.model
    return {
        name: value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
        for name, value in made.items()
        if isinstance(value, Tensor)
    }


def _locate(target: str, text: str, length: int, context: Context) -> list[int]:
    """Positions of the last mention of `target` in the tokens of a prompt, which ends at `length`."""
    start = text.rindex(target)
    # a space belongs to the word that follows it
    ends = (text[:start].rstrip(" "), text[: start + len(target)], text)
    before, upto, whole = (len(context.processor.tokenizer(end, add_special_tokens=False)["input_ids"]) for end in ends)
    return list(range(length - whole + before, length - whole + upto))


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
