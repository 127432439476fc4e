"""CRG: contrastive region guidance (ECCV 2024). What the model would say without some regions is subtracted.

l* = (1 + alpha) l - alpha l_black, with l_black the logits for the image with the given boxes painted black. No
cut-off. What the boxes show counts more, because the other stream cannot see it.

Boxes come from the caller or from a detector of theirs, as fractions of the image's width and height, so that they mean
the same for every image size: `CRG(boxes=((0.1, 0.2, 0.5, 0.9),))`. They hold for every image of the block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from PIL import Image
from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates.contrastive import ContrastiveMethod
from airvlm.methods.views import edit_views
from airvlm.runtime.intervention import Context, ForwardPass
from airvlm.runtime.streams import Stream

__all__ = ["CRG"]

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class CRG(ContrastiveMethod):
    """Contrastive region guidance."""

    name: ClassVar[str] = "crg"
    paper: ClassVar[str | None] = "Contrastive region guidance (ECCV 2024, arXiv 2403.02325)"
    summary: ClassVar[str] = "subtracts what the model would say if given regions were blacked out"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "2 passes"
    data: ClassVar[str] = "boxes, from the caller or a detector of theirs"
    needs_pixels: ClassVar[bool] = True

    alpha: float = option(1.0, "weight of the contrast; 0 is off", low=0, off=0, search=(0.1, 2.0))
    boxes: tuple[tuple[float, float, float, float], ...] = option(
        (), "regions (left, top, right, bottom), as fractions of width and height", low=0, high=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for left, top, right, bottom in self.boxes:
            if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
                raise ValueError(
                    f"boxes: ({left:g}, {top:g}, {right:g}, {bottom:g}) is not left < right and top < bottom in 0..1"
                )

    def streams(self, context: Context) -> Sequence[Stream]:
        if not self.boxes:
            raise ValueError(f"{self.name} needs regions: CRG(boxes=((left, top, right, bottom),)) as fractions")
        images = edit_views(self.name, context, lambda image, key: black_out(image, self.boxes))
        return [Stream(self.name, context.parts, images=images)]

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[float]:
        return 1 + self.alpha, -self.alpha

    def cut(self, l: Tensor, others: Sequence[Tensor]) -> None:
        return None


def black_out(image: Image.Image, boxes: Sequence[Box]) -> Image.Image:
    """The image with boxes painted black, every pixel that they touch."""
    image = image.copy()
    width, height = image.size
    for left, top, right, bottom in boxes:
        box = math.floor(left * width), math.floor(top * height), math.ceil(right * width), math.ceil(bottom * height)
        image.paste((0, 0, 0), box)
    return image
