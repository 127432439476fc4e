"""MLIHE: heads-guided attention (Devils in Middle Layers, CVPR 2025). Middle layers look where all heads look together.

s_h + alpha mean_h' |s_h'| on the image's keys, for the last query: every head is raised by what the heads have in
common. Published for layers 5 to 18 of 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates.attention import AttentionMethod, Queries
from airvlm.methods.templates.layers import layer_span, scale_span
from airvlm.runtime.attention import Mode

__all__ = ["MLIHE"]

PUBLISHED = (5, 19)  # --guide-range 5,18, whose end is included
DEPTH = 32


@dataclass(frozen=True)
class MLIHE(AttentionMethod):
    """Heads-guided attention in the middle layers."""

    name: ClassVar[str] = "mlihe"
    paper: ClassVar[str | None] = (
        "Devils in middle layers of large vision-language models (CVPR 2025, arXiv 2411.16724)"
    )
    summary: ClassVar[str] = "middle layers attend more to the image, where their heads agree"
    mode: ClassVar[Mode] = "mean_abs"
    queries: ClassVar[Queries] = "last"

    alpha: float = option(0.5, "how much the scores of the image's keys are raised", low=0, off=0, search=(0.1, 1.0))
    layers: tuple[int, int] | None = option(
        None, "decoder layers that are changed; none is (5, 19) of 32, scaled to the decoder", span=True
    )

    def span(self, depth: int) -> range:
        """The layers that are changed in a decoder of `depth` layers."""
        return scale_span(PUBLISHED, DEPTH, depth) if self.layers is None else layer_span(self.layers, depth)

    def key_weights(self, visual: Tensor, before: Tensor) -> Tensor:
        """Raise the image's keys: (B, L)."""
        return self.alpha * visual
