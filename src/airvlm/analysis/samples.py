"""The images of an analysis, with what is known about them, and their visual tokens.

The embedded emoji world brings its own scenes with names and boxes; a folder of images may bring names (--objects).
Knows nothing of any one analysis.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from airvlm import VLM, tiny
from airvlm.inputs.images import load_image
from airvlm.methods.evidence.crops import Box, crop_boxes

__all__ = ["LabelledImage", "crop_tokens", "grid", "load_samples", "visual_tokens"]

ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"}
CHUNK = 48  # images in one call of the encoder


@dataclass(frozen=True)
class LabelledImage:
    """One image, and what is known of it."""

    name: str
    path: Path
    objects: tuple[str, ...] | None = None  # what it shows; None where nobody said
    boxes: tuple[tuple[str, tuple[float, float, float, float]], ...] = ()  # names and places, in shares of the sides

    @property
    def image(self) -> Image.Image:
        return load_image(self.path)


def load_samples(vlm: VLM, count: int, folder: Path | None = None, objects: Path | None = None) -> list[LabelledImage]:
    """The first images of a folder, of those with labels where labels are given; else the emoji world's scenes."""
    if folder is None:
        if vlm.name != "tiny":
            raise ValueError("give --images FOLDER: only the emoji model brings images of its own (--model tiny)")
        return [
            LabelledImage(s.id, s.path, s.names, tuple((o.name, o.box) for o in s.objects))
            for s in tiny.scenes("calibration")[:count]
        ]
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder of images")
    known: dict[str, Any] = {} if objects is None else json.loads(objects.read_text(encoding="utf-8"))
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in ENDINGS)
    if objects is not None:  # of images that the file does not name nothing is known
        paths = [p for p in paths if p.name in known or p.stem in known]
    paths = paths[:count]
    if len(paths) < 2:
        named = "" if objects is None else f" that {objects} names"
        raise ValueError(f"{folder} holds {len(paths)} images{named}: an analysis compares at least two")
    labels = [(path, known.get(path.name, known.get(path.stem))) for path in paths]
    return [LabelledImage(p.stem, p, None if names is None else tuple(names)) for p, names in labels]


@torch.no_grad()
def visual_tokens(vlm: VLM, images: Sequence[Image.Image]) -> list[Tensor]:
    """Each image as the decoder reads it, (N, d) in float32."""
    found: list[Tensor] = []
    for start in range(0, len(images), CHUNK):
        pixels = vlm.parts.pixels(vlm.processor, list(images[start : start + CHUNK]))
        found += [tokens.float() for tokens in vlm.parts.encode(pixels)]
    return found


def crop_tokens(vlm: VLM, image: Image.Image, count: int = 12) -> tuple[list[Box], list[Tensor]]:
    """AIR's crops of an image: their boxes, and their tokens."""
    boxes = crop_boxes(image.size, count)
    return boxes, visual_tokens(vlm, [image.crop(box) for box in boxes])


def grid(count: int) -> tuple[int, int] | None:
    """Rows and columns of tokens that lie in a square grid; None where they cannot."""
    side = round(count**0.5)
    return (side, side) if side * side == count else None
