"""What an image is known by: a hash of its pixels. Needs no model library as long as nobody asks for a tensor's."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["content_key"]


def content_key(image: Image.Image | Tensor) -> str:
    """The image's identity: equal for equal pixels, wherever they were read from."""
    if isinstance(image, Image.Image):
        content, form = image.tobytes(), f"{image.mode}{image.size}"
    else:
        import torch

        pixels = image.detach().cpu().contiguous().view(torch.uint8)
        content, form = pixels.numpy().tobytes(), f"{image.dtype}{tuple(image.shape)}"
    return hashlib.blake2b(content, key=form.encode()[:64], digest_size=16).hexdigest()
