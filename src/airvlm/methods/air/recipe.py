"""The recipe: how a picture's tokens and its crops' tokens become evidence, choice by choice.

Refuses what cannot be meant, and holds the rule that keeps crops. Knows nothing of how evidence is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from airvlm.hooks.fields import check, setting
from airvlm.methods.air.prototypes import how_many

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """How tokens become evidence. Symbols are the paper's."""

    top_q: int | float = setting(
        1.0, "Q, the prototypes: a count, or a fraction of the image's K tokens", low=0, search=(0.1, 1.0)
    )
    eps: float = setting(
        0.03, "entropic regulariser of the transport; small is sharp", above=0, search=(0.01, 0.2)
    )
    distance: Literal["ot", "cosine"] = setting("ot", "of a crop: ot is <T, C>, cosine the mean of C")
    tau: float | None = setting(
        None, "keep crops whose distance is at most tau (at most one of tau, keep, quantile)", low=0
    )
    keep: int | None = setting(None, "keep this many nearest crops", low=0, search=(1, 12))
    quantile: float | None = setting(
        None, "keep crops up to this quantile of their distances; with no rule all are kept", low=0, high=1
    )
    order: Literal["nearest", "farthest", "random"] = setting(
        "nearest", "which crops make up the number kept; farthest and random are controls"
    )
    memory: Literal["crops", "prototypes+crops", "average"] = setting(
        "crops",
        "Z~: the kept crops' tokens, with the prototypes before them (paper, lineage), or (a control) the mean visual "
        "token",
    )
    noise: float = setting(
        0.0, "control: Gaussian noise on the kept crops' tokens, in units of their own deviation", low=0
    )
    carry: Literal["plan", "softmax", "geometry"] = setting(
        "plan",
        "which crop tokens a prototype takes: by the transport plan, by softmax of -C/eps, or by where crops lie",
        readings=("transported",),
    )
    temperature: float | None = setting(
        None,
        "of the softmax that mixes crops by a prototype's own cost; eps if none",
        above=0,
        readings=("transported",),
    )
    seed: int = setting(0, "of random crops, of the random order and of the noise")

    def __post_init__(self) -> None:
        check(self)
        chosen = [n for n in ("tau", "keep", "quantile") if getattr(self, n) is not None]
        if len(chosen) > 1:
            raise ValueError(
                f"{' and '.join(chosen)} are both set: give at most one of tau, keep and quantile"
            )
        how_many(self.top_q, 1)

    def kept(self, d: Tensor) -> Tensor:
        """Which crops are kept, by their distances d (..., M): the count by the rule, its members by `order`."""
        M = d.shape[-1]
        if self.tau is not None:
            count = (d <= self.tau).sum(-1, keepdim=True)
        elif self.keep is not None:
            count = torch.full_like(d[..., :1], min(self.keep, M), dtype=torch.long)
        elif self.quantile is not None and M:
            limit = torch.quantile(d, self.quantile, dim=-1, keepdim=True)
            count = (d <= limit + 1e-7).sum(-1, keepdim=True)
        else:
            count = torch.full_like(d[..., :1], M, dtype=torch.long)
        if self.order == "random":
            drawn = torch.randperm(M, generator=torch.Generator().manual_seed(self.seed)).to(d.device)
            rank = drawn.expand(d.shape)
        else:
            ordered = d.argsort(dim=-1, descending=self.order == "farthest", stable=True)
            rank = ordered.argsort(dim=-1)
        return rank < count
