"""Which images each batch row shows, where their visual tokens are, and whether they are what the model was given.

Brings together `images=` (or the model's own pixel tensor) and the image tokens of one prefill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from airvlm.inputs.images import LoadedImage, content_key, read_image
from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import ForwardPass

__all__ = ["AnyImage", "ImageTokens", "RowImage", "RowImages", "WrongImages", "split_positions"]

AnyImage = Image.Image | Tensor  # an original, or the (3, H, W) pixels that the model gets
TOLERANCE = 0.05  # mean difference of normalized pixels (4 between black and white): half precision, resampling
UNLIKE = 0.5  # features with a lower cosine are of another image


class WrongImages(ValueError):
    """`images=` are not the images that the model was given."""


@dataclass(frozen=True)
class RowImage:
    """An image and its identity."""

    pixels: AnyImage
    key: str  # content hash


@dataclass(frozen=True)
class ImageTokens:
    """Images of one batch row whose tokens cannot be told apart (mostly just one), and where their tokens are."""

    row: int
    positions: Tensor  # (K,) token positions in the row
    images: tuple[RowImage, ...]


class RowImages:
    """The images of a session: as the caller gave them, or those of the model's own pixel tensor.

    Args:
        name: the method's name, for errors.
        parts: of the model.
        processor: of the model.
        images: as the caller gave them: one image, a list of images, or a list per batch row.
        check: compare `images` with what the model is given.
    """

    def __init__(self, name: str, parts: ModelParts, processor: Any, images: Any, *, check: bool) -> None:
        self.name = name
        self.parts = parts
        self.processor = processor
        self.check = check
        self._pixels: Tensor | None = None  # of the current generate call
        self._split: tuple[Tensor, list[RowImage]] | None = None  # a pixel tensor, kept alive, and its images
        self._checked: tuple[Any, Any] | None = None  # images and pixels that were compared, kept alive
        self.set(images)

    def set(self, images: Any) -> None:
        """Set the images of the following calls."""
        self.given_images = images
        self._loaded: list[list[RowImage]] | None = None

    @property
    def given(self) -> list[list[RowImage]] | None:
        """`images=`, read when a method first asks for them."""
        if self._loaded is None and self.given_images is not None:
            self._loaded = _load_rows(self.given_images)
        return self._loaded

    def start_call(self, arguments: Mapping[str, Any]) -> None:
        """A generate call begins, which encodes its images before prefill: keep their pixels.

        Refuses a call with image tokens whose images are not available, or are not those of `images=`.
        """
        self._pixels = arguments.get("pixel_values")
        if self.check:
            self._compare(arguments)
        if self.given is None and not (self.parts.plain_pixels and self._pixels is not None):
            ids: Any = arguments.get("input_ids", arguments.get("inputs"))
            if bool(torch.isin(ids, self.parts.image_token_id).any()):
                self._raise_missing()

    def rows_for(self, input_ids: Tensor) -> list[list[RowImage]]:
        """The images of each row of a batch, by its image tokens (batch_size, L)."""
        assert self.given is not None
        return _assign_rows(self.given, (input_ids == self.parts.image_token_id).sum(1).tolist())

    def locate(self, fp: ForwardPass) -> list[ImageTokens]:
        """The images of each row of the caller's batch, in a pass with image tokens."""
        assert fp.visual is not None
        visual = fp.visual_on_cpu[:: fp.beams]  # (batch_size, L): copies of a row show the same
        counts: list[int] = visual.sum(1).tolist()
        positions_by_row = visual.nonzero()[:, 1].split(counts)
        device = fp.visual.device
        found = []
        for row, (positions, images) in enumerate(zip(positions_by_row, self._by_row(counts, fp), strict=True)):
            if not counts[row]:
                continue
            parts = split_positions(positions, [image.pixels for image in images])
            if parts is None:
                found.append(ImageTokens(row, positions.to(device), tuple(images)))
            else:
                pairs = zip(parts, images, strict=True)
                found += [ImageTokens(row, part.to(device), (image,)) for part, image in pairs]
        return found

    def _by_row(self, counts: list[int], fp: ForwardPass) -> list[list[RowImage]]:
        if self.given is not None:
            if self.check and not fp.generating:  # a plain pass brings its own pixels
                self._compare(fp.inputs)
            return _assign_rows(self.given, counts)
        pixels = self._pixels if fp.generating else fp.inputs.get("pixel_values")
        if not self.parts.plain_pixels or pixels is None or pixels.dim() != 4:
            self._raise_missing()
        assert pixels is not None
        K, rest = divmod(sum(counts), len(pixels))  # every image has the same number of tokens
        if rest or any(count % K for count in counts):
            raise ValueError(
                f"{sum(counts)} image tokens cannot be divided among the {len(pixels)} images of the input"
            )
        if self._split is None or self._split[0] is not pixels:
            self._split = pixels, [RowImage(one, content_key(one)) for one in pixels]
        each = iter(self._split[1])
        return [[next(each) for _ in range(count // K)] for count in counts]

    def _raise_missing(self) -> None:
        raise ValueError(
            f"{self.name} needs the original images, and {self.parts.family} does not provide them as a plain pixel "
            "tensor here. Pass them: method(model, processor, images=[one or more per row])"
        )

    # -- are they what the model was given?

    def _compare(self, arguments: Mapping[str, Any]) -> None:
        """Raise if `images=` are certainly not the images of the call."""
        pixels, features = arguments.get("pixel_values"), arguments.get("mm_encoder_outputs")
        what = pixels if pixels is not None else features
        if self.given is None or self.processor is None or what is None:
            return
        if self._checked is not None and self._checked[0] is self.given and self._checked[1] is what:
            return
        images: list[Any] = [image.pixels for row in self.given for image in row]
        if pixels is not None:
            same = _same_pixels(self.processor, images, self.given, pixels)
        else:
            same = self._same_features(images, features)
        if same is False:
            raise WrongImages(
                f"images= are not the images that the model was given. Pass {self.name} the same images in the same "
                "order; for another call in the same block, set run.images first"
            )
        self._checked = self.given, what

    def _same_features(self, images: list[Any], features: Any) -> bool | None:
        try:
            given = [t.reshape(-1, t.shape[-1]).float() for t in features["image"].pooler_output]
            own = [t.float() for t in self.parts.encode(self.parts.pixels(self.processor, images))]
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, IndexError):
            return None
        if len(given) != len(own) or any(a.shape != b.shape for a, b in zip(given, own, strict=True)):
            return None
        # Per token and centered: features of different images share most of their mean.
        cosines = [
            torch.cosine_similarity((a - a.mean(0)).flatten(), (b.to(a) - b.to(a).mean(0)).flatten(), 0)
            for a, b in zip(given, own, strict=True)
        ]
        return not cosines or bool((torch.stack(cosines) > UNLIKE).all())


def _same_pixels(processor: Any, images: list[Any], rows: list[list[RowImage]], pixels: Any) -> bool | None:
    """Whether the processor makes these pixels of the images; None where its output has another layout."""
    image_processor = getattr(processor, "image_processor", processor)
    nested = [[image.pixels for image in row] for row in rows if row]
    for shape in (images, nested):  # some image processors want a list per row
        try:
            own = image_processor(images=shape, return_tensors="pt")["pixel_values"]
        except (TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError):
            continue
        if isinstance(own, Tensor) and isinstance(pixels, Tensor) and own.shape == pixels.shape:
            return float((own.float() - pixels.detach().cpu().float()).abs().mean()) <= TOLERANCE
    return None


def _load_rows(images: Any) -> list[list[RowImage]]:
    """`images=` as a list per entry; entries are batch rows or single images (see `_assign_rows`)."""
    entries = list(images) if isinstance(images, list | tuple) else [images]
    rows = []
    for entry in entries:
        own = entry if isinstance(entry, list | tuple) else [] if entry is None else [entry]
        loaded = [image if isinstance(image, LoadedImage) else read_image(image) for image in own]
        rows.append([RowImage(image.rgb, image.key) for image in loaded])
    return rows


def _assign_rows(entries: list[list[RowImage]], counts: list[int]) -> list[list[RowImage]]:
    """The images of each batch row: one entry per row, one per row with image tokens, or all of the only row."""
    with_tokens = [row for row, count in enumerate(counts) if count]
    if len(entries) == len(counts):
        rows = entries
    elif len(entries) == len(with_tokens):
        rows = [entries[with_tokens.index(row)] if count else [] for row, count in enumerate(counts)]
    elif len(counts) == 1:
        rows = [[image for entry in entries for image in entry]]
    else:
        raise ValueError(
            f"images= has {len(entries)} entries for a batch of {len(counts)} rows: give one entry per row: "
            "an image, a list of images, or None"
        )
    for row in with_tokens:
        if not rows[row]:
            raise ValueError(f"row {row} has image tokens, but images= has no image for it")
    return rows


def split_positions(positions: Tensor, images: Sequence[AnyImage]) -> list[Tensor] | None:
    """The token positions (on the CPU) of each image of a row; None where they cannot be told apart."""
    P = len(images)
    if P == 1:
        return [positions]
    gaps = (positions.diff() != 1).nonzero().flatten() + 1  # where a run of image tokens ends
    if len(gaps) + 1 == P:
        return list(positions.tensor_split(gaps))
    one_shape = len({i.shape if isinstance(i, Tensor) else i.size for i in images}) == 1
    if one_shape and len(positions) % P == 0:
        return list(positions.split(len(positions) // P))
    return None  # tiles between other tokens, of images of different shapes: they are matched together
