"""The logit lens: how unsure the model is of the next token at an intermediate layer, and which positions fire.

The final norm and the head read a layer's output as if it were the last one; the entropy of the ten likeliest next
tokens, divided by log 10, is the uncertainty u. Used by MemVR and AIRMemory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import ForwardPass

__all__ = ["EntropyLens", "Trigger", "uncertainty"]


@torch.no_grad()
def uncertainty(parts: ModelParts, h: Tensor, *, top: int = 10, normed: bool = True) -> Tensor:
    """u = H(softmax of the `top` largest logits) / log(top), in 0..1: h (B, P, d) -> (B, P) float32."""
    logits = parts.head(parts.norm(h) if normed else h)  # (B, P, V)
    top = min(top, logits.shape[-1])
    log_p = torch.log_softmax(logits.float().topk(top, dim=-1).values, dim=-1)
    return -(log_p.exp() * log_p).sum(-1) / math.log(top)


@dataclass(frozen=True)
class Trigger:
    """When the lens fires."""

    threshold: float = 0.75  # uncertainty u above which a position fires
    top: int = 10  # tokens whose entropy is taken
    normed: bool = True  # read through the final norm; some published code leaves it out
    pooled: bool = False  # one decision per pass, from the sum over the batch at the last position


class EntropyLens:
    """Fires each position at most once per pass, in the first layer whose uncertainty exceeds the threshold.

    The last position of a prompt decides for all positions before it, as a pass has one decision; generated positions
    (of a sequence that is read again without a cache) decide for themselves, as they did in a pass of their own.
    Nothing is read back from the device, except on a CPU, where reading is free and saves the layers after all fired.
    """

    def __init__(self, parts: ModelParts, trigger: Trigger) -> None:
        self.parts = parts
        self.trigger = trigger
        self.highest: Tensor | None = None  # (rows,) largest u of the call at a position that might have fired
        self._waiting: Tensor | None = None  # (B, P) positions that have not fired

    def start_call(self) -> None:
        """A `generate` call begins."""
        self.highest = None

    def start_pass(self, fp: ForwardPass, eligible: Tensor) -> None:
        """A pass starts. `eligible` (B,): batch rows that have something to inject."""
        positions = 1 if self.trigger.pooled else fp.length - fp.first_generated
        self._waiting = eligible.unsqueeze(-1).expand(-1, positions)  # (B, P)

    def read(self, fp: ForwardPass, h: Tensor) -> Tensor | None:
        """Which positions (B, L) fire on the output h (B, L, d) of a layer; None when surely none does."""
        waiting = self._waiting
        assert waiting is not None, "start_pass() comes first in every pass"
        if waiting.device.type == "cpu" and not bool(waiting.any()):
            return None
        waiting = waiting.to(h.device)
        P = waiting.shape[-1]
        u = uncertainty(self.parts, h[:, -P:], top=self.trigger.top, normed=self.trigger.normed)  # (B, P)
        u = u.to(h.device)
        if self.trigger.pooled:
            u = u.sum(0, keepdim=True).expand_as(u)
        self._note(torch.where(waiting, u, 0.0).view(fp.batch_size, -1).amax(-1))  # a row's beams together
        fires = waiting & (u > self.trigger.threshold)
        self._waiting = waiting & ~fires
        if fires.device.type == "cpu" and not bool(fires.any()):
            return None
        before = fires[:, :1].expand(-1, h.shape[1] - P)  # (B, L - P) follow the first that decides
        return torch.cat([before, fires], -1)  # (B, L)

    def _note(self, highest: Tensor) -> None:
        known = self.highest
        alike = known is not None and known.shape == highest.shape
        self.highest = torch.maximum(known.to(highest.device), highest) if known is not None and alike else highest

    def measures(self) -> dict[str, Tensor]:
        """The largest u of every batch row, for a report."""
        return {} if self.highest is None else {"highest entropy": self.highest}


def highest_entropy(measured: dict[str, list[float]], row: int | None) -> float:
    """The largest u of a batch row, or of the batch, in what was read of `EntropyLens.measures`."""
    highest = measured.get("highest entropy", [0.0])
    return max(highest) if row is None or row >= len(highest) else highest[row]
