"""Crops of an image: where they are, cutting them out, and the visual tokens that the model's encoder makes of them.

A layout is a pure function of the image's size (and a seed), so that the same image always gives the same crops. They
are cut from the original where it is given, else from the pixel tensor that the model gets, encoded in batches and
cached: many questions about one image encode its crops once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from airvlm.inputs.cache import cache_of
from airvlm.inputs.shrink import LARGE, reduce_for_crops, usable_side
from airvlm.models.parts import ModelParts
from airvlm.runtime.row_images import AnyImage

__all__ = ["Box", "CropPlan", "CropTokens", "Layout", "crop_boxes", "encode_crops", "pad_crops"]

Layout = Literal["windows", "random"]
OVERLAP = 1.5  # a window is this many times its cell, so that an object cut by one window is whole in another
SCALE = (0.08, 1.0)  # random crops: share of the image's area, as in the usual random resized crop
RATIO = (3 / 4, 4 / 3)  # random crops: width over height
MAX_BATCH = 96  # crops in one encoder call, so that many images at once fit into memory


class Box(NamedTuple):
    """A rectangle in pixels, right and lower edge exclusive, in the order of Pillow's crop."""

    x0: int
    y0: int
    x1: int
    y1: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.x1 - self.x0, self.y1 - self.y0


@dataclass(frozen=True)
class CropPlan:
    """Which crops are cut."""

    num_crops: int = 12  # M
    layout: Layout = "windows"
    seed: int = 0
    shrunk: bool = False  # cut from the image at the size at which the model sees it


@dataclass(frozen=True)
class CropTokens:
    """One image's M crops as tokens."""

    boxes: tuple[Box, ...]  # in the image's own pixels
    size: tuple[int, int]  # the image's width and height
    tokens: Tensor  # (M, N, d)
    mask: Tensor | None  # (M, N) False where a crop has fewer than N tokens; None when all have N

    @staticmethod
    def join(crops: Sequence[CropTokens]) -> CropTokens:
        """The crops of several images as those of one."""
        if len(crops) == 1:
            return crops[0]
        masks = [
            torch.ones(own.tokens.shape[:2], dtype=torch.bool, device=own.tokens.device)
            if own.mask is None
            else own.mask
            for own in crops
        ]
        tokens = nn.utils.rnn.pad_sequence([crop for own in crops for crop in own.tokens], batch_first=True)
        mask = nn.utils.rnn.pad_sequence([row for own in masks for row in own], batch_first=True)
        return CropTokens(tuple(box for own in crops for box in own.boxes), crops[0].size, tokens, mask)


def crop_boxes(size: tuple[int, int], n: int = 12, layout: Layout = "windows", seed: int = 0) -> list[Box]:
    """Boxes over an image.

    Args:
        size: the image's width and height.
        n: how many boxes.
        layout: "windows" are overlapping windows in one or more scales, coarse first, and each scale covers the whole
            image; "random" are random resized crops.
        seed: of random crops.
    """
    W, H = size
    if W < 1 or H < 1:
        raise ValueError(f"an image of {W} x {H} pixels cannot be cropped")
    if n < 0:
        raise ValueError(f"num_crops = {n}: the number of crops cannot be negative")
    if layout == "windows":
        return [box for count in _windows_per_scale(n) for box in _windows(W, H, count)]
    if layout == "random":
        draw = random.Random(f"{W}x{H}:{seed}")
        return [_random_crop(W, H, draw) for _ in range(n)]
    raise ValueError(f"unknown crop layout {layout!r}; choose windows or random")


def _windows_per_scale(n: int) -> list[int]:
    """Windows per scale, coarse to fine: twice as many at each finer one. 12 -> [4, 8]."""
    counts: list[int] = []
    while n - math.ceil(2 * n / 3) >= 4:
        counts.insert(0, math.ceil(2 * n / 3))
        n -= counts[0]
    return [n, *counts] if n else counts


def _windows(W: int, H: int, count: int) -> Iterator[Box]:
    """`count` windows in rows; the number of rows follows the aspect ratio, so that windows are nearly square."""
    rows = min(count, max(1, round(math.sqrt(count * H / W))))
    for row, (y0, y1) in enumerate(_spans(H, rows)):
        # Rows share the windows as evenly as possible: 8 in 3 rows are 3, 3, 2.
        columns = count // rows + (row < count % rows)
        for x0, x1 in _spans(W, columns):
            yield Box(x0, y0, x1, y1)


def _spans(length: int, n: int) -> list[tuple[int, int]]:
    """n overlapping spans of equal length, the first at 0, the last ending at `length`."""
    width = min(length, math.ceil(length * min(1.0, OVERLAP / n)))
    starts = [round(i * (length - width) / (n - 1)) for i in range(n)] if n > 1 else [0]
    return [(start, start + width) for start in starts]


def _random_crop(W: int, H: int, draw: random.Random) -> Box:
    area = W * H * draw.uniform(*SCALE)
    ratio = math.exp(draw.uniform(*(math.log(r) for r in RATIO)))
    # Clamped, not redrawn: a long thin image would never accept a square of its own area.
    w = min(W, max(1, round(math.sqrt(area * ratio))))
    h = min(H, max(1, round(math.sqrt(area / ratio))))
    x0, y0 = draw.randint(0, W - w), draw.randint(0, H - h)
    return Box(x0, y0, x0 + w, y0 + h)


# -- crops as visual tokens


@torch.no_grad()
def encode_crops(
    parts: ModelParts,
    processor: Any,
    images: Sequence[AnyImage],
    keys: Sequence[str],
    plan: CropPlan,
    made_by: Hashable,
) -> list[CropTokens]:
    """The crops of each image as tokens: known ones from the cache, all others encoded in shared batches.

    Args:
        parts: of the model.
        processor: of the model.
        images: originals, or the pixels that the model gets.
        keys: each image's content key.
        plan: which crops to cut.
        made_by: `provenance` of model and processor.
    """
    by_key = dict(zip(keys, images, strict=True))

    def encode(missing: list[Any]) -> list[CropTokens]:
        return _encode(parts, processor, [by_key[key[0]] for key in missing], plan)

    return cache_of(parts.model).get_or_compute("crops", [(key, plan, made_by) for key in keys], encode)


def _encode(parts: ModelParts, processor: Any, images: list[AnyImage], plan: CropPlan) -> list[CropTokens]:
    sizes = [(i.shape[-1], i.shape[-2]) if isinstance(i, Tensor) else i.size for i in images]
    layouts = [crop_boxes(size, plan.num_crops, plan.layout, plan.seed) for size in sizes]
    cut: list[Any] = []
    for image, boxes in zip(images, layouts, strict=True):
        if isinstance(image, Tensor):
            if plan.shrunk:
                raise ValueError("shrunk-crops: these crops are cut from the model's own pixels already; pass images=")
            cut += _crop_tensor(image, boxes)
            continue
        source: Image.Image = image
        if plan.shrunk:
            source, boxes = _shrink_to_input(parts, processor, image, boxes)
        elif image.width * image.height >= LARGE:  # more detail than the encoder reads
            source, reduced = reduce_for_crops(image, boxes, usable_side(processor))
            boxes = [Box(*box) for box in reduced]
        cut += [source.crop(box) for box in boxes]
    tokens: list[Tensor] = []  # (N, d) per crop
    for start in range(0, len(cut), MAX_BATCH):
        batch = cut[start : start + MAX_BATCH]
        plain = isinstance(batch[0], Tensor)
        tokens += parts.encode({"pixel_values": torch.stack(batch)} if plain else parts.pixels(processor, batch))
    if len(tokens) != len(cut):
        raise RuntimeError(
            f"{parts.family}: {len(cut)} crops were encoded into {len(tokens)} groups of tokens. Pass ModelParts whose "
            "`pixels` and `encode` give one tensor per image"
        )
    own = iter(tokens)
    return [
        pad_crops(boxes, size, [next(own) for _ in boxes], parts.hidden_size)
        for size, boxes in zip(sizes, layouts, strict=True)
    ]


def pad_crops(boxes: list[Box], size: tuple[int, int], tokens: list[Tensor], d: int) -> CropTokens:
    """One image's crops as a padded tensor, from the tokens (N, d) of each crop."""
    lengths = [len(own) for own in tokens]
    if not tokens:
        return CropTokens((), size, torch.zeros(0, 0, d), None)
    padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True)  # (M, N, d)
    mask = None
    if min(lengths) < max(lengths):
        mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).to(padded.device)
    return CropTokens(tuple(boxes), size, padded, mask)


def _crop_tensor(pixels: Tensor, boxes: list[Box]) -> list[Tensor]:
    """Windows of a (3, H, W) tensor, resized back to its size, which is the only one that the encoder takes."""
    size = pixels.shape[-2:]
    windows = [pixels[None, :, box.y0 : box.y1, box.x0 : box.x1].float() for box in boxes]
    return [F.interpolate(w, size, mode="bicubic", antialias=True)[0].to(pixels.dtype) for w in windows]


def _shrink_to_input(
    parts: ModelParts, processor: Any, image: Image.Image, boxes: list[Box]
) -> tuple[Image.Image, list[Box]]:
    """The image at the size at which the model sees it, and the same boxes in it: no detail that the model lacks."""
    pixels = parts.pixels(processor, [image]).get("pixel_values")
    if pixels is None or pixels.dim() < 4:
        raise ValueError(
            f"shrunk-crops: {parts.family} sees images at their own size, so there is nothing to shrink to"
        )
    h, w = pixels.shape[-2:]
    W, H = image.size
    if (w, h) == (W, H):
        raise ValueError(f"shrunk-crops: the image has the model's own size, {W} x {H}; shrinking changes nothing")
    scaled = [
        Box(
            min(w - 1, round(b.x0 * w / W)),
            min(h - 1, round(b.y0 * h / H)),
            max(1, round(b.x1 * w / W)),
            max(1, round(b.y1 * h / H)),
        )
        for b in boxes
    ]
    return image.resize((w, h), Image.Resampling.BICUBIC), scaled
