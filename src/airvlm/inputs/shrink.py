"""Shrink a large image once to what an encoder can use, before crops are cut from it.

A photograph of 12 million pixels has more detail in every crop than any encoder reads. Resizing each crop from the
original takes seconds and gives the same tokens up to resampling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from PIL import Image

__all__ = ["LARGE", "decode_side", "reduce_for_crops", "reduction_factor", "usable_side"]

OVERSAMPLING = 2  # a crop keeps this many pixels per pixel that the encoder reads, so that resampling decides
LARGE = 2_000_000  # pixels; below this, nothing is gained


def usable_side(processor: Any) -> int | None:
    """The longest side in pixels that an image processor ever produces; None if it does not resize."""
    settings = getattr(processor, "image_processor", processor)
    if settings is None or not getattr(settings, "do_resize", True):
        return None
    names = ("size", "crop_size", "max_image_size", "image_grid_pinpoints")
    # Where a family counts pixels here instead of a side (Qwen2-VL), the number is so large that nothing is shrunk.
    return max((n for name in names for n in _integers_in(getattr(settings, name, None))), default=None)


def decode_side(side: int | None) -> int | None:
    """The shorter side that an image needs so that crops of half its length still fill `side` pixels."""
    return None if side is None else 2 * OVERSAMPLING * side


def reduction_factor(size: tuple[int, int], crops: Iterable[Sequence[int]], side: int | None) -> int:
    """The integer factor by which an image can be reduced so that its smallest crop still fills `side` pixels."""
    if side is None or size[0] * size[1] < LARGE:
        return 1
    smallest = min((min(box[2] - box[0], box[3] - box[1]) for box in crops), default=0)
    return max(1, smallest // (OVERSAMPLING * side))


def reduce_for_crops(
    image: Image.Image, boxes: Sequence[Sequence[int]], side: int | None
) -> tuple[Image.Image, list[tuple[int, int, int, int]]]:
    """The image reduced as far as its crops allow, and the boxes in it."""
    k = reduction_factor(image.size, boxes, side)
    if k == 1:
        return image, [(box[0], box[1], box[2], box[3]) for box in boxes]
    small = image.reduce(k)  # a mean over k x k pixels
    return small, [
        (
            round(box[0] / k),
            round(box[1] / k),
            min(small.width, round(box[2] / k)),
            min(small.height, round(box[3] / k)),
        )
        for box in boxes
    ]


def _integers_in(value: Any) -> Iterator[int]:
    """All integers in a processor's setting."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        yield from _integers_in(list(value.values()))
    elif dataclasses.is_dataclass(value):  # transformers' SizeDict
        yield from _integers_in(list(vars(value).values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _integers_in(part)
