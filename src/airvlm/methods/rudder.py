"""RUDDER: adaptive residual-update steering (ICML 2026). What attention wrote while reading is added while answering.

In prefill, the attention outputs of one layer are pooled over the prompt into a direction v per row. In every decode
step that layer's attention output is moved along v, by a gate that is larger where the state already points that way:
g = softplus(k s + c) / (softplus(k s + c) + softplus(-k s + c)), s = cos(h, v). `gate=False` is RUDDER-Add, g = 1.

The paper's strength is a length (20 in layer 30 of LLaVA-1.5-7B), which `absolute=True` takes as it is; otherwise it is
a share of the prompt's median |h|, so that it means the same in every model. No public code was compared with this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from airvlm.methods.base import option
from airvlm.methods.templates.steering import SteeringIntervention, SteeringMethod, unit
from airvlm.runtime.intervention import Context, ForwardPass, Intervention, norm

__all__ = ["RUDDER"]

LAYER = 30 / 32  # of LLaVA-1.5-7B


@dataclass(frozen=True)
class RUDDER(SteeringMethod):
    """Residual-update directed decoding regulation."""

    name: ClassVar[str] = "rudder"
    paper: ClassVar[str | None] = "Adaptive residual-update steering (ICML 2026, arXiv 2511.10292)"
    summary: ClassVar[str] = "adds a direction read from attention in prefill to every decode step"
    site: ClassVar[str] = "hidden states"
    cost: ClassVar[str] = "1 pass"
    writes: ClassVar[Literal["attention"]] = "attention"
    phases: ClassVar[Literal["decode"]] = "decode"

    strength: float = option(
        0.2, "length that is added, as a share of the prompt's median state; 0 is off", low=0, off=0, search=(0.05, 0.5)
    )
    absolute: bool = option(False, "strength is a length, as in the paper: 20 for LLaVA-1.5-7B")
    layer: int | None = option(None, "decoder layer that is read and written; none is layer 30 of 32, scaled", low=0)
    gate: bool = option(True, "add more where the state already points along the direction (RUDDER-Beta)")
    k: float = option(5.0, "steepness of the gate", low=0)
    c: float = option(1.0, "offset of the gate")
    lowest: float = option(0.05, "smallest gate", low=0, high=1)
    pool: Literal["weighted", "mean", "image", "text"] = option(
        "weighted",
        "positions that make up the direction: all, weighted by length or not; controls: image or text alone",
    )

    def span(self, depth: int) -> Sequence[int]:
        layer = min(depth - 1, round(LAYER * depth)) if self.layer is None else self.layer
        if layer >= depth:
            raise ValueError(f"layer = {layer}, but the decoder has {depth} layers")
        return [layer]

    def start(self, context: Context) -> Intervention:
        return _Rudder(self, context)


class _Rudder(SteeringIntervention):
    method: RUDDER

    def __init__(self, method: RUDDER, context: Context) -> None:
        super().__init__(method, context)
        [self.layer] = self.attention_layers
        self.residual_layers = [self.layer - 1]  # the layer's input
        self._h: Tensor | None = None  # (B, L, d)
        self._scale: Tensor | None = None  # (batch_size, 1, 1)

    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> None:
        self._h = h

    def attention(self, fp: ForwardPass, layer: int, y: Tensor) -> Tensor | None:
        if not fp.is_decode and (fp.is_prefill or fp.visual is not None):
            self._read(fp, y)
        return self.apply(fp, layer, y)

    def _read(self, fp: ForwardPass, y: Tensor) -> None:
        """The direction of each row, from the prompt's attention outputs y (B, L, d)."""
        assert self._h is not None
        real = fp.zero_padding(torch.ones(y.shape[:2], device=y.device))
        prompt = torch.arange(y.shape[1], device=y.device) <= fp.first_generated if fp.is_prefill else 1
        weight = real * prompt
        if self.method.pool in ("image", "text") and fp.visual is not None:
            visual = fp.visual.to(y.device)
            weight = weight * (visual if self.method.pool == "image" else ~visual)
        weight = weight[:: fp.beams, :, None]  # (batch_size, L, 1)
        own = y[:: fp.beams].float()
        pooled = (own * weight * (norm(own) if self.method.pool == "weighted" else 1)).sum(1)
        self.directions = {self.layer: unit(pooled)}
        length = norm(self._h[:: fp.beams]).masked_fill(weight == 0, torch.nan)  # (batch_size, L, 1)
        median = length.nanmedian(1, keepdim=True).values  # (batch_size, 1, 1)
        self._scale = self.method.strength * (torch.ones_like(median) if self.method.absolute else median)

    def apply(self, fp: ForwardPass, layer: int, y: Tensor) -> Tensor | None:
        if self._scale is None or (fp.is_prefill and fp.first_generated + 1 >= fp.length):
            return None  # nothing is being answered yet
        return super().apply(fp, layer, y)

    def steer(self, y: Tensor, v: Tensor, layer: int, fp: ForwardPass) -> Tensor:
        assert self._h is not None and self._scale is not None
        h = self._h.to(y.device)
        gate = y.new_ones(*y.shape[:2], 1, dtype=torch.float32)
        if self.method.gate:
            s = (unit(h) * v).sum(-1, keepdim=True)  # (B, L, 1)
            up, down = softplus(self.method.k * s + self.method.c), softplus(-self.method.k * s + self.method.c)
            gate = (up / (up + down)).clamp(self.method.lowest, 1)
        scale = self._scale.to(y.device).repeat_interleave(fp.beams, 0)
        return y.float() + scale * gate * v

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        return {"layers": (self.layer,) if acted else ()}

    def inactive_reason(self, row: int | None) -> str:
        return "it acts from the second generated token on, and there was none"
