"""Which images each batch row shows, where their visual tokens lie, and whether they are what the model was given.

`images=` (or the model's own pixel tensor) and the image tokens of one prefill are brought together here. Knows nothing
of what a method does with an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from airvlm.hooks.intervention import Step
from airvlm.images.load import LoadedImage, content_key, read_image
from airvlm.models.anatomy import Anatomy

__all__ = ["AnyImage", "ImageTokens", "RowImage", "RowImages", "WrongImages"]

AnyImage = Image.Image | Tensor  # an original, or the (3, H, W) pixels that the model gets
TOLERANCE = 0.05  # mean difference of normalised pixels, of about 4 between black and white: half precision, resampling
UNLIKE = 0.5  # cosine of mean features below which they are of another image


class WrongImages(ValueError):
    """`images=` are not the images that the model was given."""


@dataclass(frozen=True)
class RowImage:
    """An image and its identity."""

    pixels: AnyImage
    key: str  # content hash


@dataclass(frozen=True)
class ImageTokens:
    """Images of one batch row whose tokens cannot be told apart (mostly just one), and where their tokens lie."""

    row: int
    positions: Tensor  # (K,) token positions in the row
    images: tuple[RowImage, ...]


class RowImages:
    """The images of a run: as the caller gave them, or those of the model's own pixel tensor."""

    def __init__(self, name: str, anatomy: Anatomy, processor: Any, images: Any, *, check: bool) -> None:
        self.name = name  # of the method, in errors
        self.anatomy = anatomy
        self.processor = processor
        self.check = check  # compare `images=` with what the model is given
        self._pixels: Tensor | None = None  # of the generate call under way
        self._split: tuple[Tensor, list[RowImage]] | None = None  # a pixel tensor, kept alive, and its images
        self._known: tuple[Any, Any] | None = None  # images and pixels that were compared, kept alive
        self.give(images)

    def give(self, images: Any) -> None:
        """The images of the calls to come."""
        self.raw = images
        self._given: list[list[RowImage]] | None = None

    @property
    def given(self) -> list[list[RowImage]] | None:
        """`images=`, read when a method first asks for them."""
        if self._given is None and self.raw is not None:
            self._given = _loaded(self.raw)
        return self._given

    def start_call(self, arguments: Mapping[str, Any]) -> None:
        """A method needs the images of a generate call, which encodes them before prefill: here are their pixels.

        Refuses a call with image tokens whose images cannot be had, or are not those of `images=`.
        """
        self._pixels = arguments.get("pixel_values")
        self._compare(arguments)
        if self.given is None and not (self.anatomy.plain_pixels and self._pixels is not None):
            ids: Any = arguments.get("input_ids", arguments.get("inputs"))
            if bool(torch.isin(ids, self.anatomy.image_token_id).any()):
                self._refuse()

    def shown(self, step: Step) -> list[ImageTokens]:
        """The images of each row of the caller's batch, in a pass with image tokens."""
        assert step.visual is not None
        visual = step.on_host()[:: step.expand]  # (rows, L): copies of a row show the same
        counts: list[int] = visual.sum(1).tolist()
        every = visual.nonzero()[:, 1].split(counts)
        shown = []
        for row, (positions, images) in enumerate(zip(every, self._by_row(counts, step), strict=True)):
            if not counts[row]:
                continue
            parts = _shares(positions, [image.pixels for image in images])
            if parts is None:
                shown.append(ImageTokens(row, positions.to(step.visual.device), tuple(images)))
            else:
                shown += [
                    ImageTokens(row, part.to(step.visual.device), (image,))
                    for part, image in zip(parts, images, strict=True)
                ]
        return shown

    def _by_row(self, counts: list[int], step: Step) -> list[list[RowImage]]:
        if self.given is not None:
            if not step.generating:  # a plain pass brings its own pixels
                self._compare(step.inputs)
            return _assigned(self.given, counts)
        pixels = self._pixels if step.generating else step.inputs.get("pixel_values")
        if not self.anatomy.plain_pixels or pixels is None or pixels.dim() != 4:
            self._refuse()
        assert pixels is not None
        K, rest = divmod(sum(counts), len(pixels))  # every image has as many tokens
        if rest or any(count % K for count in counts):
            raise ValueError(
                f"{sum(counts)} image tokens cannot be shared by the {len(pixels)} images of the input"
            )
        if self._split is None or self._split[0] is not pixels:
            self._split = pixels, [RowImage(one, content_key(one)) for one in pixels]
        each = iter(self._split[1])
        return [[next(each) for _ in range(count // K)] for count in counts]

    def _refuse(self) -> None:
        raise ValueError(
            f"{self.name} needs the images to crop, and {self.anatomy.family} does not show them as a plain pixel "
            "tensor here: pass them, method(model, processor, images=[one or more a row])"
        )

    # -- are they what the model was given?

    def _compare(self, arguments: Mapping[str, Any]) -> None:
        """Raise where `images=` surely are not the images of the call; where nothing can be compared, say nothing."""
        pixels, features = arguments.get("pixel_values"), arguments.get("mm_encoder_outputs")
        what = pixels if pixels is not None else features
        if not self.check or self.given is None or self.processor is None or what is None:
            return
        if self._known is not None and self._known[0] is self.given and self._known[1] is what:
            return
        images: list[Any] = [image.pixels for row in self.given for image in row]
        if pixels is not None:
            alike = _same_pixels(self.processor, images, self.given, pixels)
        else:
            alike = self._same_features(images, features)
        if alike is False:
            raise WrongImages(
                f"images= are not the images that the model was given: pass {self.name} the same ones in the same "
                "order; for another call in the same block set run.images first"
            )
        self._known = self.given, what

    def _same_features(self, images: list[Any], features: Any) -> bool | None:
        try:
            given = [t.reshape(-1, t.shape[-1]).float() for t in features["image"].pooler_output]
            own = [t.float() for t in self.anatomy.encode(self.anatomy.pixels(self.processor, images))]
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, IndexError):
            return None
        if len(given) != len(own) or any(a.shape != b.shape for a, b in zip(given, own, strict=True)):
            return None
        # Token by token, centred: features of unlike images share most of their mean.
        alike = [
            torch.cosine_similarity((a - a.mean(0)).flatten(), (b.to(a) - b.to(a).mean(0)).flatten(), 0)
            for a, b in zip(given, own, strict=True)
        ]
        return not alike or bool((torch.stack(alike) > UNLIKE).all())


def _same_pixels(processor: Any, images: list[Any], rows: list[list[RowImage]], pixels: Any) -> bool | None:
    """Whether the processor makes these pixels of the images; None where its output is laid out otherwise."""
    image_processor = getattr(processor, "image_processor", processor)
    nested = [[image.pixels for image in row] for row in rows if row]
    for shape in (images, nested):  # some image processors want a list a row
        try:
            own = image_processor(images=shape, return_tensors="pt")["pixel_values"]
        except (TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError):
            continue
        if isinstance(own, Tensor) and isinstance(pixels, Tensor) and own.shape == pixels.shape:
            return float((own.float() - pixels.detach().cpu().float()).abs().mean()) <= TOLERANCE
    return None


def _loaded(images: Any) -> list[list[RowImage]]:
    """`images=` as a list of batch rows, or of images; see `_assigned`."""
    items = list(images) if isinstance(images, list | tuple) else [images]
    return [_listed(item) for item in items]


def _listed(item: Any) -> list[RowImage]:
    images = item if isinstance(item, list | tuple) else [] if item is None else [item]
    read: list[LoadedImage] = [read_image(image) for image in images]
    return [RowImage(one.rgb, one.key) for one in read]


def _assigned(items: list[list[RowImage]], counts: list[int]) -> list[list[RowImage]]:
    """The images of each batch row: one item a row, one a row with image tokens, or all of the only row."""
    showing = [row for row, count in enumerate(counts) if count]
    if len(items) == len(counts):
        rows = items
    elif len(items) == len(showing):
        rows = [items[showing.index(row)] if count else [] for row, count in enumerate(counts)]
    elif len(counts) == 1:
        rows = [[image for item in items for image in item]]
    else:
        raise ValueError(
            f"images= holds {len(items)} entries for a batch of {len(counts)} rows: give one entry a row, an image, "
            "a list of images, or None"
        )
    for row in showing:
        if not rows[row]:
            raise ValueError(f"row {row} has image tokens, but images= holds no image for it")
    return rows


def _shares(positions: Tensor, images: Sequence[AnyImage]) -> list[Tensor] | None:
    """The token positions (on the CPU) of each image in a row; None where they cannot be told apart."""
    P = len(images)
    if P == 1:
        return [positions]
    gaps = (positions.diff() != 1).nonzero().flatten() + 1  # where a run of image tokens ends
    if len(gaps) + 1 == P:
        return list(positions.tensor_split(gaps))
    alike = len({i.shape if isinstance(i, Tensor) else i.size for i in images}) == 1
    if alike and len(positions) % P == 0:
        return list(positions.split(len(positions) // P))
    return None  # tiles between other tokens, of unlike images: they are matched together
