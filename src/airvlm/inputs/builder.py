"""InputBuilder: from requests (images and a question) to the model's inputs, through the model's own processor.

Nothing is computed twice: many questions about one image resize and normalize it once and run the vision tower once,
where the family's layout says which part of the tensors belongs to which image.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from transformers import BatchFeature

from airvlm.inputs.cache import ImageCache, cache_of, provenance, serial
from airvlm.inputs.images import BadImage, ImageSource, LoadedImage, read_image
from airvlm.inputs.prompts import Question, image_token, prompt_text
from airvlm.models.families import Layout
from airvlm.models.parts import ModelParts, check_processor

__all__ = [
    "Images",
    "InputBuilder",
    "OtherLayout",
    "Request",
    "ViewQueue",
    "group_by_length",
    "own_pixels",
    "read_windows",
]

Images: TypeAlias = "ImageSource | Sequence[ImageSource] | None"  # one image, several, or none
WINDOW = 8  # batches that are read, and sorted by length, together


@dataclass(frozen=True)
class Request:
    """A question with its images loaded and its prompt written: one row of a batch."""

    images: tuple[LoadedImage, ...]
    prompt: str


class ViewQueue(Protocol):
    """Further views of the images (crops) that a method needs as tokens: encoded in the images' own call."""

    def prepare(self) -> None:
        """Make the views' pixels ahead: what is called in one thread shortens the work of another queue in another."""

    def take(self, room: int | None = None) -> Mapping[str, Tensor] | None:
        """The image inputs of the next views, as many as there is room for; None if there are none."""

    def give(self, tokens: Sequence[Tensor]) -> None:
        """The tokens (N, d) of each view that was taken last."""

    def finish(self) -> Any:
        """Encode what was not taken."""


class InputBuilder:
    """Requests -> tensors, for one model.

    Args:
        model: the model.
        processor: its processor.
        parts: its parts.
        allow_urls: whether images may be downloaded from http(s) addresses.
    """

    def __init__(self, model: Any, processor: Any, parts: ModelParts, *, allow_urls: bool = False) -> None:
        check_processor(processor, parts)
        self.model = model
        self.processor = processor
        self.parts = parts
        self.family = parts.family
        self.layout = parts.layout
        self.allow_urls = allow_urls
        self.image_token = image_token(processor, parts.image_token_id)
        self.cache = cache_of(parts.model)
        self._pixels_cached = parts.layout != "tiles"  # until the image processor turns out to use another layout
        base: Any = getattr(model, "base_model", model)
        self._encode = getattr(base, "get_image_features", None)
        self._features_cached = (
            self._encode is not None and "mm_encoder_outputs" in inspect.signature(model.forward).parameters
        )

    # -- reading

    def read(self, image: Images, question: Question) -> Request:
        """Load the images and write the question as the model's prompt."""
        row = self.read_each([(image, question)])[0]
        if isinstance(row, Exception):
            raise row
        return row

    def read_each(self, requests: Sequence[tuple[Images, Question]]) -> list[Request | ValueError]:
        """Read requests, with the error in place of each that cannot be read. An image object is loaded once."""
        loaded: dict[int, LoadedImage | ValueError] = {}  # by the id of the source, which `requests` keeps alive
        rows: list[Request | ValueError] = []
        for image, question in requests:
            sources: list[Any] = [] if image is None else list(image) if isinstance(image, list | tuple) else [image]
            try:
                for source in sources:
                    if id(source) not in loaded:
                        try:
                            loaded[id(source)] = read_image(source, allow_urls=self.allow_urls)
                        except BadImage as error:
                            loaded[id(source)] = error
                own = []
                for source in sources:
                    found = loaded[id(source)]
                    if isinstance(found, ValueError):
                        raise found
                    own.append(found)
                prompt = prompt_text(self.processor, self.family, self.image_token, question, len(own))
                rows.append(Request(tuple(own), prompt))
            except ValueError as error:
                rows.append(error)
        return rows

    # -- tensors

    def build(
        self, requests: Sequence[Request], *, pixels: bool = False, views: ViewQueue | None = None
    ) -> dict[str, Any]:
        """The model's inputs, left-padded.

        Args:
            requests: all with images, or all without.
            pixels: pass pixels even where the images' features are known.
            views: of these images, to be encoded in the same calls of the vision tower.
        """
        options: dict[str, Any] = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        bos = getattr(getattr(self.processor, "tokenizer", None), "bos_token", None)
        if bos and all(request.prompt.startswith(str(bos)) for request in requests):
            options["add_special_tokens"] = False  # the template wrote the begin token already
        images = [image for request in requests for image in request.images]
        processor = self.processor
        inner = getattr(processor, "image_processor", None)
        if inner is not None and images and self._pixels_cached:
            processor = copy.copy(processor)  # the processor itself stays as it is for its other users
            processor.image_processor = _CachedPixels(inner, self, {id(image.rgb): image.key for image in images})
        rows = [[image.rgb for image in request.images] for request in requests] if images else None
        encoded = processor(text=[request.prompt for request in requests], images=rows, **options)
        device, dtype = self.model.device, self.model.dtype
        inputs = {
            name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
            for name, value in encoded.items()
            if isinstance(value, Tensor)
        }
        return inputs if pixels else self.attach_features(inputs, [image.key for image in images], views)

    def attach_features(
        self, inputs: dict[str, Any], images: Sequence[str], views: ViewQueue | None = None
    ) -> dict[str, Any]:
        """The inputs with cached vision features in place of pixels, where the model's layout allows it.

        transformers encodes images before prefill and passes them on as `mm_encoder_outputs`; given there, they replace
        the pixels.

        Args:
            inputs: the model's inputs.
            images: the content key of each image, in order.
            views: as in `build`.
        """
        if not (self._features_cached and self._encode and "pixel_values" in inputs):
            return inputs
        accepted = set(inspect.signature(self._encode).parameters) & set(inputs)
        pieces = split_images({name: inputs[name] for name in accepted}, len(images), self.layout)
        if pieces is None:
            return inputs
        made_by = provenance(self.model, self.processor)
        keys: list[Hashable] = [(image, made_by) for image in images]
        if views is not None:
            # A larger batch may round differently: features that were encoded beside crops are not for vanilla.
            keys = [key if self.cache.get("features", key) else (key, "beside crops") for key in keys]
        by_key = dict(zip(keys, pieces, strict=True))
        try:
            found = self.cache.get_or_compute(
                "features", keys, lambda new: self._encode_pieces([by_key[k] for k in new], views)
            )
        except OtherLayout:
            self._features_cached = False
            return inputs
        from transformers.modeling_outputs import BaseModelOutputWithPooling  # slow to import without a model

        entries = [entry for entry, _ in found]
        stacked = found[0][1]
        output = BaseModelOutputWithPooling(pooler_output=torch.stack(entries) if stacked else entries)
        rest = {name: value for name, value in inputs.items() if name != "pixel_values"}
        return {**rest, "mm_encoder_outputs": {"image": output}}

    @torch.no_grad()
    def _encode_pieces(self, pieces: list[dict[str, Tensor]], views: ViewQueue | None) -> list[tuple[Tensor, bool]]:
        """One entry per image, and whether the model gives them as one tensor."""
        assert self._encode is not None
        together = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
        started = time.perf_counter()
        beside = self._take_beside(together, views)
        taken = time.perf_counter()
        if beside:
            together = {name: torch.cat([value, beside[name]]) for name, value in together.items()}
        output = self._encode(**together, return_dict=True)
        features = output.pooler_output
        crops = len(beside.get("image_grid_thw", beside["pixel_values"])) if beside else 0
        # deepstack features accompany the tokens layer by layer: they would have to be cached and split as well
        if getattr(output, "deepstack_features", None) is not None or len(features) != len(pieces) + crops:
            raise OtherLayout
        if views is not None:
            encoded = time.perf_counter()
            if beside:
                views.give([entry.reshape(-1, entry.shape[-1]) for entry in features[len(pieces) :]])
            views.finish()
            share = (encoded - taken) * crops / len(features)
            self.cache.add_seconds("crops", taken - started + share + time.perf_counter() - encoded)
        stacked = isinstance(features, Tensor)
        return [(one.clone(), stacked) for one in features[: len(pieces)]]  # a view would keep the whole batch

    def _take_beside(self, images: dict[str, Tensor], views: ViewQueue | None) -> dict[str, Tensor]:
        """Views that can be encoded in one call with the inputs of these images; empty if there are none."""
        if views is None:
            return {}
        count = len(images.get("image_grid_thw", images["pixel_values"]))
        taken = views.take(self.parts.max_crop_batch - count)
        if taken is None:
            return {}
        if images.keys() <= taken.keys() and all(taken[n].shape[1:] == images[n].shape[1:] for n in images):
            return {name: taken[name].to(images[name]) for name in images}
        views.give(self.parts.encode(taken))  # of another shape: in a call of its own
        return {}


class OtherLayout(Exception):
    """A model's features or an image processor's output are not one entry per image."""


class _CachedPixels:
    """An image processor in front of another one: the same outputs, from the cache where possible.

    Only where each image has pixels of its own: one row of `pixel_values` per image, or patches counted by
    `image_grid_thw`. Where the processor pads images to each other, cuts tiles or counts crops, it is called as ever.

    Args:
        inner: the image processor.
        builder: whose cache is used.
        keys: the content key of each image, by the `id` of its object, which is alive during the call.
    """

    def __init__(self, inner: Any, builder: InputBuilder, keys: Mapping[int, str]) -> None:
        self._inner, self._builder, self._keys = inner, builder, keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, images: Any, *arguments: Any, **options: Any) -> Any:
        flat = _flatten(images)
        if arguments or any(id(image) not in self._keys for image in flat):
            return self._inner(images, *arguments, **options)
        settings = (serial(self._inner), repr(sorted(options.items())))
        keys = [(self._keys[id(image)], *settings) for image in flat]
        by_key = dict(zip(keys, flat, strict=True))
        cache: ImageCache = self._builder.cache

        def process(missing: list[Any]) -> list[dict[str, Tensor]]:
            output = self._inner([by_key[key] for key in missing], **options)
            return own_pixels(output, len(missing), self._builder.layout)

        try:
            found = cache.get_or_compute("pixels", keys, process)
        except OtherLayout:
            self._builder._pixels_cached = False
            return self._inner(images, **options)
        return BatchFeature({name: torch.cat([piece[name] for piece in found]) for name in found[0]})


def _flatten(images: Any) -> list[Any]:
    return [one for part in images for one in _flatten(part)] if isinstance(images, list | tuple) else [images]


def own_pixels(output: Mapping[str, Any], images: int, layout: Layout) -> list[dict[str, Tensor]]:
    """Each image's own share of the output."""
    pixels = output.get("pixel_values")
    names, ndim = ({"pixel_values", "image_grid_thw"}, 2) if layout == "patches" else ({"pixel_values"}, 4)
    if set(output) != names or not isinstance(pixels, Tensor) or pixels.ndim != ndim:
        raise OtherLayout
    pieces = split_images(dict(output), images, layout)
    if pieces is None:
        raise OtherLayout
    return [{name: value.clone() for name, value in piece.items()} for piece in pieces]  # views would keep the batch


def split_images(image_inputs: dict[str, Tensor], images: int, layout: Layout) -> list[dict[str, Tensor]] | None:
    """The image inputs per image; None where the layout does not say which part belongs to which image."""
    if layout == "patches":
        grid = image_inputs["image_grid_thw"]
        sizes = grid.prod(dim=1).tolist()  # patches of each image, one image after another
        if len(sizes) != images:
            return None
        pixels = image_inputs["pixel_values"].split(sizes)
        return [{"pixel_values": p, "image_grid_thw": g[None]} for p, g in zip(pixels, grid, strict=True)]
    if any(not isinstance(v, Tensor) or v.shape[0] != images for v in image_inputs.values()):
        return None
    return [{name: value[i : i + 1] for name, value in image_inputs.items()} for i in range(images)]


# -- batches


def read_windows(
    builder: InputBuilder, requests: Iterable[tuple[Images, Question]], batch_size: int
) -> Iterator[list[Request | ValueError]]:
    """Requests as they are needed, some batches at a time; one that cannot be read is an error with its number."""
    stream, done = iter(requests), 0
    while window := list(islice(stream, batch_size * WINDOW)):
        rows = builder.read_each(window)
        for i, row in enumerate(rows):
            if isinstance(row, ValueError):
                kind = BadImage if isinstance(row, BadImage) else ValueError
                rows[i] = kind(f"request {done + i}: {row}")
        yield rows
        done += len(rows)


def group_by_length(requests: Mapping[int, Request], size: int) -> Iterator[list[int]]:
    """Keys of requests that run together: longest first, so that memory runs out at the start or not at all."""
    for with_images in (True, False):
        group = [i for i, request in requests.items() if bool(request.images) is with_images]
        group.sort(key=lambda i: (len(requests[i].images), len(requests[i].prompt)), reverse=True)
        yield from (group[start : start + size] for start in range(0, len(group), size))
