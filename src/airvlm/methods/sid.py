"""SID: self-introspective decoding (ICLR 2025). What the least attended visual tokens alone make likely is subtracted.

In a second stream only the `keep` visual tokens that the last query attends to least may be seen from decoder layer
`layer` on; they are chosen in the layer before, anew in every pass. l* = (1 + alpha) l - alpha l_sid, with a cut-off.

`faithful=True` is what the published code runs: alpha = 0.5, and no cut-off in greedy decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method, option
from airvlm.methods.templates.attention import AttentionIntervention
from airvlm.methods.templates.contrastive import ContrastiveIntervention, ContrastiveMethod
from airvlm.runtime.attention import AttentionChange, fit_keys
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention
from airvlm.runtime.streams import Stream

__all__ = ["SID", "LeastAttended"]


@dataclass(frozen=True)
class SID(ContrastiveMethod):
    """Self-introspective decoding."""

    name: ClassVar[str] = "sid"
    paper: ClassVar[str | None] = "Self-introspective decoding (ICLR 2025, arXiv 2408.02032)"
    summary: ClassVar[str] = "subtracts what the model would say if it saw only the least attended visual tokens"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "2 passes"

    alpha: float = option(1.0, "weight of the contrast; 0 is off", low=0, off=0, search=(0.1, 2.0))
    beta: float = option(0.1, "tokens less likely than beta times the likeliest are never said", low=0, high=1)
    layer: int = option(2, "first decoder layer in which visual tokens are hidden; the one before chooses them", low=1)
    keep: float = option(0.17, "share of the visual tokens that stay visible; 100 of 576 in the code", above=0, high=1)
    faithful: bool = option(False, "as the published code runs: alpha = 0.5, and no cut-off in greedy decoding")

    def streams(self, context: Context) -> Sequence[Stream]:
        return [Stream(self.name, context.parts, attention=LeastAttended(self, context, self.layer, self.keep))]

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[float]:
        alpha = 0.5 if self.faithful else self.alpha
        return 1 + alpha, -alpha

    def start(self, context: Context) -> Intervention:
        return _Published(self, context) if self.faithful else ContrastiveIntervention(self, context)


class LeastAttended(AttentionIntervention):
    """Hides all but the least attended visual tokens of a stream, from a layer on.

    Args:
        method: that the stream belongs to.
        context: of the session.
        layer: the first layer in which tokens are hidden; the one before chooses them.
        keep: share of the visual tokens that stay visible.
    """

    def __init__(self, method: Method, context: Context, layer: int, keep: float) -> None:
        super().__init__(method, context)
        depth = len(context.parts.layers)
        if layer >= depth:
            raise ValueError(f"layer = {layer}, but the decoder has {depth} layers")
        self.layer, self.keep = layer, keep
        self.span = range(layer - 1, depth)
        self._hidden: Tensor | None = None  # (B, L, total)

    def attention_of(self, layer: int) -> AttentionChange | None:
        assert self.current is not None
        first = self.current[1]
        if layer >= self.layer:
            return AttentionChange(self.total, hidden_keys=self._hidden)

        def choose(p: Tensor) -> None:  # (B, H, R, T)
            assert self.visual_keys is not None
            visual = fit_keys(self.visual_keys, p.shape[-1], self.total).bool().to(p.device)[:, None]  # (B, 1, T)
            mean = p.mean(1).masked_fill(~visual, torch.inf)  # (B, R, T)
            rank = mean.argsort(dim=-1, stable=True).argsort(dim=-1)
            count = (visual.sum(-1, keepdim=True) * self.keep).round().clamp_min(1)  # (B, 1, 1)
            hidden = visual & (rank >= count)  # (B, R, T)
            before = hidden[:, :1].expand(-1, first, -1)  # the prompt's last token decides for all before it
            self._hidden = torch.cat([before, hidden], 1)

        return AttentionChange(self.total, first=first, observe=choose)


class _Published(ContrastiveIntervention):
    method: SID
    greedy = False

    def on_call(self, call: GenerateCall) -> None:
        super().on_call(call)
        self.greedy = not call.option("do_sample", False) and call.option("num_beams", 1) == 1

    def cut_off(self, l: Tensor, others: Sequence[Tensor]) -> float | Tensor | None:
        return None if self.greedy else super().cut_off(l, others)
