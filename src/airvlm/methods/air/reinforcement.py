"""The term added to a feed-forward output: FFN(H) + phi(H Z~') Z~, and its strength.

Strength is a ratio: the norm of the added term over the norm of the feed-forward output, per token. It needs no
weights to be read and means the same in every model. Pure tensors: knows nothing of models, hooks or pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


def identity(scores: Tensor) -> Tensor:
    return scores


@dataclass(frozen=True)
class Reinforced:
    """A feed-forward output with the term added."""

    out: Tensor  # (B, T, d), the dtype of the feed-forward output
    ratio: Tensor  # (B, R) float32, ||added|| / ||feed-forward||, of the rows that were asked for


def term(x: Tensor, memory: Tensor, phi: Activation = identity, memory_mask: Tensor | None = None) -> Tensor:
    """phi(x Z~') Z~ up to one positive factor per token: x (B, R, d), memory (S, d) or (B, S, d) -> (B, R, d).

    The factor keeps half precision from overflowing and is free: whatever matches magnitudes divides it out again.
    Use `literal_term` for the bare sum. An empty memory, or one wholly masked, gives zeros.
    """
    scores = _scores(x, memory, phi, memory_mask)  # (B, R, S) float32
    if scores.shape[-1] == 0:
        return torch.zeros_like(x)
    largest = scores.abs().amax(-1, keepdim=True)
    scores = scores / torch.where(largest > 0, largest, 1.0)
    return scores.to(memory.dtype) @ memory


def literal_term(
    x: Tensor, memory: Tensor, phi: Activation = identity, memory_mask: Tensor | None = None
) -> Tensor:
    """phi(x Z~') Z~ as printed, in float32 whatever the model's dtype (the sum overflows half precision)."""
    return _scores(x, memory, phi, memory_mask) @ memory.float()


def _scores(x: Tensor, memory: Tensor, phi: Activation, memory_mask: Tensor | None) -> Tensor:
    """phi(x Z~'), (B, R, S) float32, zero where the memory is masked."""
    x = x.to(memory.dtype)
    if x.dtype == torch.float16:
        # A dot product over thousands of dimensions can pass 65504; of unit vectors it cannot.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        length = torch.where(length > 0, length, 1.0)
        scores = ((x / length.to(x.dtype)) @ memory.mT).float() * length
    else:
        scores = (x @ memory.mT).float()
    scores = phi(scores)
    if memory_mask is not None:
        # phi(0) need not be 0, so the mask comes after phi.
        scores = scores.masked_fill(~memory_mask.unsqueeze(-2), 0.0)
    return scores


def norm(x: Tensor) -> Tensor:
    """Norm per token in float32: (..., d) -> (..., 1)."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)


def reinforce(
    ffn_out: Tensor,
    x: Tensor,
    memory: Tensor,
    *,
    phi: Activation = identity,
    strength: float | None,
    memory_mask: Tensor | None = None,
    rows: Tensor | None = None,
    rows_mask: Tensor | None = None,
    gate: Tensor | None = None,
) -> Reinforced:
    """Add the term to the feed-forward output ffn_out (B, T, d), whose input was x (B, T, d).

    strength     ratio of norms per token; 0 returns `ffn_out` itself; None adds the literal, unscaled sum
    memory       Z~, (S, d) shared or (B, S, d); memory_mask (S,) or (B, S), True where a token exists
    rows         (B, R) positions to reinforce, all when None; rows_mask (B, R) False where one is only padding
    gate         (B,) bool, False for batch rows to leave alone (an entropy trigger that did not fire)
    """
    B, T, d = ffn_out.shape
    if strength == 0:
        R = T if rows is None else rows.shape[-1]
        return Reinforced(ffn_out, torch.zeros(B, R, device=ffn_out.device))
    if rows is None:
        base = ffn_out
    else:
        at = rows.unsqueeze(-1).expand(-1, -1, d)  # (B, R, d)
        base, x = ffn_out.gather(1, at), x.gather(1, at)

    size = norm(base)  # (B, R, 1)
    if strength is None:
        added = literal_term(x, memory, phi, memory_mask)
    else:
        added = term(x, memory, phi, memory_mask)
        length = norm(added)
        added = added * torch.where(length > 0, strength * size / length.clamp_min(1e-30), 0.0)
    acts = (
        torch.ones(base.shape[:2], dtype=torch.bool, device=base.device) if rows_mask is None else rows_mask
    )
    if gate is not None:
        acts = acts & gate.unsqueeze(-1)
    added = added.masked_fill(~acts.unsqueeze(-1), 0.0)  # (B, R, d) float32
    ratio = norm(added) / size.clamp_min(1e-30)

    added = added.to(ffn_out.dtype)
    # scatter_add, not scatter: padding entries of `rows` may repeat a real position, and add nothing to it.
    out = ffn_out + added if rows is None else ffn_out.scatter_add(1, at, added)
    return Reinforced(out, ratio.squeeze(-1))
