"""Reading an image from a path, a URL, a data URI, bytes, an array or a Pillow image, always to RGB.

What cannot be read is refused with a `BadImage` that says why.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from airvlm.inputs.download import DownloadError, download

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FORMATS", "BadImage", "ImageSource", "LoadedImage", "content_key", "load_image", "read_image"]

ImageSource: TypeAlias = "str | os.PathLike[str] | bytes | Image.Image | np.ndarray[Any, Any] | LoadedImage"

# What Pillow may decode. Others of its formats run programs (EPS: Ghostscript) or are hardly ever used for images.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 64_000_000  # a larger image is refused before it is decoded
MAX_BYTES = 32_000_000  # of a download
TIMEOUT = 15.0  # seconds for a whole download, not for each read of it
READABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    MemoryError,
    UnidentifiedImageError,
)  # Pillow raises these


class BadImage(ValueError):
    """An image that cannot be used; the message says which and why."""


@dataclass(frozen=True)
class LoadedImage:
    """An image that was read. Given anywhere as an image, it is neither read nor hashed again."""

    rgb: Image.Image
    key: str  # hash of its content


def read_image(source: ImageSource, *, allow_urls: bool = False, decode_side: int | None = None) -> LoadedImage:
    """The image in RGB with its identity."""
    if isinstance(source, LoadedImage):
        return source
    rgb = load_image(source, allow_urls=allow_urls, decode_side=decode_side)
    return LoadedImage(rgb, content_key(rgb))


def content_key(image: Image.Image | Tensor) -> str:
    """The image's identity: equal for equal pixels, wherever they were read from."""
    if isinstance(image, Image.Image):
        content, form = image.tobytes(), f"{image.mode}{image.size}"
    else:
        import torch  # imported here: reading images does not need it

        pixels = image.detach().cpu().contiguous().view(torch.uint8)
        content, form = pixels.numpy().tobytes(), f"{image.dtype}{tuple(image.shape)}"
    return hashlib.blake2b(content, key=form.encode()[:64], digest_size=16).hexdigest()


def load_image(
    source: ImageSource,
    *,
    allow_urls: bool = False,
    max_pixels: int = MAX_PIXELS,
    max_bytes: int = MAX_BYTES,
    timeout: float = TIMEOUT,
    decode_side: int | None = None,
) -> Image.Image:
    """The image as RGB: upright (EXIF), transparency over white, 16-bit and float values scaled to 8 bits.

    Args:
        source: the image.
        allow_urls: whether http(s) addresses are downloaded, from public hosts only (download.py).
        max_pixels: a larger image is refused before it is decoded.
        max_bytes: of a download or data URI.
        timeout: seconds for a whole download.
        decode_side: decode a JPEG whose shorter side is at least twice this long at 1/2, 1/4 or 1/8 of its size, never
            below it. That is faster, and pixels differ slightly from those of a whole decode.
    """
    if isinstance(source, LoadedImage):
        return source.rgb
    if isinstance(source, Image.Image):
        return _to_rgb(source, "the given image", max_pixels)
    if isinstance(source, np.ndarray):
        return _to_rgb(_from_array(source), f"the array of shape {source.shape}", max_pixels)
    if isinstance(source, bytes | bytearray | memoryview):
        return _decode(io.BytesIO(bytes(source)), f"{len(source)} bytes", max_pixels, decode_side)
    if isinstance(source, str) and source[:5].lower() == "data:":
        return _decode(io.BytesIO(_inline(source, max_bytes)), f"{source[:40]}...", max_pixels, decode_side)
    if isinstance(source, str) and "://" in source:
        return _decode(io.BytesIO(_fetch(source, allow_urls, max_bytes, timeout)), source, max_pixels, decode_side)
    if isinstance(source, str | os.PathLike):
        path = Path(source).expanduser()
        if not path.is_file():
            what = "is a folder, not an image" if path.is_dir() else "does not exist"
            raise BadImage(f"{path} {what}")
        return _decode(path, str(path), max_pixels, decode_side)
    raise BadImage(
        f"cannot read an image from {type(source).__name__}; give a path, an http(s) address, a data URI, "
        "bytes, a numpy array (H, W[, C]) or a PIL image"
    )


def _decode(file: Path | io.BytesIO, name: str, max_pixels: int, decode_side: int | None) -> Image.Image:
    try:
        with warnings.catch_warnings():
            # We have a limit of our own, checked before decoding.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                _check_size(image, name, max_pixels)
                if decode_side is not None and 2 * decode_side <= min(image.size):
                    # Pillow takes the smallest scale that is not below this size
                    share = decode_side / min(image.size)
                    image.draft("RGB", (round(image.width * share), round(image.height * share)))
                return _to_rgb(image, name, max_pixels, own=True)
    except BadImage:
        raise
    except Image.DecompressionBombError as error:
        raise BadImage(f"{name} is too large: {error}") from error
    except UnidentifiedImageError as error:
        raise BadImage(f"{name} is not a readable image: none of {', '.join(FORMATS)}") from error
    except READABLE as error:
        raise BadImage(f"{name} is not a readable image: {error}") from error


def _to_rgb(image: Image.Image, name: str, max_pixels: int, *, own: bool = False) -> Image.Image:
    """Convert to RGB. `own`: nobody else holds the image, so it need not be copied."""
    _check_size(image, name, max_pixels)
    try:
        if own:
            ImageOps.exif_transpose(image, in_place=True)
        else:
            image = ImageOps.exif_transpose(image)  # a copy, turned or not
        if image.mode.startswith(("I", "F")):  # 16-bit, 32-bit and float grey: convert("RGB") would clip them
            image = _from_array(np.asarray(image, dtype=np.float32) / _full_scale(image))
        if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
            image = image.convert("RGBA")
            ground = Image.new("RGBA", image.size, (255, 255, 255, 255))
            image = Image.alpha_composite(ground, image)
        rgb = image if image.mode == "RGB" and type(image) is Image.Image else image.convert("RGB")
    except READABLE as error:
        raise BadImage(f"{name} is damaged: {error}") from error
    return rgb


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    W, H = image.size
    if W < 1 or H < 1:
        raise BadImage(f"{name} is empty ({W} x {H} pixels)")
    if max_pixels < W * H:
        raise BadImage(f"{name} is too large: {W} x {H} pixels, at most {max_pixels} are read; scale it down first")


def _full_scale(image: Image.Image) -> float:
    """The value that means white in a grey image of more than 8 bits."""
    if image.mode == "F":
        return 1.0 if float(np.asarray(image).max()) <= 1.0 else 255.0
    return 65535.0


def _from_array(array: np.ndarray[Any, Any]) -> Image.Image:
    """(H, W), (H, W, 1|3|4): integers 0..255 (uint16: 0..65535), booleans, or floats 0..1."""
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (3, 4)) or 0 in array.shape:
        raise BadImage(
            f"an array of shape {array.shape} is not an image; give (height, width) or (height, width, 3 or 4) "
            "with the channels last"
        )
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * 255
    elif np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all():
            raise BadImage("the array holds NaN or infinity")
        low, high = float(array.min()), float(array.max())
        if low < 0 or high > 1:
            raise BadImage(f"a float array must hold values from 0 to 1, this one {low:g} to {high:g}")
        array = np.rint(array * 255).astype(np.uint8)
    elif array.dtype == np.uint16:
        array = np.rint(array / 257.0).astype(np.uint8)
    elif np.issubdtype(array.dtype, np.integer):
        if array.min() < 0 or array.max() > 255:
            raise BadImage(f"an integer array must hold 0 to 255, this one {array.min()} to {array.max()}")
        array = array.astype(np.uint8)
    else:
        raise BadImage(f"an array of {array.dtype} is not an image; give integers 0..255 or floats 0..1")
    return Image.fromarray(np.ascontiguousarray(array))


def _fetch(url: str, allowed: bool, max_bytes: int, timeout: float) -> bytes:
    scheme = url.split("://", 1)[0].lower()
    if scheme not in ("http", "https"):
        raise BadImage(f"{url}: only http and https addresses are read, not {scheme}")
    if not allowed:
        raise BadImage(
            f"{url} is a web address, and downloads are off. Download the image yourself, or allow downloads by "
            "--allow-urls or VLM.load(..., allow_urls=True)"
        )
    try:
        return download(url, max_bytes=max_bytes, timeout=timeout)
    except DownloadError as error:
        raise BadImage(f"{url} {error}") from error


def _inline(uri: str, max_bytes: int) -> bytes:
    """The bytes of a data URI, which holds an image in base64."""
    head, comma, body = uri.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise BadImage(f"{uri[:40]}...: a data URI must hold base64, as data:image/png;base64,...")
    if len(body) > max_bytes * 4 / 3 + 4:
        raise BadImage(f"{head},... is larger than {max_bytes} bytes")
    try:
        return base64.b64decode(unquote(body), validate=True)
    except ValueError as error:
        raise BadImage(f"{head},... is not base64: {error}") from error
