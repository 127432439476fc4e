"""An image's pixels as the model wants them, kept: many questions about one image resize and normalise it once.

Only where the image processor gives each image pixels of its own: one row of `pixel_values` an image, or patches
counted by `image_grid_thw`. Where it pads images to each other, cuts tiles or counts crops, it is called as ever.
This file knows nothing of models, prompts or features.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import BatchFeature

from airvlm.images.cache import ImageCache, serial
from airvlm.images.features import per_image
from airvlm.models.families import Layout

__all__ = ["KeptPixels"]


class KeptPixels:
    """Processed images, for one processor."""

    def __init__(self, cache: ImageCache, layout: Layout) -> None:
        self.cache = cache
        self.layout = layout
        self.possible = layout != "tiles"  # until the image processor shows another layout

    def lend(self, processor: Any, keys: Mapping[int, str]) -> Any:
        """The processor for one call, which processes every content once.

        `keys`: the content key of each image, by the `id` of its object, which is alive during the call.
        """
        inner = getattr(processor, "image_processor", None)
        if inner is None or not keys or not self.possible:
            return processor
        lent = copy.copy(processor)  # the processor itself stays as it is, whoever uses it meanwhile
        lent.image_processor = _OnceEach(inner, self, keys)
        return lent


class _OnceEach:
    """An image processor in front of another: the same outputs, from what is kept where it can be."""

    def __init__(self, inner: Any, store: KeptPixels, keys: Mapping[int, str]) -> None:
        self._inner, self._store, self._keys = inner, store, keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, images: Any, *arguments: Any, **options: Any) -> Any:
        flat = _flat(images)
        if arguments or not self._store.possible or any(id(image) not in self._keys for image in flat):
            return self._inner(images, *arguments, **options)
        settings = (serial(self._inner), repr(sorted(options.items())))
        keys = [(self._keys[id(image)], *settings) for image in flat]
        cache = self._store.cache
        found = {key: kept for key in keys if (kept := cache.get("pixels", key)) is not None}
        fresh = {key: image for key, image in zip(keys, flat) if key not in found}
        if fresh:
            output = self._inner(list(fresh.values()), **options)
            pieces = _pieces(output, len(fresh), self._store.layout)
            if pieces is None:
                self._store.possible = False
                return self._inner(images, **options)
            for key, piece in zip(fresh, pieces):
                cache.put("pixels", key, piece)
                found[key] = piece
        return BatchFeature({name: torch.cat([found[key][name] for key in keys]) for name in found[keys[0]]})


def _flat(images: Any) -> list[Any]:
    return [one for part in images for one in _flat(part)] if isinstance(images, list | tuple) else [images]


def _pieces(output: Mapping[str, Any], images: int, layout: Layout) -> list[dict[str, Tensor]] | None:
    """Each image's own share of the output; None where an image's pixels could depend on its neighbours."""
    pixels = output.get("pixel_values")
    named = {"pixel_values", "image_grid_thw"} if layout == "patches" else {"pixel_values"}
    if (
        set(output) != named
        or not isinstance(pixels, Tensor)
        or pixels.ndim != (2 if layout == "patches" else 4)
    ):
        return None
    pieces = per_image(dict(output), images, layout)
    if pieces is None:
        return None
    # copies: a view would keep the whole batch in memory
    return [{name: value.clone() for name, value in piece.items()} for piece in pieces]
