"""Prototype reduction: the Q visual tokens that lie farthest from their mean.

Pure tensors, batched over any leading dimensions. Knows nothing of models, images or transport.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prototypes:
    """Which tokens were kept. Indices ascend, so that the kept tokens stay in reading order."""

    indices: Tensor  # (..., Q) positions among the K tokens; 0 where `mask` is False
    mask: Tensor  # (..., Q) bool, False where a row had fewer than Q tokens to give

    def gather(self, Z: Tensor) -> Tensor:
        """The kept tokens of Z (..., K, d), as (..., Q, d); rows outside the mask are zero."""
        *batch, K, d = Z.shape
        first = K * torch.arange(math.prod(batch), device=Z.device).view(*batch, 1)  # a row's first token
        # Whole rows of one long matrix: gathering along a dimension would look up every number by itself.
        kept = Z.reshape(-1, d)[first + self.indices]  # (..., Q, d)
        return kept.masked_fill_(~self.mask.unsqueeze(-1), 0)


def how_many(q: int | float, K: int) -> int:
    """Resolve Q: an int counts tokens, a float in (0, 1] is a fraction of K (at least one token when K > 0)."""
    if isinstance(q, bool) or q < 0 or (isinstance(q, float) and q > 1):
        raise ValueError(
            f"top_q = {q!r}: give a count (an int of at least 0) or a fraction (a float up to 1.0)"
        )
    if isinstance(q, int):
        return min(q, K)
    return min(K, max(1, round(q * K))) if q > 0 else 0


def prototypes(Z: Tensor, q: int | Tensor, mask: Tensor | None = None) -> Prototypes:
    """Keep the q tokens of Z (..., K, d) with the largest distance to their mean h_p, ||h_k - h_p||_2.

    `q` is a count, or one count per row (...,); `mask` (..., K) is True where a token exists. q > K keeps all K.
    Equal distances keep the earlier token, so that constant tokens give a defined result on every device.
    """
    K = Z.shape[-2]
    Z = Z.detach().float()
    exists = torch.ones(Z.shape[:-1], dtype=torch.bool, device=Z.device) if mask is None else mask.bool()
    counts = exists.sum(-1)  # (...)
    weight = exists.unsqueeze(-1)
    # Masked by where, not by product: a padding token may hold anything, also NaN.
    h_p = torch.where(weight, Z, 0).sum(-2) / counts.clamp_min(1).unsqueeze(-1)  # (..., d)
    d = torch.linalg.vector_norm(Z - h_p.unsqueeze(-2), dim=-1)  # (..., K)
    d = torch.where(exists, d, -1.0)

    if isinstance(q, Tensor):
        wanted, width = q.to(Z.device), min(K, int(q.max())) if q.numel() else 0
    else:
        wanted, width = torch.full_like(counts, q), min(K, q)
    order = torch.sort(d, dim=-1, descending=True, stable=True).indices[
        ..., :width
    ]  # (..., Q), farthest first
    kept = torch.arange(width, device=Z.device) < torch.minimum(wanted, counts).unsqueeze(-1)

    # Reading order: sort the positions, those not kept last.
    positions = torch.sort(torch.where(kept, order, K), dim=-1).values
    return Prototypes(torch.where(positions < K, positions, 0), positions < K)
