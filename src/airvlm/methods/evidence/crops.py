"""Crops of an image: where they are, cutting them out, and the visual tokens that the model's encoder makes of them.

A layout is a pure function of the image's size (and a seed), so that the same image always gives the same crops. They
are cut from the original where it is given, else from the pixel tensor that the model gets, encoded in batches and
cached: many questions about one image encode its crops once.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from airvlm.inputs.builder import OtherLayout, own_pixels
from airvlm.inputs.cache import cache_of, provenance
from airvlm.inputs.shrink import LARGE, reduce_for_crops, usable_side
from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import without_methods
from airvlm.runtime.row_images import AnyImage

__all__ = [
    "Box",
    "CropPlan",
    "CropQueue",
    "CropTokens",
    "Layout",
    "check_crop_size",
    "crop_boxes",
    "fit_area",
    "pad_crops",
]

Layout = Literal["windows", "random"]
OVERLAP = 1.5  # a window is this many times its cell, so that an object cut by one window is whole in another
SCALE = (0.08, 1.0)  # random crops: share of the image's area, as in the usual random resized crop
RATIO = (3 / 4, 4 / 3)  # random crops: width over height


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
    side: int | None = None  # pixels at which crops are encoded; None: as the processor makes them


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


class PreparedCrop(NamedTuple):
    """A crop whose pixels the image processor has made already."""

    size: tuple[int, int]  # its width and height in the image
    inputs: dict[str, Tensor]  # of the encoder


class CropQueue:
    """Crops of images that are not in the cache, on their way through the vision tower.

    Whoever calls the tower takes inputs by `take` and brings their tokens by `give`; `finish` encodes what is left and
    stores all. So crops share calls with their images (`InputBuilder.build`) and with the crops of other batch rows.

    Args:
        parts: of the model.
        processor: of the model.
        images: originals, or the pixels that the model gets, by their content keys.
        plan: which crops to cut.
        made_by: `provenance` of model and processor, if it is known already.
    """

    def __init__(
        self,
        parts: ModelParts,
        processor: Any,
        images: Mapping[str, AnyImage],
        plan: CropPlan,
        made_by: Hashable = None,
    ) -> None:
        check_crop_size(parts, plan)
        self.parts, self.processor, self.plan, self.made_by = parts, processor, plan, made_by
        self._images = images
        self._found: dict[str, CropTokens] | None = None  # by key; looked up when the first crop is needed
        self._waiting: list[AnyImage | PreparedCrop] = []  # crops that were not taken
        self._layouts: dict[str, list[Box]] = {}  # the boxes of each image that is not in the cache
        self._tokens: list[Tensor] = []  # (N, d) per crop that was encoded
        self._taken = 0  # crops in the tower now

    def prepare(self) -> None:
        """Cut the crops and make their pixels ahead, for another queue that needs them: in another thread, say."""
        cache, parts = cache_of(self.parts.model), self.parts
        if parts.layout == "tiles":
            return
        made_by = provenance(parts.model, self.processor)
        for key, image in self._images.items():
            name = (key, self.plan, made_by)
            if isinstance(image, Tensor) or cache.get("crops", name) is not None:
                continue

            def cut(missing: list[Any], image: Image.Image = image) -> list[list[PreparedCrop]]:
                crops = self._crops(image, self._boxes(image))
                pieces = own_pixels(self._pixels(crops), len(crops), parts.layout)
                return [[PreparedCrop(crop.size, piece) for crop, piece in zip(crops, pieces, strict=True)]]

            with suppress(OtherLayout):  # crops cannot be told apart: they are cut when they are needed
                cache.get_or_compute("pixels", [name], cut)

    def _boxes(self, image: AnyImage) -> list[Box]:
        return crop_boxes(_size(image), self.plan.num_crops, self.plan.layout, self.plan.seed)

    def take(self, room: int | None = None) -> Mapping[str, Tensor] | None:
        """The image inputs of the next crops, as many as fit into one call of the tower; None if there are none.

        Args:
            room: views that the call still holds; by default a whole call of `parts.max_crop_batch`, and at least one
                crop.
        """
        if self._found is None:
            self._found = self._look_up()
        if not self._waiting:
            return None
        left, count = self.parts.max_crop_batch if room is None else room, 0
        sizes = [_size(crop) for crop in self._waiting]
        for crop, views in zip(self._waiting, self.parts.count_views(sizes), strict=True):
            left -= views
            if left < 0 and (count or room is not None):
                break
            if type(crop) is not type(self._waiting[0]):  # prepared crops and others take different ways
                break
            count += 1
        if not count:
            return None
        batch, self._waiting, self._taken = self._waiting[:count], self._waiting[count:], count
        if isinstance(batch[0], Tensor):
            return {"pixel_values": torch.stack([crop for crop in batch if isinstance(crop, Tensor)])}
        if isinstance(batch[0], PreparedCrop):
            ready = [crop.inputs for crop in batch if isinstance(crop, PreparedCrop)]
            return {name: torch.cat([own[name] for own in ready]) for name in ready[0]}
        return self._pixels([crop for crop in batch if isinstance(crop, Image.Image)])

    def _pixels(self, crops: list[Image.Image]) -> Mapping[str, Tensor]:
        """The image inputs of crops, at the plan's size."""
        if self.plan.side is None:
            return self.parts.pixels(self.processor, crops)
        if self.parts.views_per_crop is None:
            return self.parts.pixels(self.processor, [fit_area(crop, self.plan.side) for crop in crops])
        return self.parts.pixels(_resizing_to(self.processor, self.plan.side), crops)

    def _look_up(self) -> dict[str, CropTokens]:
        """What is in the cache; the crops of all other images are cut."""
        cache = cache_of(self.parts.model)
        if self.made_by is None:
            self.made_by = provenance(self.parts.model, self.processor)
        found = {}
        for key, image in self._images.items():
            name = (key, self.plan, self.made_by)
            known = cache.get("crops", name)
            if known is not None:
                found[key] = known
                continue
            prepared = cache.get("pixels", name)
            self._layouts[key] = self._boxes(image)
            self._waiting += prepared or self._crops(image, self._layouts[key])
        return found

    def give(self, tokens: Sequence[Tensor]) -> None:
        """The tokens (N, d) of each crop that was taken last."""
        if len(tokens) != self._taken:
            raise RuntimeError(
                f"{self.parts.family}: {self._taken} crops were encoded into {len(tokens)} groups of tokens. Pass "
                "ModelParts whose `pixels` and `encode` give one tensor per image"
            )
        self._tokens += tokens

    @torch.no_grad()
    def finish(self) -> dict[str, CropTokens]:
        """The crops of every image, by its key; what was not taken is encoded now."""
        while (inputs := self.take()) is not None:
            with without_methods():  # kept for other calls, whatever method acts on the vision tower in this one
                self.give(self.parts.encode(inputs))
        assert self._found is not None
        own = iter(self._tokens)
        for key, boxes in self._layouts.items():
            tokens = [next(own) for _ in boxes]
            crops = self._found[key] = pad_crops(boxes, _size(self._images[key]), tokens, self.parts.hidden_size)
            cache_of(self.parts.model).put("crops", (key, self.plan, self.made_by), crops)
        self._layouts, self._tokens = {}, []
        return self._found

    def _crops(self, image: AnyImage, boxes: list[Box]) -> list[Any]:
        """The pixels of an image's crops."""
        if isinstance(image, Tensor):
            if self.plan.shrunk:
                raise ValueError("shrunk-crops: these crops are cut from the model's own pixels already; pass images=")
            return _crop_tensor(image, boxes, self.plan.side)
        source = image
        if self.plan.shrunk:
            source, boxes = _shrink_to_input(self.parts, self.processor, image, boxes)
        elif image.width * image.height >= LARGE:  # more detail than the encoder reads
            source, reduced = reduce_for_crops(image, boxes, usable_side(self.processor))
            boxes = [Box(*box) for box in reduced]
        return [source.crop(box) for box in boxes]


def check_crop_size(parts: ModelParts, plan: CropPlan) -> None:
    """Raise ValueError if the model's tower does not take crops of the plan's side."""
    side, step = plan.side, parts.crop_size_step
    if side is None or (step is not None and side % step == 0):
        return
    if step is None:
        raise ValueError(
            f"crop_size = {side}: the tower of this {parts.family} takes images of one size. Leave it unset"
        )
    raise ValueError(f"crop_size = {side}: the tower of this {parts.family} takes sides that are multiples of {step}")


def fit_area(crop: Image.Image, side: int) -> Image.Image:
    """The crop with at most side x side pixels, in its own proportions, for towers of native resolution."""
    w, h = crop.size
    factor = side / math.sqrt(w * h)
    if factor >= 1:
        return crop
    return crop.resize((max(1, round(w * factor)), max(1, round(h * factor))), Image.Resampling.BICUBIC)


def _resizing_to(processor: Any, side: int) -> Any:
    """The image processor, which resizes to a square of this side."""
    changed = copy.copy(getattr(processor, "image_processor", processor))
    square = type(changed.size)(height=side, width=side)
    changed.size = changed.crop_size = square
    return changed


def _size(image: AnyImage | PreparedCrop) -> tuple[int, int]:
    """Width and height."""
    return (image.shape[-1], image.shape[-2]) if isinstance(image, Tensor) else image.size


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


def _crop_tensor(pixels: Tensor, boxes: list[Box], side: int | None) -> list[Tensor]:
    """Windows of a (3, H, W) tensor, resized back to its size, or to a square where the encoder takes other sizes."""
    size = pixels.shape[-2:] if side is None else (side, side)
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
