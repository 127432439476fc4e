"""What crop-blend does to visual tokens, as a function of tensors, without vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from airvlm import CropBlend
from airvlm.inputs.shrink import reduce_for_crops, usable_side
from airvlm.methods.evidence.crops import CropTokens, crop_boxes, fit_area, pad_crops
from airvlm.methods.evidence.matching import gather_evidence
from airvlm.models.families import MAX_CROP_BATCH

__all__ = ["blend_crops", "cut_crops", "group_images"]


def cut_crops(image: Image.Image, method: CropBlend, processor: Any) -> list[Image.Image]:
    """The crops of an image, cut from a reduced copy where the image has more detail than the processor uses."""
    boxes = crop_boxes(image.size, method.num_crops, method.crop_layout, method.crop_seed)
    source, scaled = reduce_for_crops(image, boxes, usable_side(processor))
    crops = [source.crop(box) for box in scaled]
    return crops if method.crop_size is None else [fit_area(crop, method.crop_size) for crop in crops]


def group_images(counts: Sequence[int], beside: int, most: int = MAX_CROP_BATCH) -> list[list[int]]:
    """Images whose crops are encoded together: first those beside the images themselves, perhaps none.

    Args:
        counts: crops of each image.
        beside: how many crops the first group holds.
        most: how many every other group holds; an image with more has a group of its own.
    """
    groups: list[list[int]] = [[]]
    room = beside
    for i, count in enumerate(counts):
        if count > room and (groups[-1] or len(groups) == 1):
            groups.append([])
            room = most
        groups[-1].append(i)
        room -= count
    return groups


@torch.no_grad()
def blend_crops(
    Z: Sequence[Tensor],
    crops: Sequence[Sequence[Tensor]],
    sizes: Sequence[tuple[int, int]],
    methods: Sequence[CropBlend],
) -> list[Tensor | None]:
    """The new tokens (K, d) of each image; None where nothing changes.

    Args:
        Z: each image's visual tokens (K, d).
        crops: each image's crops as tokens (N_m, d).
        sizes: each image's width and height.
        methods: each image's method.
    """
    new: dict[int, Tensor | None] = {}
    for method in dict.fromkeys(methods):
        members = [i for i, own in enumerate(methods) if own == method]
        padded = [_pad(crops[i], sizes[i], method, Z[i].shape[-1]) for i in members]
        found = gather_evidence([Z[i] for i in members], padded, method.evidence_spec())
        for i, evidence in zip(members, found, strict=True):
            if evidence.projected is None:
                new[i] = None
                continue
            at, projected = evidence.prototypes, evidence.projected
            if evidence.covered is not None:  # with match="geometry" there may be places that no kept crop shows
                at, projected = at[evidence.covered], projected[evidence.covered]
            z = Z[i][at].float()
            blended = Z[i].clone()
            blended[at] = (z + method.weight * (projected - z)).to(Z[i].dtype)
            new[i] = blended
    return [new[i] for i in range(len(Z))]


def _pad(tokens: Sequence[Tensor], size: tuple[int, int], method: CropBlend, d: int) -> CropTokens:
    boxes = crop_boxes(size, method.num_crops, method.crop_layout, method.crop_seed)
    return pad_crops(boxes, size, list(tokens), d)
