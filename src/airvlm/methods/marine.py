"""MARINE: image-grounded guidance (ICML 2025). The answer is pulled towards that to a prompt with detected objects.

log p* = log p + weight (log p_guided - log p): p_guided is the model's distribution for the same image and a prompt
that begins with the objects that detectors found. 0 is vanilla, 1 is the guided prompt alone. No cut-off.

The paper detects objects with DETR and RAM++; here they are brought by the caller, as text: `objects=("dog; cup",)` for
all rows, or one text per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates.contrastive import ContrastiveMethod
from airvlm.runtime.intervention import Context, ForwardPass
from airvlm.runtime.streams import Stream, insert_text

__all__ = ["MARINE"]

# as published, so that figures compare; {objects} is what the caller gives
TEMPLATE = "List of detected objects in the image:\n{objects}\nBased on the detected objects above, "


@dataclass(frozen=True)
class MARINE(ContrastiveMethod):
    """Image-grounded guidance."""

    name: ClassVar[str] = "marine"
    paper: ClassVar[str | None] = "Image-grounded guidance, MARINE (ICML 2025, arXiv 2402.08680)"
    summary: ClassVar[str] = "adds what the model would say if it were told which objects were detected"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "2 passes"
    data: ClassVar[str] = "the objects of each image, from detectors of your own"

    weight: float = option(0.7, "share of the guided prompt; 0 is off", low=0, off=0, search=(0.1, 1.0))
    objects: tuple[str, ...] = option((), "what was detected: one text for all rows, or one per row of the batch")
    template: str = option(TEMPLATE, "what stands before the question in the guided prompt, with {objects}")

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{objects}" not in self.template:
            raise ValueError("template = ...: it must contain {objects}")
        if not all(text.strip() for text in self.objects):
            raise ValueError("objects has an empty text: leave the method out where nothing was detected")

    def streams(self, context: Context) -> Sequence[Stream]:
        if not self.objects:
            raise ValueError(f"{self.name} needs the detected objects: MARINE(objects=('dog; cup',))")
        texts = [self.template.replace("{objects}", one) for one in self.objects]
        edits = [insert_text(context.parts, context.processor, text) for text in texts]

        def guide(ids: list[int], row: int) -> list[int]:
            if len(edits) > 1 and row >= len(edits):
                raise ValueError(f"objects has {len(edits)} texts, and the batch has more rows: give one text per row")
            return edits[row if len(edits) > 1 else 0](ids)

        return [Stream(self.name, context.parts, edit_row_ids=guide)]

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[float]:
        return 1 - self.weight, self.weight

    def cut(self, l: Tensor, others: Sequence[Tensor]) -> None:
        return None
