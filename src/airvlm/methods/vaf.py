"""VAF: visual amplification fusion (ClearSight, CVPR 2025). Middle layers are made to attend more to the image.

In the layers where image and text meet, the attention scores of the image's keys are raised and those of the system
prompt's lowered, for the text after the image.

The published code multiplies scores, s (1 + a), which *lowers* attention where a score is negative: that is
`faithful=True`, and is done by scaling keys, so that any attention kernel is kept. The default is sign-safe, s + a |s|,
and computes the scores of the queries after the image itself; all other queries keep the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates import AttentionMethod
from airvlm.methods.templates.layers import layer_span, scale_span
from airvlm.runtime.attention import Mode

__all__ = ["VAF"]

PUBLISHED = (9, 15)  # layers 9 to 14 of LLaVA-1.5-7B's 32, the only published setting
DEPTH = 32


@dataclass(frozen=True)
class VAF(AttentionMethod):
    """Visual amplification fusion."""

    name: ClassVar[str] = "vaf"
    paper: ClassVar[str | None] = "ClearSight: visual signal enhancement (CVPR 2025, arXiv 2503.13107)"
    summary: ClassVar[str] = "middle layers attend more to the image and less to the system prompt"

    enhance: float = option(
        0.15, "how much the scores of the image's keys are raised", low=0, off=0, search=(0.05, 0.6)
    )
    suppress: float = option(
        0.05,
        "how much the scores of the keys before the image are lowered",
        low=0,
        high=1,
        off=0,
        search=(0.0, 0.3),
    )
    layers: tuple[int, int] | None = option(
        None,
        "decoder layers that are changed: the first and the one after the last; none is (9, 15) of 32, scaled to the "
        "decoder",
        span=True,
    )
    faithful: bool = option(False, "multiply scores as the published code does, which inverts negative ones")

    @property
    def mode(self) -> Mode:  # type: ignore[override]  # an option decides
        return "scale" if self.faithful else "abs"

    def span(self, depth: int) -> range:
        """The layers that are changed in a decoder of `depth` layers."""
        return scale_span(PUBLISHED, DEPTH, depth) if self.layers is None else layer_span(self.layers, depth)

    def key_weights(self, visual: Tensor, before: Tensor) -> Tensor:
        """Raise the image's keys, lower those before it: (B, L)."""
        return self.enhance * visual - self.suppress * before
