"""DoLa: decoding by contrasting layers (ICLR 2024). What an early layer already says is subtracted from the last one.

Of the candidate layers, the one whose distribution is farthest from the last layer's (Jensen-Shannon) is contrasted:
l* = log p - weight log p_early where p >= beta max p.

`faithful=True` is transformers' implementation: the lens without the final norm, a divergence with its arguments
swapped, and one layer for the whole batch, so that rows influence each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates.lens import LensMethod
from airvlm.runtime.intervention import ForwardPass

__all__ = ["DoLa"]


@dataclass(frozen=True)
class DoLa(LensMethod):
    """Decoding by contrasting layers."""

    name: ClassVar[str] = "dola"
    paper: ClassVar[str | None] = "DoLa: decoding by contrasting layers (ICLR 2024, arXiv 2309.03883)"
    summary: ClassVar[str] = "subtracts what an early layer already says"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "1 pass with the head applied to some layers"

    weight: float = option(
        1.0, "weight of the early layer; 0 is off, the cut-off included", low=0, off=0, search=(0.1, 2.0)
    )
    beta: float = option(0.1, "tokens less likely than beta times the likeliest are never said", low=0, high=1)
    candidates: Literal["high", "low"] = option("high", "candidate layers: every second one of the upper or lower half")
    faithful: bool = option(
        False, "as transformers implements it: no final norm, swapped divergence, one layer per batch"
    )

    @property
    def normed(self) -> bool:  # type: ignore[override]  # an option decides
        return not self.faithful

    def lens_layers(self, depth: int) -> Sequence[int]:
        half = depth // 2
        # published indices count the embeddings as 0: index j is the output of layer j - 1
        states = range(half, depth, 2) if self.candidates == "high" else range(2, half, 2)
        if depth > 40:
            states = range(depth - 20, depth, 2) if self.candidates == "high" else range(2, 20, 2)
        layers = [j - 1 for j in states]
        if not layers:
            raise ValueError(f"candidates = {self.candidates!r}: a decoder of {depth} layers has no such layer")
        return layers

    def next_logits(self, l: Tensor, lens: Tensor, fp: ForwardPass) -> Tensor:
        log_p, log_q = l.log_softmax(-1), lens.log_softmax(-1)  # (B, L, V), (n, B, L, V)
        p, q = log_p.exp(), log_q.exp()
        mean = 0.5 * (p + q)
        log_mean = mean.clamp_min(1e-30).log()
        if self.faithful:  # KL(m || p) in place of KL(p || m), averaged over the batch
            divergence = (mean * (log_mean - log_p)).sum(-1) + (mean * (log_mean - log_q)).sum(-1)  # (n, B, L)
            divergence = divergence.mean((1, 2), keepdim=True).expand_as(divergence)
        else:
            divergence = (p * (log_p - log_mean)).sum(-1) + (q * (log_q - log_mean)).sum(-1)
        layer = divergence.argmax(0)  # (B, L)
        early = log_q.gather(0, layer[None, ..., None].expand(1, *log_q.shape[1:]))[0]
        contrasted = log_p - self.weight * early
        if not self.beta:
            return contrasted
        implausible = log_p < log_p.amax(-1, keepdim=True) + math.log(self.beta)
        return contrasted.masked_fill(implausible, torch.finfo(l.dtype).min)
