"""Visual tokens reinforced by their image's crops, as tensors alone: what AIR's transported reading does to them.

The one place of this plug-in that knows AIR's parts. Knows nothing of vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from airvlm import AIR
from airvlm.inputs.shrink import reduced, usable_side
from airvlm.methods.evidence.crops import Box, CropTokens, crop_boxes, crops
from airvlm.methods.evidence.match import gather
from airvlm.methods.crop_blend import project

__all__ = ["cut", "reinforced"]


def cut(image: Image.Image, air: AIR, processor: Any) -> list[Image.Image]:
    """The crops of an image: of the original, or of a copy that still has all that the processor can use."""
    boxes = crop_boxes(image.size, air.patches, air.layout, air.seed)
    view, inside = reduced(image, boxes, usable_side(processor))
    return crops(view, [Box(*box) for box in inside])


@torch.no_grad()
def reinforced(
    Z: Sequence[Tensor],
    tokens: Sequence[Sequence[Tensor]],
    sizes: Sequence[tuple[int, int]],
    airs: Sequence[AIR],
) -> list[Tensor | None]:
    """The new tokens (K, d) of each image, from its own Z (K, d) and its crops' (N_m, d); None where none changes."""
    new: dict[int, Tensor | None] = {}
    for air in dict.fromkeys(airs):
        members = [i for i, own in enumerate(airs) if own == air]
        packed = [_packed(tokens[i], sizes[i], air, Z[i].shape[-1]) for i in members]
        found = gather([Z[i] for i in members], packed, air, project)
        for i, evidence in zip(members, found, strict=True):
            if evidence.projected is None:
                new[i] = None
                continue
            at, projected = evidence.prototypes, evidence.projected
            if evidence.covered is not None:
                at, projected = at[evidence.covered], projected[evidence.covered]
            z = Z[i][at].float()
            tokens_of_image = Z[i].clone()
            tokens_of_image[at] = (z + air.weight * (projected - z)).to(Z[i].dtype)
            new[i] = tokens_of_image
    return [new[i] for i in range(len(Z))]


def _packed(tokens: Sequence[Tensor], size: tuple[int, int], air: AIR, d: int) -> CropTokens:
    boxes = tuple(crop_boxes(size, air.patches, air.layout, air.seed))
    if not tokens:
        return CropTokens((), size, torch.zeros(0, 0, d), None)
    padded = nn.utils.rnn.pad_sequence(list(tokens), batch_first=True)  # (M, N, d)
    lengths = torch.tensor([len(own) for own in tokens], device=padded.device)
    mask = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
    return CropTokens(boxes, size, padded, None if bool(mask.all()) else mask)
