"""Other views of the images that a model is shown, and where visual tokens lie in an image.

Shared by methods that look at an image twice: RITUAL, ED, ViCrop, and the controls that vote over views.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, Literal, get_args

from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from airvlm.models.families import FAMILIES
from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import Context
from airvlm.runtime.streams import EditImages

__all__ = ["SAFE", "VIEWS", "View", "edit_views", "find_grid", "original_images", "quadrants", "view"]

View = Literal["identity", "mirror", "flip", "rotate", "color", "blur", "crop"]
VIEWS: tuple[View, ...] = get_args(View)
SAFE: tuple[View, ...] = ("color", "blur", "crop")  # what is left of what stays left, and text can be read
SQUARE = ("gemma3",)  # families whose layout is tiles, but whose images have a square grid of tokens each


def view(image: Image.Image, kind: View, draw: random.Random) -> Image.Image:
    """A view of the same size.

    Args:
        image: the image.
        kind: the transformation; its strength is drawn as in RITUAL's code.
        draw: where random numbers come from.
    """
    if kind == "mirror":
        return ImageOps.mirror(image)
    if kind == "flip":
        return ImageOps.flip(image)
    if kind == "rotate":
        return image.rotate(draw.uniform(-180, 180))
    if kind == "color":
        return _jitter(image, draw)
    if kind == "blur":
        return image.filter(ImageFilter.GaussianBlur(draw.uniform(1.5, 2.0)))
    if kind == "crop":
        return image.resize(image.size, Image.Resampling.BILINEAR, box=_crop_box(image.size, draw))
    return image.copy()


def _jitter(image: Image.Image, draw: random.Random) -> Image.Image:
    """Brightness, contrast and saturation times 0 to 2, the hue moved by up to half a turn, in random order."""
    steps = ["brightness", "contrast", "saturation", "hue"]
    draw.shuffle(steps)
    enhancers = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "saturation": ImageEnhance.Color,
    }
    for step in steps:
        if step == "hue":
            hue, saturation, value = image.convert("HSV").split()
            shift = draw.randrange(256)
            image = Image.merge("HSV", (hue.point(lambda h, s=shift: (h + s) % 256), saturation, value)).convert("RGB")
        else:
            image = enhancers[step](image).enhance(draw.uniform(0, 2))
    return image


def _crop_box(size: tuple[int, int], draw: random.Random) -> tuple[int, int, int, int]:
    """A box of 8 to 100 % of the area whose sides are as 3:4 to 4:3."""
    width, height = size
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1.0)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = draw.randint(0, width - w), draw.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def quadrants(image: Image.Image) -> list[Image.Image]:
    """The four quarters in reading order, each enlarged to the size of the image."""
    width, height = image.size
    x, y = max(1, width // 2), max(1, height // 2)
    boxes = [(0, 0, x, y), (min(x, width - 1), 0, width, y), (0, min(y, height - 1), x, height)]
    boxes.append((min(x, width - 1), min(y, height - 1), width, height))
    # cut first: a resize with a box would take in what lies beyond its edges
    return [image.crop(box).resize(image.size, Image.Resampling.BICUBIC) for box in boxes]


def original_images(context: Context, name: str) -> list[list[tuple[Image.Image, str]]]:
    """The images of each row with their keys; raises if they are not known as images."""
    given = context.images.given
    if given is None or context.processor is None:
        raise ValueError(f"{name} needs the original images: method(model, processor, images=...)")
    rows = []
    for own in given:
        row = []
        for image in own:
            if not isinstance(image.pixels, Image.Image):
                raise ValueError(f"{name} needs the original images, not tensors of pixels")
            row.append((image.pixels, image.key))
        rows.append(row)
    return rows


def edit_views(name: str, context: Context, change: Callable[[Image.Image, str], Image.Image]) -> EditImages:
    """Image inputs of other views, for a stream.

    Args:
        name: the method's name, for errors.
        context: of the session.
        change: an image and its key -> a view of the same size.
    """

    def edit(given: dict[str, Any]) -> dict[str, Any]:
        rows = [[change(image, key) for image, key in own] for own in original_images(context, name) if own]
        family = FAMILIES.get(context.parts.family)
        nested = family is not None and family.nested
        images: Any = rows if nested else [image for row in rows for image in row]
        made = dict(context.processor.image_processor(images=images, return_tensors="pt")).get("pixel_values")
        old = given["pixel_values"]
        if not (isinstance(made, Tensor) and isinstance(old, Tensor) and made.shape == old.shape):
            raise ValueError(
                f"{name}: the image processor of {context.parts.family} does not give another view of an image the "
                "same shape as the original; this family is not supported"
            )
        return {**given, "pixel_values": made.to(old.device, old.dtype)}  # sizes and counts are the original's

    return edit


def find_grid(parts: ModelParts, tokens: int, size: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of an image's visual tokens in reading order; None where they form no such grid.

    Args:
        parts: of the model.
        tokens: visual tokens of the image.
        size: width and height of the image.
    """
    if parts.layout == "images" or parts.family in SQUARE:
        side = math.isqrt(tokens)
        return (side, side) if side * side == tokens else None
    if parts.layout != "patches":
        return None
    pairs = [(r, tokens // r) for r in range(1, tokens + 1) if tokens % r == 0]
    aspect = math.log(size[1] / size[0])
    return min(pairs, key=lambda pair: abs(math.log(pair[0] / pair[1]) - aspect))
