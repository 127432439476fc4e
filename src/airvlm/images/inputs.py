"""From a request to the model's inputs: pictures read, the prompt written, both through the model's processor.

Knows nothing of methods or of generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from PIL import Image
from torch import Tensor

from airvlm.images.features import VisionFeatures
from airvlm.images.load import Picture, load_picture
from airvlm.images.pixels import KeptPixels
from airvlm.images.prompts import Question, begins_with_bos, image_token, prompt_text
from airvlm.models.anatomy import Anatomy

__all__ = ["Encoder", "Pictures", "Request", "chunks"]

Pictures: TypeAlias = "Picture | Sequence[Picture] | None"  # one picture, several, or none


@dataclass(frozen=True)
class Request:
    """A question, read and written out: one row of a batch."""

    pictures: tuple[Image.Image, ...]
    keys: tuple[str, ...]  # content hash of each picture
    prompt: str


class Encoder:
    """Requests -> tensors, for one model."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        anatomy: Anatomy,
        *,
        allow_urls: bool = False,  # whether pictures may be fetched from http(s) addresses
    ) -> None:
        self.model = model
        self.processor = processor
        self.family = anatomy.family
        self.allow_urls = allow_urls
        self.image_token = image_token(processor, anatomy.image_token_id)
        self.forget()

    def forget(self) -> None:
        """Throw away what is kept of pictures."""
        self.features = VisionFeatures(self.model)
        self.pixels = KeptPixels()

    def read(self, image: Pictures, question: Question) -> Request:
        """Pictures loaded, the question in the model's own form."""
        return self.read_all([(image, question)])[0]

    def read_all(self, requests: Sequence[tuple[Pictures, Question]]) -> list[Request]:
        """Requests read; a picture that several of them hold, as one object, is loaded once."""
        loaded: dict[
            int, tuple[Image.Image, str]
        ] = {}  # by the id of the source, which `requests` keeps alive
        rows = []
        for image, question in requests:
            sources: list[Any] = (
                [] if image is None else list(image) if isinstance(image, list | tuple) else [image]
            )
            for source in sources:
                if id(source) not in loaded:
                    picture = load_picture(source, allow_urls=self.allow_urls)
                    loaded[id(source)] = picture, _content_key(picture)
            own = [loaded[id(source)] for source in sources]
            prompt = prompt_text(self.processor, self.family, self.image_token, question, len(own))
            rows.append(Request(tuple(p for p, _ in own), tuple(key for _, key in own), prompt))
        return rows

    def inputs(self, requests: Sequence[Request], *, pixels: bool = False) -> dict[str, Any]:
        """The model's inputs, left-padded; all requests have pictures, or none has.

        `pixels`: hand over pixels even where the pictures' features are known.
        """
        options: dict[str, Any] = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        if all(begins_with_bos(self.processor, request.prompt) for request in requests):
            options["add_special_tokens"] = False
        images = [list(request.pictures) for request in requests] if requests[0].pictures else None
        keys = {id(p): key for request in requests for p, key in zip(request.pictures, request.keys)}
        processor = self.pixels.lend(self.processor, keys)
        encoded = processor(text=[request.prompt for request in requests], images=images, **options)
        device, dtype = self.model.device, self.model.dtype
        inputs = {
            name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
            for name, value in encoded.items()
            if isinstance(value, Tensor)
        }
        if pixels:
            return inputs
        return self.features.attach(inputs, [key for request in requests for key in request.keys])


def chunks(requests: Sequence[Request], size: int) -> Iterator[list[int]]:
    """Indices of requests that run together: longest first, so that memory runs out at the start or not at all."""
    for pictures in (True, False):
        group = [i for i, request in enumerate(requests) if bool(request.pictures) is pictures]
        group.sort(key=lambda i: (len(requests[i].pictures), len(requests[i].prompt)), reverse=True)
        yield from (group[start : start + size] for start in range(0, len(group), size))


def _content_key(picture: Image.Image) -> str:
    return hashlib.sha256(f"{picture.size}".encode() + picture.tobytes()).hexdigest()
