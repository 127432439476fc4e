"""From a request to the model's inputs: images read, the prompt written, both through the model's processor.

Knows nothing of methods or of generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from airvlm.images.cache import cache_of, serial
from airvlm.images.encoded import KeptPixels, VisionFeatures
from airvlm.images.load import BadImage, ImageSource, LoadedImage, read_image
from airvlm.images.prompts import Question, begins_with_bos, image_token, prompt_text
from airvlm.models.anatomy import Anatomy

__all__ = ["Encoder", "Images", "Request", "chunks"]

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
    ) -> None:
        self.model = model
        self.processor = processor
        self.family = anatomy.family
        self.allow_urls = allow_urls
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
                loaded[id(source)] = read_image(source, allow_urls=self.allow_urls)
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


def chunks(requests: Sequence[Request], size: int) -> Iterator[list[int]]:
    """Indices of requests that run together: longest first, so that memory runs out at the start or not at all."""
    for shows in (True, False):
        group = [i for i, request in enumerate(requests) if bool(request.images) is shows]
        group.sort(key=lambda i: (len(requests[i].images), len(requests[i].prompt)), reverse=True)
        yield from (group[start : start + size] for start in range(0, len(group), size))
