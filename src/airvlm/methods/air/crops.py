"""Crops of a picture: where they lie, and cutting them out of the original.

Every plan is a pure function of the picture's size (and a seed), so that the same picture always gives the same
crops. Knows nothing of models or tokens; how a picture is read from disk or the network is pictures.py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from PIL import Image

from airvlm.images.load import BadPicture, load_picture

__all__ = ["BadPicture", "Box", "Plan", "crop_boxes", "crops", "load_picture"]

Plan = Literal["windows", "random"]
OVERLAP = 1.5  # a window is this many times its cell, so that an object cut by one window is whole in another
SCALE = (0.08, 1.0)  # random crops: share of the picture's area, as in the usual random resized crop
RATIO = (3 / 4, 4 / 3)  # random crops: width over height


class Box(NamedTuple):
    """A rectangle in pixels, right and lower edge exclusive, in the order Pillow's crop takes."""

    x0: int
    y0: int
    x1: int
    y1: int

    @property
    def size(self) -> tuple[int, int]:
        return self.x1 - self.x0, self.y1 - self.y0


def crop_boxes(size: tuple[int, int], n: int = 12, plan: Plan = "windows", seed: int = 0) -> list[Box]:
    """n boxes over a picture of (width, height).

    "windows"  overlapping windows in one or more scales, coarse first; each scale covers the whole picture
    "random"   random resized crops drawn from `seed`
    """
    W, H = size
    if W < 1 or H < 1:
        raise ValueError(f"a picture of {W} x {H} pixels has nothing to crop")
    if n < 0:
        raise ValueError(f"patches = {n}: the number of crops cannot be negative")
    if plan == "windows":
        return [box for count in _scales(n) for box in _windows(W, H, count)]
    if plan == "random":
        draw = random.Random(f"{W}x{H}:{seed}")
        return [_random_crop(W, H, draw) for _ in range(n)]
    raise ValueError(f"crop plan {plan!r} is unknown; choose 'windows' or 'random'")


def crops(picture: Image.Image, boxes: Sequence[Box]) -> list[Image.Image]:
    """The boxes cut out of the picture, at the picture's own resolution."""
    return [picture.crop(box) for box in boxes]


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
    # Clamped, not redrawn: a long thin picture would never accept a square of its own area.
    w = min(W, max(1, round(math.sqrt(area * ratio))))
    h = min(H, max(1, round(math.sqrt(area / ratio))))
    x0, y0 = draw.randint(0, W - w), draw.randint(0, H - h)
    return Box(x0, y0, x0 + w, y0 + h)
