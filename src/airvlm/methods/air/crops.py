"""Crops of an image: where they lie, cutting them out, and the visual tokens that the model's encoder makes of them.

A layout is a pure function of the image's size (and a seed), so that the same image always gives the same crops. They
are cut from the original where it is given, else from the pixel tensor the model gets, encoded in batches and kept:
many questions about one image encode its crops once. Knows nothing of what the tokens are used for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from airvlm.hooks.row_images import AnyImage
from airvlm.images.cache import cache_of, serial, weights_state
from airvlm.images.shrink import LARGE, reduced, usable_side
from airvlm.models.anatomy import Anatomy

__all__ = ["Box", "CropTokens", "Cropping", "Layout", "crop_boxes", "crops", "encode_crops"]

Layout = Literal["windows", "random"]
OVERLAP = 1.5  # a window is this many times its cell, so that an object cut by one window is whole in another
SCALE = (0.08, 1.0)  # random crops: share of the image's area, as in the usual random resized crop
RATIO = (3 / 4, 4 / 3)  # random crops: width over height
CHUNK = 96  # crops in one encoder call, so that many images at once fit memory


class Box(NamedTuple):
    """A rectangle in pixels, right and lower edge exclusive, in the order Pillow's crop takes."""

    x0: int
    y0: int
    x1: int
    y1: int

    @property
    def size(self) -> tuple[int, int]:
        return self.x1 - self.x0, self.y1 - self.y0


def crop_boxes(size: tuple[int, int], n: int = 12, layout: Layout = "windows", seed: int = 0) -> list[Box]:
    """n boxes over an image of (width, height).

    "windows"  overlapping windows in one or more scales, coarse first; each scale covers the whole image
    "random"   random resized crops drawn from `seed`
    """
    W, H = size
    if W < 1 or H < 1:
        raise ValueError(f"an image of {W} x {H} pixels has nothing to crop")
    if n < 0:
        raise ValueError(f"patches = {n}: the number of crops cannot be negative")
    if layout == "windows":
        return [box for count in _scales(n) for box in _windows(W, H, count)]
    if layout == "random":
        draw = random.Random(f"{W}x{H}:{seed}")
        return [_random_crop(W, H, draw) for _ in range(n)]
    raise ValueError(f"crop layout {layout!r} is unknown; choose 'windows' or 'random'")


def crops(image: Image.Image, boxes: Sequence[Box]) -> list[Image.Image]:
    """The boxes cut out of the image, at the image's own resolution."""
    return [image.crop(box) for box in boxes]


def _scales(n: int) -> list[int]:
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
        # Rows share the windows as evenly as they can: 8 in 3 rows are 3, 3, 2.
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


@dataclass(frozen=True)
class Cropping:
    """Which crops are cut."""

    patches: int = 12  # M
    layout: Layout = "windows"
    seed: int = 0
    shrunk: bool = False  # cut from the image at the size the model sees it


@dataclass(frozen=True)
class CropTokens:
    """One image's M crops as tokens."""

    boxes: tuple[Box, ...]  # in the image's own pixels
    size: tuple[int, int]  # the image's width and height
    tokens: Tensor  # (M, N, d)
    mask: Tensor | None  # (M, N) False where a crop has fewer than N tokens; None when all have N

    @staticmethod
    def joined(crops: Sequence[CropTokens]) -> CropTokens:
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


@torch.no_grad()
def encode_crops(
    anatomy: Anatomy, processor: Any, images: Sequence[AnyImage], keys: Sequence[str], cropping: Cropping
) -> list[CropTokens]:
    """The crops of each image as tokens: known ones from the cache, all others in one batched encoding, in chunks."""
    cache, state = cache_of(anatomy.model), weights_state(anatomy.model)
    made_by = serial(getattr(processor, "image_processor", processor))
    found: dict[str, CropTokens] = {}
    fresh: dict[str, AnyImage] = {}
    for key, image in zip(keys, images, strict=True):
        encoded = cache.get("crops", (key, cropping, made_by, state))
        if encoded is not None:
            found[key] = encoded
        else:
            fresh[key] = image
    for key, encoded in zip(fresh, _encode(anatomy, processor, list(fresh.values()), cropping), strict=True):
        found[key] = encoded
        cache.put("crops", (key, cropping, made_by, state), encoded)
    return [found[key] for key in keys]


def _encode(anatomy: Anatomy, processor: Any, images: list[AnyImage], cropping: Cropping) -> list[CropTokens]:
    layouts = [crop_boxes(_size(image), cropping.patches, cropping.layout, cropping.seed) for image in images]
    cut: list[Any] = []
    for image, boxes in zip(images, layouts, strict=True):
        if isinstance(image, Tensor):
            cut += _tensor_crops(image, boxes)
        else:
            if cropping.shrunk:
                view, scaled = _shrunk(anatomy, processor, image, boxes)
            elif image.width * image.height < LARGE:
                view, scaled = image, boxes
            else:  # more detail than the encoder reads
                view, inside = reduced(image, boxes, usable_side(processor))
                scaled = [Box(*box) for box in inside]
            cut += crops(view, scaled)
    tokens: list[Tensor] = []  # (N, d) a crop
    for start in range(0, len(cut), CHUNK):
        chunk = cut[start : start + CHUNK]
        plain = isinstance(chunk[0], Tensor)
        inputs = {"pixel_values": torch.stack(chunk)} if plain else anatomy.pixels(processor, chunk)
        tokens += anatomy.encode(inputs)
    if len(tokens) != len(cut):
        raise RuntimeError(
            f"{anatomy.family}: {len(cut)} crops were encoded into {len(tokens)} groups of tokens; pass an Anatomy "
            "whose `pixels` and `encode` give one tensor per image"
        )
    own = iter(tokens)
    return [
        _packed(boxes, _size(image), [next(own) for _ in boxes], anatomy.hidden_size)
        for image, boxes in zip(images, layouts, strict=True)
    ]


def _packed(boxes: list[Box], size: tuple[int, int], tokens: list[Tensor], d: int) -> CropTokens:
    lengths = [len(own) for own in tokens]
    if not tokens:
        return CropTokens((), size, torch.zeros(0, 0, d), None)
    padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True)  # (M, N, d)
    mask = None
    if min(lengths) < max(lengths):
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        mask = mask.to(padded.device)
    return CropTokens(tuple(boxes), size, padded, mask)


def _size(image: AnyImage) -> tuple[int, int]:
    return (image.shape[-1], image.shape[-2]) if isinstance(image, Tensor) else image.size


def _tensor_crops(pixels: Tensor, boxes: list[Box]) -> list[Tensor]:
    """Windows of a (3, H, W) tensor, brought back to its size: the encoder knows no other."""
    size = pixels.shape[-2:]
    return [
        F.interpolate(
            pixels[None, :, box.y0 : box.y1, box.x0 : box.x1].float(), size, mode="bicubic", antialias=True
        )[0].to(pixels.dtype)
        for box in boxes
    ]


def _shrunk(
    anatomy: Anatomy, processor: Any, image: Image.Image, boxes: list[Box]
) -> tuple[Image.Image, list[Box]]:
    """The image at the size the model sees, and the same boxes in it: no detail that the model did not get."""
    pixels = anatomy.pixels(processor, [image]).get("pixel_values")
    if pixels is None or pixels.dim() < 4:
        raise ValueError(
            f"{anatomy.family} sees images at their own size: there is no shrunk one to crop from"
        )
    h, w = pixels.shape[-2:]
    W, H = image.size
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
