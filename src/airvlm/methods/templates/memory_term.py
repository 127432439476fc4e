"""The feed-forward term of AIR and MemVR: phi(x Z^T) Z, attention to a memory Z without softmax."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Activation", "identity", "literal_term", "term"]

Activation = Callable[[Tensor], Tensor]


def identity(scores: Tensor) -> Tensor:
    """phi(s) = s."""
    return scores


def term(x: Tensor, memory: Tensor, phi: Activation = identity, memory_mask: Tensor | None = None) -> Tensor:
    """phi(x Z~^T) Z~ up to one positive factor per token: x (B, R, d), memory (S, d) or (B, S, d) -> (B, R, d).

    The factor keeps half precision from overflowing, and callers that match magnitudes divide it out again. Use
    `literal_term` for the bare sum. An empty or fully masked memory gives zeros.
    """
    scores = _scores(x, memory, phi, memory_mask)  # (B, R, S) float32
    if scores.shape[-1] == 0:
        return torch.zeros_like(x)
    largest = scores.abs().amax(-1, keepdim=True)
    scores = scores / torch.where(largest > 0, largest, 1.0)
    return scores.to(memory.dtype) @ memory


def literal_term(x: Tensor, memory: Tensor, phi: Activation = identity, memory_mask: Tensor | None = None) -> Tensor:
    """phi(x Z~^T) Z~ as printed, in float32 whatever the model's dtype (the sum overflows half precision)."""
    return _scores(x, memory, phi, memory_mask) @ memory.float()


def _scores(x: Tensor, memory: Tensor, phi: Activation, memory_mask: Tensor | None) -> Tensor:
    """phi(x Z~^T), (B, R, S) float32, zero where the memory is masked."""
    x = x.to(memory.dtype)
    if x.dtype == torch.float16:
        # A dot product over thousands of dimensions can exceed 65504; one of unit vectors cannot.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        length = torch.where(length > 0, length, 1.0)
        scores = ((x / length.to(x.dtype)) @ memory.mT).float() * length
    else:
        scores = (x @ memory.mT).float()
    scores = phi(scores)
    if memory_mask is not None:
        # after phi, because phi(0) need not be 0
        scores = scores.masked_fill(~memory_mask.unsqueeze(-2), 0.0)
    return scores
