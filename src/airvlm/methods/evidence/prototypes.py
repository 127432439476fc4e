"""Prototype reduction: the Q visual tokens that are farthest from their mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Prototypes", "select_prototypes"]


@dataclass(frozen=True)
class Prototypes:
    """Which tokens were kept. Indices ascend, so the kept tokens stay in reading order."""

    indices: Tensor  # (..., Q) positions among the K tokens; 0 where `mask` is False
    mask: Tensor  # (..., Q) bool, False where a row had fewer than Q tokens

    def gather(self, Z: Tensor) -> Tensor:
        """The kept tokens of Z (..., K, d), as (..., Q, d); zero outside the mask."""
        *batch, K, d = Z.shape
        first = K * torch.arange(math.prod(batch), device=Z.device).view(*batch, 1)  # a row's first token
        # Whole rows of one long matrix: gathering along a dimension would look up every number by itself.
        kept = Z.reshape(-1, d)[first + self.indices]  # (..., Q, d)
        return kept.masked_fill_(~self.mask.unsqueeze(-1), 0)


def select_prototypes(Z: Tensor, q: int | Tensor, mask: Tensor | None = None) -> Prototypes:
    """Keep the q tokens with the largest distance to their mean h_p, ||h_k - h_p||_2.

    Equal distances keep the earlier token, so that constant tokens give a defined result on every device.

    Args:
        Z: tokens (..., K, d).
        q: how many, or one count per row (...,); q > K keeps all K.
        mask: (..., K), True where a token exists.
    """
    K = Z.shape[-2]
    Z = Z.detach().float()
    exists = torch.ones(Z.shape[:-1], dtype=torch.bool, device=Z.device) if mask is None else mask.bool()
    counts = exists.sum(-1)  # (...)
    # Masked by where, not by a product: a padding token may hold anything, even NaN.
    h_p = torch.where(exists.unsqueeze(-1), Z, 0).sum(-2) / counts.clamp_min(1).unsqueeze(-1)  # (..., d)
    d = torch.linalg.vector_norm(Z - h_p.unsqueeze(-2), dim=-1)  # (..., K)
    d = torch.where(exists, d, -1.0)

    if isinstance(q, Tensor):
        wanted, width = q.to(Z.device), min(K, int(q.max())) if q.numel() else 0
    else:
        wanted, width = torch.full_like(counts, q), min(K, q)
    order = torch.sort(d, dim=-1, descending=True, stable=True).indices[..., :width]  # (..., Q), farthest first
    kept = torch.arange(width, device=Z.device) < torch.minimum(wanted, counts).unsqueeze(-1)

    # Reading order: sort the positions, with those not kept at the end.
    positions = torch.sort(torch.where(kept, order, K), dim=-1).values
    return Prototypes(torch.where(positions < K, positions, 0), positions < K)
