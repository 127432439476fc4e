"""The recipe: how a picture's tokens and its crops' tokens become evidence, choice by choice.

Refuses what cannot be meant, and holds the rule that keeps crops. Knows nothing of how evidence is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from airvlm.methods.air.prototypes import how_many

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """How tokens become evidence. Symbols are the paper's."""

    top_q: int | float = 1.0  # Q, the prototypes: a count, or a fraction of the picture's K tokens
    eps: float = 0.03  # entropic regulariser of the transport; small is sharp
    distance: Literal["ot", "cosine"] = "ot"  # of a crop: ot is <T, C>, cosine the mean of C
    tau: float | None = None  # keep crops whose distance is at most tau (at most one of tau, keep, quantile)
    keep: int | None = None  # keep this many nearest crops
    quantile: float | None = (
        None  # keep crops up to this quantile of their distances; with no rule all are kept
    )
    # which crops make up the number kept; farthest and random are controls
    order: Literal["nearest", "farthest", "random"] = "nearest"
    # Z~: the kept crops' tokens, with the prototypes before them, or (a control) the mean visual token
    memory: Literal["crops", "prototypes+crops", "average"] = "crops"
    noise: float = 0.0  # control: Gaussian noise on the kept crops' tokens, in units of their own deviation
    # which crop tokens a prototype takes: by the plan, by softmax of -C/eps, or those that show its place
    carry: Literal["plan", "softmax", "geometry"] = "plan"
    temperature: float | None = None  # of the softmax that mixes crops by a row's own cost; eps if None
    seed: int = 0  # of random crops, of the random order and of the noise

    def __post_init__(self) -> None:
        chosen = [n for n in ("tau", "keep", "quantile") if getattr(self, n) is not None]
        if len(chosen) > 1:
            raise ValueError(
                f"{' and '.join(chosen)} are both set: give at most one of tau, keep and quantile"
            )
        how_many(self.top_q, 1)
        if not self.eps > 0:
            raise ValueError(f"eps = {self.eps}: the entropic regulariser must be above 0")
        if self.keep is not None and self.keep < 0:
            raise ValueError(f"keep = {self.keep}: the number of crops cannot be negative")
        if self.quantile is not None and not 0 <= self.quantile <= 1:
            raise ValueError(f"quantile = {self.quantile}: give a share between 0 and 1")
        if self.temperature is not None and not self.temperature > 0:
            raise ValueError(f"temperature = {self.temperature}: it must be above 0")
        if not self.noise >= 0:
            raise ValueError(f"noise = {self.noise}: it cannot be negative")
        options = {
            "distance": ("ot", "cosine"),
            "order": ("nearest", "farthest", "random"),
            "memory": ("crops", "prototypes+crops", "average"),
            "carry": ("plan", "softmax", "geometry"),
        }
        for name, allowed in options.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r}: choose one of {', '.join(allowed)}")

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
