"""wrap(processor): a processor that remembers the images of the inputs it makes.

    processor = airvlm.wrap(AutoProcessor.from_pretrained(...))
    inputs = processor(text=..., images=...)
    with CropBlend()(model, processor):  # images= is not needed
        model.generate(**inputs)

They are found by the identity of the pixel tensor, so they cannot be another input's, and they are forgotten with it.
"""

from __future__ import annotations

import copyreg
import threading
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import BatchFeature
from transformers.image_utils import load_image

__all__ = ["derive_class", "is_wrapped", "remembered_images", "unwrap", "wrap"]

P = TypeVar("P")
PIXELS = "pixel_values"
NEW_OBJECT = getattr(copyreg, "__newobj__")  # noqa: B009  # not in its type stubs

_LOCK = threading.Lock()
# pixel tensor -> its version when it was made (a change in place counts it up), and the images of each batch row
_IMAGES: Any = WeakTensorKeyDictionary()
_BASES: dict[type, type] = {}  # class of a wrapped processor or batch -> the class that it derives from
_DERIVED: dict[type, type] = {}  # the other way round


def wrap(processor: P) -> P:
    """Let a processor remember the images of the inputs that it makes, so that methods need no `images=`.

    It is changed in place and returned; its outputs stay as they are. Copies and pickles of it are not wrapped. Inputs
    may be moved by `inputs.to(...)`; tensors that were moved one by one, collated or changed in place are not
    recognized, and a method that needs their images says so.

    Args:
        processor: the model's processor, such as AutoProcessor.from_pretrained gives.
    """
    if not callable(processor) or not hasattr(processor, "image_processor"):
        raise TypeError(
            f"wrap takes a model's processor, with an image processor in it, not {type(processor).__name__}"
        )
    kind = type(processor)
    if kind not in _BASES:
        processor.__class__ = _derive(kind, {"__call__": _call_and_remember})
    return processor


def unwrap(processor: P) -> P:
    """Undo `wrap`, in place. A processor that is not wrapped stays as it is."""
    if type(processor) in _BASES:
        processor.__class__ = _BASES[type(processor)]
    return processor


def is_wrapped(processor: Any) -> bool:
    """Whether `wrap` was applied to this processor."""
    return type(processor) in _BASES


def remembered_images(pixels: Any) -> list[list[Image.Image]] | None:
    """The images of each batch row of these pixel values; None if no wrapped processor made them."""
    if not isinstance(pixels, Tensor):
        return None
    with _LOCK:
        version, rows = _IMAGES.get(pixels, (None, None))
    return rows if version == pixels._version else None


# -- what a wrapped processor does


def _call_and_remember(self: Any, *args: Any, **kwargs: Any) -> Any:
    kind = type(self)
    base: Any = _BASES[kind]
    names = ("images", "text")  # the first arguments of every processor's call in transformers
    given = dict(zip(names, args, strict=False)) | kwargs
    images = given.get("images")
    if images is not None:
        # addresses and paths are read here, so that the model and the methods get the same image
        images = _load_nested(images)
        if args:
            args = (images, *args[1:])
        else:
            kwargs = {**kwargs, "images": images}
    out = base.__call__(self, *args, **kwargs)
    pixels = out.get(PIXELS) if hasattr(out, "get") else None
    if images is not None and isinstance(pixels, Tensor):
        _remember(pixels, _split_rows(self, images, given.get("text")))
        if isinstance(out, BatchFeature) and type(out) not in _BASES:
            out.__class__ = _derive(type(out), {"to": _move_and_remember})
    return out


def _move_and_remember(self: Any, *args: Any, **kwargs: Any) -> Any:
    rows = remembered_images(self.get(PIXELS))
    base: Any = _BASES[type(self)]
    out = base.to(self, *args, **kwargs)
    if rows is not None:
        _remember(out[PIXELS], rows)
    return out


def _remember(pixels: Tensor, rows: list[list[Any]]) -> None:
    with _LOCK:
        _IMAGES[pixels] = pixels._version, rows


def _load_nested(images: Any) -> Any:
    if isinstance(images, list | tuple):
        return [_load_nested(image) for image in images]
    return load_image(images) if isinstance(images, str) else images


def _split_rows(processor: Any, images: Any, text: Any) -> list[list[Any]]:
    """The images of each row: as they are nested, or counted by the placeholders of the texts."""
    if not isinstance(images, list | tuple):
        images = [images]
    if any(isinstance(entry, list | tuple) for entry in images):
        return [[_keep(one) for one in (entry if isinstance(entry, list | tuple) else [entry])] for entry in images]
    kept = [_keep(image) for image in images]
    texts = [text] if isinstance(text, str) or text is None else list(text)
    if len(texts) == 1:
        return [kept]
    token = getattr(processor, "boi_token", None) or getattr(processor, "image_token", None)
    counts = [one.count(str(token)) if isinstance(one, str) else 0 for one in texts]
    if sum(counts) == len(kept):
        parts = iter(kept)
        return [[next(parts) for _ in range(count)] for count in counts]
    return [[image] for image in kept]


def _keep(image: Any) -> Any:
    """The image as a method reads it later; a copy, since its owner may draw on it."""
    if isinstance(image, Image.Image):
        return image.copy()
    array = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.array(image)
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[-1] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)  # channels first, as torchvision has them
    return array


def _derive(kind: type, members: dict[str, Any]) -> type:
    with _LOCK:
        if kind not in _DERIVED:
            derived = derive_class(kind, members)
            _BASES[derived], _DERIVED[kind] = kind, derived
        return _DERIVED[kind]


def derive_class(kind: Any, members: dict[str, Any], without: str = "") -> type:
    """A class with these members on top of `kind`, under its name; copies and pickles of its objects are `kind`s.

    Args:
        kind: the class.
        members: its new attributes.
        without: an attribute of objects that copies and pickles leave out.
    """

    def reduce(self: Any, protocol: Any) -> Any:
        plain = kind.__new__(kind)
        object.__setattr__(plain, "__dict__", {k: v for k, v in self.__dict__.items() if k != without})
        how, *rest = plain.__reduce_ex__(protocol)
        # pickle refuses __newobj__ of a class that is not the object's own
        return (_make_object if how is NEW_OBJECT else how, *rest)

    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**body, "__reduce_ex__": reduce, **members})


def _make_object(kind: Any, *args: Any) -> Any:
    return kind.__new__(kind, *args)
