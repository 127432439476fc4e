"""From a request to the model's inputs: images read, the prompt written, both through the model's processor.

What was processed or encoded before is not again: many questions about one image resize and normalise it once
(`KeptPixels`) and run the vision tower once (`VisionFeatures`), where the family's layout says which part of the
tensors is whose. Knows nothing of methods or of generation.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import BatchFeature
from transformers.modeling_outputs import BaseModelOutputWithPooling

from airvlm.images.cache import ImageCache, cache_of, serial, weights_state
from airvlm.images.load import BadImage, ImageSource, LoadedImage, read_image
from airvlm.images.prompts import Question, begins_with_bos, image_token, prompt_text
from airvlm.images.shrink import draft_side, usable_side
from airvlm.models.anatomy import Anatomy
from airvlm.models.families import Layout

__all__ = ["Encoder", "Images", "KeptPixels", "Request", "VisionFeatures"]

Images: TypeAlias = "ImageSource | Sequence[ImageSource] | None"  # one image, several, or none


@dataclass(frozen=True)
class Request:
    """A question, read and written out: one row of a batch."""

    images: tuple[LoadedImage, ...]
    prompt: str


class Encoder:
    """Requests -> tensors, for one model."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        anatomy: Anatomy,
        *,
        allow_urls: bool = False,  # whether images may be fetched from http(s) addresses
        draft: bool = False,  # whether a large JPEG is decoded no finer than its crops need
    ) -> None:
        self.model = model
        self.processor = processor
        self.family = anatomy.family
        self.allow_urls = allow_urls
        self.draft = draft_side(usable_side(processor)) if draft else None
        self.image_token = image_token(processor, anatomy.image_token_id)
        self.cache = cache_of(anatomy.model)
        self.features = VisionFeatures(model, self.cache, anatomy.layout)
        self.pixels = KeptPixels(self.cache, anatomy.layout)

    def forget(self) -> None:
        """Throw away what is kept of images."""
        self.cache.clear()

    def read(self, image: Images, question: Question) -> Request:
        """Images loaded, the question in the model's own form."""
        return self.read_all([(image, question)])[0]

    def read_all(self, requests: Sequence[tuple[Images, Question]]) -> list[Request]:
        """Requests read; an image that several of them hold, as one object, is loaded and hashed once."""
        rows = []
        for row in self.read_each(requests):
            if isinstance(row, Exception):
                raise row
            rows.append(row)
        return rows

    def read_each(self, requests: Sequence[tuple[Images, Question]]) -> list[Request | ValueError]:
        """Requests read, with the error in the place of each that cannot be."""
        loaded: dict[
            int, LoadedImage | ValueError
        ] = {}  # by the id of the source, which `requests` keeps alive
        rows: list[Request | ValueError] = []
        for image, question in requests:
            sources = [] if image is None else list(image) if isinstance(image, list | tuple) else [image]
            try:
                own = tuple(self._loaded(source, loaded) for source in sources)
                prompt = prompt_text(self.processor, self.family, self.image_token, question, len(own))
                rows.append(Request(own, prompt))
            except ValueError as error:
                rows.append(error)
        return rows

    def _loaded(self, source: Any, loaded: dict[int, LoadedImage | ValueError]) -> LoadedImage:
        if id(source) not in loaded:
            try:
                loaded[id(source)] = read_image(source, allow_urls=self.allow_urls, draft=self.draft)
            except BadImage as error:
                loaded[id(source)] = error
        found = loaded[id(source)]
        if isinstance(found, ValueError):
            raise found
        return found

    def inputs(self, requests: Sequence[Request], *, pixels: bool = False) -> dict[str, Any]:
        """The model's inputs, left-padded; all requests have images, or none has.

        `pixels`: hand over pixels even where the images' features are known.
        """
        options: dict[str, Any] = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        if all(begins_with_bos(self.processor, request.prompt) for request in requests):
            options["add_special_tokens"] = False
        rows = [[image.rgb for image in request.images] for request in requests]
        shown = [image for request in requests for image in request.images]
        processor = self.pixels.lend(self.processor, {id(image.rgb): image.key for image in shown})
        encoded = processor(
            text=[request.prompt for request in requests], images=rows if shown else None, **options
        )
        device, dtype = self.model.device, self.model.dtype
        inputs = {
            name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
            for name, value in encoded.items()
            if isinstance(value, Tensor)
        }
        if pixels:
            return inputs
        made_by = serial(getattr(self.processor, "image_processor", None))
        return self.features.attach(inputs, [image.key for image in shown], made_by)


# -- pixels that are kept


class KeptPixels:
    """Processed images, for one processor.

    Only where the image processor gives each image pixels of its own: one row of `pixel_values` an image, or patches
    counted by `image_grid_thw`. Where it pads images to each other, cuts tiles or counts crops, it is called as ever.
    """

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


# -- features that are kept


class VisionFeatures:
    """Visual tokens in place of pixels, for one model.

    transformers encodes images before prefill and hands them on as `mm_encoder_outputs`; given there, they replace the
    pixels. Where a model's features do not come as one entry an image, the inputs are returned as they are.
    """

    def __init__(self, model: nn.Module, cache: ImageCache, layout: Layout) -> None:
        self.model = model
        self.layout = layout
        self.cache = cache
        base: Any = getattr(model, "base_model", model)
        self._encode = getattr(base, "get_image_features", None)
        self._possible = (
            self._encode is not None and "mm_encoder_outputs" in inspect.signature(model.forward).parameters
        )

    def attach(self, inputs: dict[str, Any], images: Sequence[str], processor: int = 0) -> dict[str, Any]:
        """`inputs` with features in place of pixels. `images`: the content key of each image, in order.

        processor: the serial of the image processor that made the pixels.
        """
        if not (self._possible and self._encode and "pixel_values" in inputs):
            return inputs
        accepted = set(inspect.signature(self._encode).parameters) & set(inputs)
        pieces = per_image({name: inputs[name] for name in accepted}, len(images), self.layout)
        if pieces is None:
            return inputs
        state = weights_state(self.model)
        keys = [(image, processor, state) for image in images]
        found = {key: kept for key in keys if (kept := self.cache.get("features", key)) is not None}
        fresh = {key: piece for key, piece in zip(keys, pieces) if key not in found}
        if fresh:
            features = self._features(list(fresh.values()))
            if features is None:
                self._possible = False
                return inputs
            for key, value in zip(fresh, features):
                self.cache.put("features", key, value)
                found[key] = value
        entries = [found[key][0] for key in keys]
        stacked = found[keys[0]][1]
        output = BaseModelOutputWithPooling(pooler_output=torch.stack(entries) if stacked else entries)
        rest = {name: value for name, value in inputs.items() if name != "pixel_values"}
        return {**rest, "mm_encoder_outputs": {"image": output}}

    @torch.no_grad()
    def _features(self, pieces: list[dict[str, Tensor]]) -> list[tuple[Tensor, bool]] | None:
        """One entry an image, and whether the model gives them as one tensor; None for any other layout."""
        assert self._encode is not None
        together = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
        output = self._encode(**together, return_dict=True)
        features = output.pooler_output
        # deepstack features accompany the tokens layer by layer: they would have to be kept and split as well
        if getattr(output, "deepstack_features", None) is not None or len(features) != len(pieces):
            return None
        stacked = isinstance(features, Tensor)
        return [(one.clone(), stacked) for one in features]  # a view would keep the whole batch in memory


def per_image(image_inputs: dict[str, Tensor], images: int, layout: Layout) -> list[dict[str, Tensor]] | None:
    """The image inputs cut into images; None where the layout does not say which part is whose."""
    if layout == "patches":
        grid = image_inputs["image_grid_thw"]
        sizes = grid.prod(dim=1).tolist()  # patches of each image, which lie one after another
        if len(sizes) != images:
            return None
        pixels = image_inputs["pixel_values"].split(sizes)
        return [{"pixel_values": p, "image_grid_thw": g[None]} for p, g in zip(pixels, grid)]
    if any(not isinstance(v, Tensor) or v.shape[0] != images for v in image_inputs.values()):
        return None
    return [{name: value[i : i + 1] for name, value in image_inputs.items()} for i in range(images)]
