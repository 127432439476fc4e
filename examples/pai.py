"""PAI's attention half (Paying More Attention to Image, ECCV 2024, arXiv 2407.21771), outside of the package.

The attention scores s of the image's keys become s + alpha |s|, in all layers but the first two. The published code
changes the last token's scores; here those of all text after the image are changed.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from airvlm import AttentionMethod, option


@dataclass(frozen=True)
class PAI(AttentionMethod):
    """Text attends more to the image."""

    name: ClassVar[str] = "pai-attention"
    summary: ClassVar[str] = "raises the attention scores of the image's keys in all layers but the first two"

    alpha: float = option(0.2, "how much the scores of the image's keys are raised", low=0, off=0)
    first_layer: int = option(2, "first decoder layer that is changed", low=0)

    def span(self, depth: int) -> range:
        return range(min(self.first_layer, depth - 1), depth)

    def key_weights(self, visual: Tensor, before: Tensor) -> Tensor:
        return self.alpha * visual
