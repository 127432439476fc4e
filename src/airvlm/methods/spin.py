"""SPIN: image-guided head suppression (EMNLP 2025). Heads that look away from the image are turned down.

In every layer, for the last query: of H heads, the int(keep H) with most attention on the image keep their output; the
others are multiplied by `factor` before the output projection.

The published code ranks heads by the sum of their scores *before* the softmax, so that many small positive scores
outrank one sharp peak: that is `faithful=True`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates.attention import HeadIntervention, HeadMethod
from airvlm.methods.templates.layers import layer_span
from airvlm.runtime.attention import AttentionChange, fit_keys
from airvlm.runtime.intervention import Context, ForwardPass, Intervention

__all__ = ["SPIN"]


@dataclass(frozen=True)
class SPIN(HeadMethod):
    """Image-guided head suppression."""

    name: ClassVar[str] = "spin"
    paper: ClassVar[str | None] = "Image-guided head suppression (EMNLP 2025, arXiv 2505.16411)"
    summary: ClassVar[str] = "turns down the attention heads that look away from the image"
    site: ClassVar[str] = "attention"

    factor: float = option(
        0.08, "what is left of a suppressed head's output; 1 is off", low=0, high=1, off=1, search=(0.0, 0.9)
    )
    keep: float = option(0.95, "share of the heads that stay as they are, in every layer", low=0, high=1)
    layers: tuple[int, int] | None = option(None, "decoder layers that are changed; none is all of them", span=True)
    faithful: bool = option(False, "rank heads by summed scores before the softmax, as the published code")

    def span(self, depth: int) -> Sequence[int]:
        """The layers that are changed in a decoder of `depth` layers."""
        return range(depth) if self.layers is None else layer_span(self.layers, depth)

    def head_factors(self, image_share: Tensor, layer: int) -> Tensor:
        """1 for the heads that look at the image most, `factor` for the others: (B, R, H)."""
        rank = image_share.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        return torch.where(rank < int(self.keep * image_share.shape[-1]), 1.0, self.factor)

    def start(self, context: Context) -> Intervention:
        return _BySumOfScores(self, context) if self.faithful else HeadIntervention(self, context)


class _BySumOfScores(HeadIntervention):
    """Hands the summed scores of the image's keys to `head_factors`, in place of attention."""

    def on_pass(self, fp: ForwardPass) -> None:
        super().on_pass(fp)
        self.share.clear()

    def attention_of(self, layer: int) -> AttentionChange | None:
        def read(s: Tensor) -> Tensor:  # (B, H, R, T), a chunk of the queries
            assert self.visual_keys is not None
            visual = fit_keys(self.visual_keys, s.shape[-1], self.total).to(s)
            total = (s * visual[:, None, None]).sum(-1).transpose(1, 2)  # (B, R, H)
            known = self.share.get(layer)
            self.share[layer] = total if known is None else torch.cat([known, total], 1)
            return s

        return self.change(scores=read)
