"""A picture's pixels as the model wants them, kept: many questions about one picture resize and normalise it once.

Only where the image processor gives each picture pixels of its own: one row of `pixel_values` a picture, or patches
counted by `image_grid_thw`. Where it pads pictures to each other, cuts tiles or counts crops, it is called as ever.
This file knows nothing of models, prompts or features.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import BatchFeature

from airvlm.images.cache import Kept
from airvlm.images.features import per_picture

__all__ = ["KeptPixels"]


class KeptPixels:
    """Processed pictures, bounded in bytes, for one processor."""

    def __init__(self, limit: int = 64 * 2**20) -> None:
        self.processed = 0  # pictures that were resized and normalised
        self.possible = True  # until the image processor shows another layout
        self.kept: Kept[dict[str, Tensor]] = Kept(limit)

    def lend(self, processor: Any, keys: Mapping[int, str]) -> Any:
        """The processor for one call, which processes every content once.

        `keys`: the content key of each picture, by the `id` of its object, which is alive during the call.
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
        pictures = _flat(images)
        if (
            arguments
            or not self._store.possible
            or any(id(picture) not in self._keys for picture in pictures)
        ):
            return self._inner(images, *arguments, **options)
        settings = repr(sorted(options.items()))
        keys = [(self._keys[id(picture)], settings) for picture in pictures]
        kept = self._store.kept
        found = {key: kept[key] for key in keys if key in kept}
        fresh = {key: picture for key, picture in zip(keys, pictures) if key not in found}
        if fresh:
            pieces = _pieces(self._inner(list(fresh.values()), **options), len(fresh))
            if pieces is None:
                self._store.possible = False
                return self._inner(images, **options)
            self._store.processed += len(fresh)
            found |= dict(zip(fresh, pieces))
        for key in found:
            kept[key] = found[key]
        return BatchFeature({name: torch.cat([found[key][name] for key in keys]) for name in found[keys[0]]})


def _flat(images: Any) -> list[Any]:
    return [one for part in images for one in _flat(part)] if isinstance(images, list | tuple) else [images]


def _pieces(output: Mapping[str, Any], pictures: int) -> list[dict[str, Tensor]] | None:
    """Each picture's own share of the output; None where a picture's pixels could depend on its neighbours."""
    pixels, grid = output.get("pixel_values"), output.get("image_grid_thw")
    named = set(output) - {"pixel_values", "image_grid_thw"}
    if named or not isinstance(pixels, Tensor) or pixels.ndim != (4 if grid is None else 2):
        return None
    pieces = per_picture(dict(output), pictures)
    if pieces is None:
        return None
    # copies: a view would keep the whole batch in memory
    return [{name: value.clone() for name, value in piece.items()} for piece in pieces]
