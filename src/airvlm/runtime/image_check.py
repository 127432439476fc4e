"""Whether `images=` are the images that the model was given: their number, then their pixels or features.

The images are processed again, as the caller most likely did, and compared one by one. Where the caller's settings
cannot be known, each image is brought to the size that the model got, or its whole view is looked for among the tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from airvlm.models.families import FAMILIES
from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import without_methods

__all__ = ["ImagesNotCheckedWarning", "WrongImages", "check_images", "check_rows"]

TOLERANCE = 0.05  # mean difference of normalized pixels (4 between black and white): half precision, resampling
RESIZED = 0.25  # the same where an image was resized in another way than by the processor
UNLIKE = 0.5  # features with a lower cosine are of another image
FAILURES = (TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError)  # of processors on such inputs


class WrongImages(ValueError):
    """`images=` are not the images that the model was given."""


class ImagesNotCheckedWarning(UserWarning):
    """`images=` could not be compared with what the model was given."""


def check_images(
    parts: ModelParts, processor: Any, rows: Sequence[Sequence[Image.Image]], inputs: Mapping[str, Any]
) -> str | None:
    """Raise WrongImages if these are certainly not the images of the inputs.

    Args:
        parts: of the model.
        processor: of the model.
        rows: the images of each batch row, or of each row that has any.
        inputs: of the model's forward pass or generate call, with pixels or encoded features.

    Returns:
        None if they are the images of the inputs; otherwise why that could not be found out.
    """
    pixels, features = inputs.get("pixel_values"), inputs.get("mm_encoder_outputs")
    if pixels is None and features is None:
        return None
    if processor is None:
        return "no processor was given to compare the images with"
    images = [image for row in rows for image in row]
    if isinstance(pixels, Tensor):
        return _check_pixels(parts, processor, rows, images, pixels, inputs)
    return _check_features(parts, processor, images, features, inputs)


def _check_pixels(
    parts: ModelParts,
    processor: Any,
    rows: Sequence[Sequence[Image.Image]],
    images: list[Image.Image],
    pixels: Tensor,
    inputs: Mapping[str, Any],
) -> str | None:
    grid = inputs.get("image_grid_thw")
    pixels = pixels.detach().cpu().float()
    alike = False  # whether some settings give tensors of these shapes
    for own in _process(parts, processor, rows, images):
        if own["pixel_values"].shape != pixels.shape or not _same(own.get("image_grid_thw"), grid):
            continue
        alike = True
        if _is_near(own["pixel_values"], pixels, grid, TOLERANCE):
            return None
    count = _count_images(parts, processor, pixels, inputs)
    if count is not None and count != len(images):
        raise WrongImages(f"the inputs show {_images(count)}, and images= has {len(images)}")
    if alike and parts.layout != "tiles":
        raise WrongImages("images= are not the images that the model was given")
    try:
        if parts.layout == "patches":
            assert grid is not None
            same: bool | None = _is_near(_at_grid(processor, images, grid), pixels, grid, RESIZED)
        elif parts.layout == "images":
            same = None  # one fixed size, which the caller has changed
        else:
            same = _has_views(parts, processor, images, pixels, inputs)
    except FAILURES:
        same = None
    if same is False:
        raise WrongImages("images= are not the images that the model was given")
    if same is None:
        return "the inputs were made with other settings of the image processor"
    return None if count is not None else "how many images the inputs show is not known"


def _process(
    parts: ModelParts, processor: Any, rows: Sequence[Sequence[Image.Image]], images: list[Image.Image]
) -> Iterator[dict[str, Any]]:
    """The image inputs under the processor's own settings, then without and with several views per image."""
    image_processor = getattr(processor, "image_processor", processor)
    nested = [list(row) for row in rows if row]
    one_view = FAMILIES[parts.family].one_view if parts.family in FAMILIES else {}
    # what the processor adds to the image processor's own settings
    added = getattr(getattr(processor, "valid_processor_kwargs", None), "_defaults", {}).get("images_kwargs", {})
    settings = [{}, one_view, {name: not value for name, value in one_view.items() if isinstance(value, bool)}]
    for options in settings if one_view else settings[:1]:
        for given in (images, nested):  # some image processors want a list per row
            try:
                own = dict(image_processor(images=given, return_tensors="pt", **{**added, **options}))
            except FAILURES:
                continue
            if isinstance(own.get("pixel_values"), Tensor):
                yield own | {"pixel_values": own["pixel_values"].float()}


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and torch.equal(a.cpu(), b.cpu()))


def _is_near(own: Tensor, pixels: Tensor, grid: Tensor | None, tolerance: float) -> bool:
    """Whether each image, or each tile, is near its counterpart: a mean over a batch would hide one wrong image."""
    if own.shape != pixels.shape:
        return False
    sizes = grid.prod(-1).tolist() if grid is not None else [1] * (pixels.shape[0] if pixels.dim() < 5 else 0)
    if pixels.dim() == 5:  # (rows or images, tiles, 3, H, W)
        own, pixels = own.flatten(0, 1), pixels.flatten(0, 1)
        sizes = [1] * len(pixels)
    pairs = zip(own.split(sizes), pixels.split(sizes), strict=True)
    return all(float((a - b).abs().mean()) <= tolerance for a, b in pairs)


# -- how many images


def check_rows(
    parts: ModelParts, rows: Sequence[Sequence[Any]], counts: Sequence[int], inputs: Mapping[str, Any]
) -> None:
    """Raise WrongImages if a row has more or fewer image tokens than its images make.

    Args:
        parts: of the model.
        rows: the images of each batch row.
        counts: the image tokens of each batch row.
        inputs: of the model; where they do not tell an image's share of the tokens, nothing is checked.
    """
    images = sum(map(len, rows))
    grid = inputs.get("image_grid_thw")
    if parts.layout == "patches" and grid is not None and len(grid) == images:
        sizes = grid.prod(-1).tolist()
    elif parts.layout == "images":
        sizes = [1] * images
    else:
        return
    left = iter(sizes)
    for row, (own, count) in enumerate(zip(rows, counts, strict=True)):
        size = sum(next(left) for _ in own)
        if size * sum(counts) != count * sum(sizes):
            raise WrongImages(f"images= has {_images(len(own))} for row {row}, which shows more or fewer")


def _count_images(parts: ModelParts, processor: Any, pixels: Tensor, inputs: Mapping[str, Any]) -> int | None:
    """How many images the inputs show; None where they do not tell."""
    for name in ("image_grid_thw", "image_sizes"):
        if inputs.get(name) is not None:
            return len(inputs[name])
    if parts.layout == "images":
        return len(pixels)
    ids = inputs.get("input_ids", inputs.get("inputs"))
    if not isinstance(ids, Tensor):
        return None
    mark = _whole_view_id(processor)
    if mark is not None and bool((ids == mark).any()):
        return int((ids == mark).sum())
    visual = (ids == parts.image_token_id).int()
    runs = int((visual.diff(dim=1, prepend=visual.new_zeros(len(visual), 1)) == 1).sum())
    # With other tokens between its tiles, an image has several runs; there are fewer runs than tiles where it has one.
    if pixels.dim() == 4 or runs < _real_tiles(pixels):
        return runs
    return None


def _whole_view_id(processor: Any) -> int | None:
    """The token before an image's whole view, of processors that write one (Idefics 3, SmolVLM)."""
    token = getattr(processor, "global_image_tag", None) or getattr(processor, "global_image_token", None)
    tokenizer = getattr(processor, "tokenizer", None)
    found = tokenizer.convert_tokens_to_ids(token) if isinstance(token, str) and tokenizer is not None else None
    return found if isinstance(found, int) else None


def _real_tiles(pixels: Tensor) -> int:
    """Tiles that are not padding, which is zero."""
    return int(pixels.flatten(0, 1).flatten(1).any(1).sum())


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count} images"


# -- the same images under unknown settings


def _at_grid(processor: Any, images: list[Image.Image], grid: Tensor) -> Tensor:
    """Patches of the images at the sizes that the model got: grid (images, 3) of times, rows and columns."""
    image_processor = getattr(processor, "image_processor", processor)
    side = int(image_processor.patch_size)
    sized = [
        image.resize((columns * side, rows * side), Image.Resampling.BICUBIC)
        for image, (_, rows, columns) in zip(images, grid.tolist(), strict=True)
    ]
    own = [image_processor(images=[image], return_tensors="pt", do_resize=False)["pixel_values"] for image in sized]
    return torch.cat(own).float()


def _has_views(
    parts: ModelParts, processor: Any, images: list[Image.Image], pixels: Tensor, inputs: Mapping[str, Any]
) -> bool | None:
    """Whether the whole view of each image is among the tiles, in order; None where they have other sizes."""
    sizes = inputs.get("image_sizes")
    if pixels.dim() == 4 and sizes is not None:  # one view per image, padded to the largest
        return _has_padded(processor, images, pixels, sizes.tolist())
    views = parts.pixels(processor, images)["pixel_values"].float()
    if views.dim() == 5:
        views = views[:, 0]  # the whole view is the first where there are several
    tiles = pixels.flatten(0, 1) if pixels.dim() == 5 else pixels
    if views.shape[1:] != tiles.shape[1:]:
        return None
    if sizes is not None:  # (images, tiles, 3, H, W)
        return all(float((view - own[0]).abs().mean()) <= RESIZED for view, own in zip(views, pixels, strict=True))
    place = 0
    for view in views:
        near = [i for i in range(place, len(tiles)) if float((view - tiles[i]).abs().mean()) <= RESIZED]
        if not near:
            return False
        place = near[0] + 1
    return True


def _has_padded(processor: Any, images: list[Image.Image], pixels: Tensor, sizes: list[list[int]]) -> bool:
    image_processor = getattr(processor, "image_processor", processor)
    for image, given, (height, width) in zip(images, pixels, sizes, strict=True):
        own = image_processor(images=[image], return_tensors="pt")["pixel_values"].float()
        own = interpolate(own, (height, width), mode="bicubic", antialias=True)[0]
        if float((own - given[:, :height, :width]).abs().mean()) > RESIZED:
            return False
    return True


# -- features that were encoded beforehand


def _check_features(
    parts: ModelParts, processor: Any, images: list[Image.Image], features: Any, inputs: Mapping[str, Any]
) -> str | None:
    grid = inputs.get("image_grid_thw")
    try:
        given = [t.reshape(-1, t.shape[-1]).float() for t in features["image"].pooler_output]
        if parts.layout != "tiles" and len(given) != len(images):
            raise WrongImages(f"the inputs show {_images(len(given))}, and images= has {len(images)}")
        if parts.layout == "patches" and grid is not None:
            pixels: Mapping[str, Tensor] = {
                "pixel_values": _at_grid(processor, images, grid),
                "image_grid_thw": grid.cpu(),
            }
        else:
            pixels = parts.pixels(processor, images)
        with without_methods():
            own = [t.float() for t in parts.encode(pixels)]
    except WrongImages:
        raise
    except FAILURES:
        return "the features of the inputs cannot be compared"
    if len(given) != len(own) or any(a.shape != b.shape for a, b in zip(given, own, strict=True)):
        return "the features of the inputs have another layout"
    # Per token and centered: features of different images share most of their mean.
    cosines = [
        torch.cosine_similarity((a - a.mean(0)).flatten(), (b.to(a) - b.to(a).mean(0)).flatten(), 0)
        for a, b in zip(given, own, strict=True)
    ]
    if cosines and not bool((torch.stack(cosines) > UNLIKE).all()):
        raise WrongImages("images= are not the images that the model was given")
    return None
