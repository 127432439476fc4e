"""The images of a request: decoded within pixel budgets, and reduced to what the model and its crops can use."""

from __future__ import annotations

import base64
import binascii
import ctypes
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from airvlm.inputs.download import DownloadError, download
from airvlm.inputs.images import FORMATS, MAX_BYTES, TIMEOUT, LoadedImage, content_key, load_image
from airvlm.inputs.shrink import decode_side, usable_side
from airvlm.report import Report
from airvlm.serve.errors import ApiError
from airvlm.serve.limits import Budget, Limits

__all__ = ["ImageReader", "RequestImages", "fetch_image", "is_web_address", "scale_crops"]


MANY = 10_000_000  # pixels of a request from which on its memory is returned
LONGEST = 16  # an image keeps at most the pixels of one that is this many times as long as it is high


@dataclass(frozen=True)
class RequestImages:
    """The images of one request.

    Args:
        images: as the model gets them.
        sizes: (width, height) of each as it was sent.
        pixels: what they take of the server's budget, to be given back when the request ends.
    """

    images: tuple[LoadedImage, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    pixels: int = 0


class ImageReader:
    """Reads the images of requests, which share one budget of pixels."""

    def __init__(self, processor: Any, limits: Limits) -> None:
        self.limits = limits
        self.budget = Budget(limits.server_pixels)
        self.side = decode_side(usable_side(processor))

    def measure(self, files: Sequence[bytes]) -> tuple[tuple[int, int], ...]:
        """(width, height) of each image, from the files' headers; raises if they are more than a request may have."""
        sizes = tuple(self._size(file) for file in files)
        total = sum(width * height for width, height in sizes)
        if total > self.limits.request_pixels:
            raise _refusal(f"{total} pixels in all; this server takes at most {self.limits.request_pixels} per request")
        return sizes

    async def reserve(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Take the pixels of these images from the budget; waits while other requests use it up."""
        if not await self.budget.take_within(sum(w * h for w, h in sizes), self.limits.read_seconds):
            raise ApiError(
                429,
                "too many large images are being read; try again later",
                code="server_busy",
                headers={"Retry-After": "1"},
            )

    def read(self, files: Sequence[bytes], sizes: tuple[tuple[int, int], ...]) -> RequestImages:
        """Decode images whose pixels are reserved. The result holds what it takes of the budget, an error nothing.

        Args:
            files: the images' bytes.
            sizes: (width, height) of each.
        """
        total = held = sum(width * height for width, height in sizes)
        try:
            images = []
            for file, (width, height) in zip(files, sizes, strict=True):
                image = self._decode(file)
                images.append(LoadedImage(image, content_key(image)))
                freed = width * height - image.width * image.height
                self.budget.give_back(freed)
                held -= freed
        except BaseException:
            self.budget.give_back(held)
            raise
        if total >= MANY:
            return_memory()
        return RequestImages(tuple(images), sizes, held)

    def _size(self, file: bytes) -> tuple[int, int]:
        """(width, height) from the file's header."""
        try:
            with Image.open(io.BytesIO(file), formats=FORMATS) as image:
                width, height = image.size
        except Image.DecompressionBombError as error:
            raise _refusal(f"too many pixels; this server takes at most {self.limits.pixels} per image") from error
        except Exception as error:  # Pillow's decoders raise many kinds
            raise _refusal(f"this is not a readable image; send {', '.join(FORMATS)}") from error
        if width * height > self.limits.pixels:
            raise _refusal(f"{width} x {height} pixels; this server takes at most {self.limits.pixels} per image")
        if max(width, height) > self.limits.aspect * min(width, height):
            raise _refusal(f"{width} x {height} pixels; one side may be {self.limits.aspect} times the other at most")
        return width, height

    def _decode(self, file: bytes) -> Image.Image:
        try:
            image = load_image(file, max_pixels=self.limits.pixels, decode_side=self.side)
        except ValueError as error:
            raise _refusal(str(error)) from error
        if self.side is None:
            return image
        # a long and narrow image would stay large if its shorter side alone decided
        by_area = math.isqrt(image.width * image.height // (LONGEST * self.side**2))
        factor = max(min(image.size) // self.side, by_area)
        return image.reduce(factor) if factor > 1 else image


def return_memory() -> None:
    """Give freed memory back to the system, which glibc otherwise keeps in the arena of every thread."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def is_web_address(url: str) -> bool:
    return url[:8].lower().startswith(("http://", "https://"))


def fetch_image(url: str, *, allow_urls: bool) -> bytes:
    """The bytes of an image that a request names by a data URI or, if allowed, by a web address."""
    if url[:5].lower() == "data:":
        head, comma, data = url.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise _refusal("write a data URI as data:image/png;base64,...")
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise _refusal(f"the data URI is not base64: {error}") from error
    if not is_web_address(url):
        raise _refusal("give a data URI (data:image/png;base64,...) or an http(s) address")
    if not allow_urls:
        raise _refusal("this server does not download images; send a data URI (or start it with --allow-urls)")
    try:
        return download(url, max_bytes=MAX_BYTES, timeout=TIMEOUT)
    except DownloadError as error:
        raise _refusal(f"the address {error}") from error


def scale_crops(report: Report, given: RequestImages) -> Report:
    """The report with its crops in the pixels of the images as they were sent."""
    if len(report.crops) != len(given.images):
        return report
    crops = []
    for shown, image, (width, height) in zip(report.crops, given.images, given.sizes, strict=True):
        # turned upright by EXIF, an image may have its sides exchanged
        upright = (width > height) == (image.rgb.width > image.rgb.height)
        x, y = (width, height) if upright else (height, width)
        fx, fy = x / image.rgb.width, y / image.rgb.height
        boxes = [crop.box for crop in shown]
        scaled = [(round(l * fx), round(t * fy), round(r * fx), round(b * fy)) for l, t, r, b in boxes]
        crops.append(tuple(replace(crop, box=box) for crop, box in zip(shown, scaled, strict=True)))
    parts = tuple(scale_crops(part, given) for part in report.parts)
    return replace(report, crops=tuple(crops), parts=parts)


def _refusal(message: str) -> ApiError:
    return ApiError(400, f"image_url: {message}", param="messages")
