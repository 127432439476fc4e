"""Visual tokens reinforced by their image's crops, as tensors alone: what AIR's transported reading does to them.

The one place of this plug-in that knows AIR's parts. Knows nothing of vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor, nn

from airvlm import AIR
from airvlm.methods.air.crops import crop_boxes, crops
from airvlm.methods.air.evidence import gather
from airvlm.methods.air.views import Views

__all__ = ["cut", "reinforced"]


def cut(image: Image.Image, air: AIR) -> list[Image.Image]:
    """The crops of an image, at its own resolution."""
    return crops(image, crop_boxes(image.size, air.patches, air.layout, air.seed))


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
        views = [_views(tokens[i], sizes[i], air, Z[i].shape[-1]) for i in members]
        found = gather([Z[i] for i in members], views, air, carrying=True)
        for i, evidence in zip(members, found, strict=True):
            if evidence.carried is None:
                new[i] = None
                continue
            at, carried = evidence.prototypes, evidence.carried
            if evidence.covered is not None:
                at, carried = at[evidence.covered], carried[evidence.covered]
            z = Z[i][at].float()
            tokens_of_image = Z[i].clone()
            tokens_of_image[at] = (z + air.weight * (carried - z)).to(Z[i].dtype)
            new[i] = tokens_of_image
    return [new[i] for i in range(len(Z))]


def _views(tokens: Sequence[Tensor], size: tuple[int, int], air: AIR, d: int) -> Views:
    boxes = tuple(crop_boxes(size, air.patches, air.layout, air.seed))
    if not tokens:
        return Views((), size, torch.zeros(0, 0, d), None)
    packed = nn.utils.rnn.pad_sequence(list(tokens), batch_first=True)  # (M, N, d)
    lengths = torch.tensor([len(own) for own in tokens], device=packed.device)
    mask = torch.arange(packed.shape[1], device=packed.device) < lengths[:, None]
    return Views(boxes, size, packed, None if bool(mask.all()) else mask)
