"""Which images each batch row shows, and where their visual tokens are.

Brings together `images=` (or what a wrapped processor remembers, or the model's own pixel tensor) and the image tokens
of one prefill.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from airvlm.inputs.images import LoadedImage, content_key, read_image
from airvlm.inputs.remember import remembered_images
from airvlm.models.parts import ModelParts
from airvlm.runtime.image_check import ImagesNotCheckedWarning, WrongImages, check_images, check_rows
from airvlm.runtime.intervention import ForwardPass

__all__ = ["AnyImage", "ImageTokens", "RowImage", "RowImages", "split_positions"]

AnyImage = Image.Image | Tensor  # an original, or the (3, H, W) pixels that the model gets


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
    """The images of a session: as the caller gave them, as a wrapped processor remembers them, or the model's pixels.

    Args:
        name: the method's name, for errors.
        parts: of the model.
        processor: of the model.
        images: as the caller gave them: one image, a list of images, or a list per batch row.
        check: compare `images` with what the model is given.

    Attributes:
        not_checked: why the images of the latest call could not be compared; None if they were, or need not be.
    """

    def __init__(self, name: str, parts: ModelParts, processor: Any, images: Any, *, check: bool) -> None:
        self.name = name
        self.parts = parts
        self.processor = processor
        self.check = check
        self._pixels: Tensor | None = None  # of the current generate call
        self._split: tuple[Tensor, list[RowImage]] | None = None  # a pixel tensor, kept alive, and its images
        self._remembered: tuple[Tensor, list[list[RowImage]]] | None = None  # a pixel tensor and its images
        self._checked: tuple[Any, Any] | None = None  # images and pixels that were compared, kept alive
        self._warned = False
        self.not_checked: str | None = None
        self.set(images)

    def set(self, images: Any) -> None:
        """Set the images of the following calls."""
        self.given_images = images
        self._loaded: list[list[RowImage]] | None = None

    @property
    def given(self) -> list[list[RowImage]] | None:
        """`images=`, read when a method first asks for them; without them what the processor remembers."""
        if self._loaded is None and self.given_images is not None:
            self._loaded = _load_rows(self.given_images)
        if self._loaded is None and self._remembered is not None:
            return self._remembered[1]
        return self._loaded

    def start_call(self, arguments: Mapping[str, Any]) -> None:
        """A generate call begins, which encodes its images before prefill: keep their pixels.

        Refuses a call with image tokens whose images are not available, or are not those of `images=`.
        """
        self._pixels = arguments.get("pixel_values")
        self._recall(self._pixels)
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
        if not fp.generating:  # a plain pass brings its own pixels
            self._recall(fp.inputs.get("pixel_values"))
            if self.check:
                self._compare(fp.inputs)
        if self.given is not None:
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
            "tensor here. Make the inputs by airvlm.wrap(processor), which remembers them, or pass them: "
            "method(model, processor, images=[one or more per row])"
        )

    # -- are they what the model was given?

    def _recall(self, pixels: Any) -> None:
        """Take the images that a wrapped processor remembers of these pixels, if it made them."""
        if self.given_images is not None and not self.check:
            return  # `images=` are used, and not compared
        if self._remembered is not None and self._remembered[0] is pixels:
            return
        rows = None if self.processor is None else remembered_images(pixels)  # crops need the processor
        self._remembered = None if rows is None else (pixels, _load_rows(rows))

    def _compare(self, arguments: Mapping[str, Any]) -> None:
        """Raise if `images=` are certainly not the images of the call; note it if that cannot be found out."""
        pixels = arguments.get("pixel_values")
        what = pixels if pixels is not None else arguments.get("mm_encoder_outputs")
        if self.given_images is None or self.given is None or what is None:
            return
        if self._checked is not None and self._checked[0] is self.given and self._checked[1] is what:
            return
        self.not_checked = None
        try:
            if self._remembered is not None:
                own, seen = ([image.key for row in rows for image in row] for rows in (self.given, self._remembered[1]))
                if own != seen:
                    raise WrongImages("images= are not the images that the processor made these inputs from")
            else:
                rows: list[list[Any]] = [[image.pixels for image in row] for row in self.given]
                self.not_checked = check_images(self.parts, self.processor, rows, arguments)
            ids: Any = arguments.get("input_ids", arguments.get("inputs"))
            counts = (ids == self.parts.image_token_id).sum(1).tolist()
            check_rows(self.parts, _assign_rows(self.given, counts), counts, arguments)
        except WrongImages as error:
            raise WrongImages(
                f"{error}. Pass {self.name} the same images in the same order (for another call in the same block, set "
                "run.images first), or make the inputs by airvlm.wrap(processor), which remembers them. "
                "check_images=False turns this comparison off"
            ) from None
        if self.not_checked is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.name} could not compare images= with what the model was given: {self.not_checked}",
                ImagesNotCheckedWarning,
                stacklevel=2,
            )
        self._checked = self.given, what


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
