"""Views: the crops of a picture as the model's own visual tokens, encoded in batches and kept.

From the original pictures where they are given, else from the pixel tensor the model gets. Many questions about
one picture encode its crops once. Knows how pictures become tokens, and nothing of what the tokens are used for.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from airvlm.methods.air.crops import Box, Plan, crop_boxes, crops
from airvlm.models.anatomy import Anatomy

__all__ = ["Glance", "Picture", "Source", "ViewCache", "Views", "look", "picture_key"]

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

    @property
    def bytes(self) -> int:
        return self.tokens.numel() * self.tokens.element_size()


class ViewCache:
    """The views of recent pictures of one model: least recently used go first, bounded in bytes. Thread-safe."""

    def __init__(self, limit: int = 512 * 2**20) -> None:
        self.limit = limit  # bytes
        self.encoded = 0  # pictures whose crops were encoded
        self._kept: OrderedDict[Hashable, Views] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Views | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, views: Views) -> None:
        with self._lock:
            self.encoded += 1
            old = self._kept.pop(key, None)
            self._bytes += views.bytes - (old.bytes if old else 0)
            self._kept[key] = views
            while self._bytes > self.limit and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].bytes

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)


_CACHES: WeakKeyDictionary[nn.Module, ViewCache] = WeakKeyDictionary()  # gone with its model


def cache_of(model: nn.Module) -> ViewCache:
    """The cache that belongs to this model."""
    return _CACHES.setdefault(model, ViewCache())


def picture_key(picture: Picture) -> str:
    """Equal for equal content."""
    if isinstance(picture, Tensor):
        pixels = picture.detach().cpu().contiguous().view(torch.uint8)
        content, form = pixels.numpy().tobytes(), f"{picture.dtype}{tuple(picture.shape)}"
    else:
        content, form = picture.tobytes(), f"{picture.mode}{picture.size}"
    return hashlib.blake2b(content, key=form.encode()[:64], digest_size=16).hexdigest()


@torch.no_grad()
def look(
    anatomy: Anatomy, processor: Any, pictures: Sequence[Picture], keys: Sequence[str], glance: Glance
) -> list[Views]:
    """The views of each picture: known ones from the cache, all others in one batched encoding, in chunks."""
    cache, state = cache_of(anatomy.model), _state(anatomy.model)
    found: dict[str, Views] = {}
    fresh: dict[str, Picture] = {}
    for key, picture in zip(keys, pictures, strict=True):
        views = cache.get((key, glance, state))
        if views is not None:
            found[key] = views
        else:
            fresh[key] = picture
    for key, views in zip(fresh, _encode(anatomy, processor, list(fresh.values()), glance), strict=True):
        found[key] = views
        cache.put((key, glance, state), views)
    return [found[key] for key in keys]


def _state(model: nn.Module) -> Hashable:
    """Changes when the weights do: in place (training), by conversion, or by switching an adapter."""
    versions, kinds = 0, set()
    for parameter in model.parameters():
        versions += parameter._version
        kinds.add((parameter.dtype, parameter.device))
    adapters = tuple(
        (str(module.active_adapters), bool(module.disable_adapters))
        for module in model.modules()
        if hasattr(module, "disable_adapters") and not callable(module.disable_adapters)  # PEFT's own layers
    )
    return versions, frozenset(kinds), hash(adapters)


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
