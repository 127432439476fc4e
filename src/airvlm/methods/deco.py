"""DeCo: dynamic correction decoding (ICLR 2025). An earlier layer, surer of a likely token, corrects the last one.

Candidates are the shortest prefix of the `top_k` likeliest tokens that holds `top_p` of the probability. Of the layers
in a span, the one that gives a candidate the highest probability m is chosen: l* = l + alpha m l_layer on the
candidates, and nothing else can be said. Where the likeliest token alone has `top_p`, nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates.layers import layer_span, scale_span
from airvlm.methods.templates.lens import LensMethod
from airvlm.runtime.intervention import ForwardPass

__all__ = ["DeCo"]

PUBLISHED = (19, 28)  # outputs of these layers of LLaVA-1.5-7B's 32: hidden_states[20] to [28]
DEPTH = 32


@dataclass(frozen=True)
class DeCo(LensMethod):
    """Dynamic correction decoding."""

    name: ClassVar[str] = "deco"
    paper: ClassVar[str | None] = "MLLM can see? Dynamic correction decoding (ICLR 2025, arXiv 2410.11779)"
    summary: ClassVar[str] = "adds the logits of the earlier layer that is surest of a likely token"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "1 pass with the head applied to some layers"

    alpha: float = option(
        0.6, "weight of the earlier layer; 0 is off, the choice of candidates included", low=0, off=0, search=(0.1, 1.0)
    )
    top_p: float = option(0.9, "probability that the candidates hold together", above=0, high=1)
    top_k: int = option(20, "most candidates", low=1)
    layers: tuple[int, int] | None = option(
        None, "decoder layers that are read: the first and the one after the last; none is (19, 28) of 32", span=True
    )

    def lens_layers(self, depth: int) -> Sequence[int]:
        return scale_span(PUBLISHED, DEPTH, depth) if self.layers is None else layer_span(self.layers, depth)

    def next_logits(self, l: Tensor, lens: Tensor, fp: ForwardPass) -> Tensor:
        p, order = l.softmax(-1).topk(min(self.top_k, l.shape[-1]), dim=-1)  # (B, L, k)
        before = p.cumsum(-1) - p
        candidate = before < self.top_p  # the shortest prefix that reaches top_p; the likeliest is always in it
        n = len(lens)
        q = lens.softmax(-1).gather(-1, order.expand(n, *order.shape)) * candidate  # (n, B, L, k)
        best, layer = q.amax(-1).max(0)  # (B, L)
        chosen = lens.gather(0, layer[None, ..., None].expand(1, *lens.shape[1:]))[0]  # (B, L, V)
        corrected = l + self.alpha * best.unsqueeze(-1) * chosen
        allowed = torch.zeros_like(l, dtype=torch.bool).scatter(-1, order, candidate)
        return torch.where(allowed, corrected, torch.finfo(l.dtype).min)
