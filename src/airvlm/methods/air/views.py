"""Views: the crops of a picture as the model's own visual tokens, encoded in batches and kept.

From the original pictures where they are given, else from the pixel tensor the model gets. Many questions about
one picture encode its crops once. Knows how pictures become tokens, and nothing of what the tokens are used for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from airvlm.images.cache import cache_of, serial, weights_state
from airvlm.methods.air.crops import Box, Plan, crop_boxes, crops
from airvlm.models.anatomy import Anatomy

__all__ = ["Glance", "Picture", "Source", "Views", "look"]

Source = Literal["original", "shrunk", "other"]
Picture = Image.Image | Tensor  # an original, or the (3, H, W) pixels that the model gets
CHUNK = 96  # crops in one encoder call, so that many pictures at once fit memory


@dataclass(frozen=True)
class Glance:
    """Which crops are looked at."""

    patches: int = 12  # M
    plan: Plan = "windows"
    seed: int = 0
    shrunk: bool = False  # cut from the picture at the size the model sees it


@dataclass(frozen=True)
class Views:
    """One picture's M crops as tokens."""

    boxes: tuple[Box, ...]  # in the picture's own pixels
    size: tuple[int, int]  # the picture's width and height
    tokens: Tensor  # (M, N, d)
    mask: Tensor | None  # (M, N) False where a crop has fewer than N tokens; None when all have N


@torch.no_grad()
def look(
    anatomy: Anatomy, processor: Any, images: Sequence[Picture], keys: Sequence[str], glance: Glance
) -> list[Views]:
    """The views of each image: known ones from the cache, all others in one batched encoding, in chunks."""
    cache, state = cache_of(anatomy.model), weights_state(anatomy.model)
    made_by = serial(getattr(processor, "image_processor", processor))
    found: dict[str, Views] = {}
    fresh: dict[str, Picture] = {}
    for key, image in zip(keys, images, strict=True):
        views = cache.get("crops", (key, glance, made_by, state))
        if views is not None:
            found[key] = views
        else:
            fresh[key] = image
    for key, views in zip(fresh, _encode(anatomy, processor, list(fresh.values()), glance), strict=True):
        found[key] = views
        cache.put("crops", (key, glance, made_by, state), views)
    return [found[key] for key in keys]


def _encode(anatomy: Anatomy, processor: Any, pictures: list[Picture], glance: Glance) -> list[Views]:
    plans = [crop_boxes(_size(picture), glance.patches, glance.plan, glance.seed) for picture in pictures]
    cut: list[Any] = []
    for picture, boxes in zip(pictures, plans, strict=True):
        if isinstance(picture, Tensor):
            cut += _tensor_crops(picture, boxes)
        else:
            view, scaled = (
                (picture, boxes) if not glance.shrunk else _shrunk(anatomy, processor, picture, boxes)
            )
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
            "whose `pixels` and `encode` give one tensor per picture"
        )
    own = iter(tokens)
    return [
        _packed(boxes, _size(picture), [next(own) for _ in boxes], anatomy.hidden_size)
        for picture, boxes in zip(pictures, plans, strict=True)
    ]


def _packed(boxes: list[Box], size: tuple[int, int], tokens: list[Tensor], d: int) -> Views:
    lengths = [len(own) for own in tokens]
    if not tokens:
        return Views((), size, torch.zeros(0, 0, d), None)
    padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True)  # (M, N, d)
    mask = None
    if min(lengths) < max(lengths):
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        mask = mask.to(padded.device)
    return Views(tuple(boxes), size, padded, mask)


def _size(picture: Picture) -> tuple[int, int]:
    return (picture.shape[-1], picture.shape[-2]) if isinstance(picture, Tensor) else picture.size


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
    anatomy: Anatomy, processor: Any, picture: Image.Image, boxes: list[Box]
) -> tuple[Image.Image, list[Box]]:
    """The picture at the size the model sees, and the same boxes in it: no detail that the model did not get."""
    pixels = anatomy.pixels(processor, [picture]).get("pixel_values")
    if pixels is None or pixels.dim() < 4:
        raise ValueError(
            f"{anatomy.family} sees pictures at their own size: there is no shrunk one to crop from"
        )
    h, w = pixels.shape[-2:]
    W, H = picture.size
    scaled = [
        Box(
            min(w - 1, round(b.x0 * w / W)),
            min(h - 1, round(b.y0 * h / H)),
            max(1, round(b.x1 * w / W)),
            max(1, round(b.y1 * h / H)),
        )
        for b in boxes
    ]
    return picture.resize((w, h), Image.Resampling.BICUBIC), scaled
