"""SteeringMethod: moves hidden states along a direction per layer.

The direction of a row comes from one of three places: an artifact of `airvlm calibrate` (`artifact_directions`), a
probe of the prompt before it is answered (`probe_directions`), or what the method reads in prefill (`read`). It is
written to feed-forward outputs, attention outputs or the residual stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from airvlm.methods.base import Method
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention, norm, norm_ratio

__all__ = ["SteeringIntervention", "SteeringMethod", "steer_keeping_norm", "unit"]

Site = Literal["ffn", "attention", "residual"]


def unit(x: Tensor) -> Tensor:
    """x / |x| per vector, in float32; a zero vector stays zero."""
    return x.float() / norm(x).clamp_min(1e-30)


def steer_keeping_norm(y: Tensor, v: Tensor, strength: float | Tensor) -> Tensor:
    """unit(unit(y) + strength unit(v)) |y|: turns y (B, L, d) towards v (B, 1, d) without changing its length."""
    turned = unit(unit(y) + strength * unit(v)) * norm(y)
    return turned.to(y.dtype)


@dataclass(frozen=True)
class SteeringMethod(Method):
    """Moves hidden states along a direction per layer."""

    site: ClassVar[str] = "hidden states"
    writes: ClassVar[Site] = "ffn"  # where directions are added
    phases: ClassVar[Literal["all", "decode"]] = "all"  # prefill and decode steps, or decode steps alone

    def span(self, depth: int) -> Sequence[int]:
        """The layers that are changed in a decoder of `depth` layers."""
        raise NotImplementedError

    def steer(self, y: Tensor, v: Tensor, layer: int, fp: ForwardPass) -> Tensor:
        """The new states (B, L, d).

        Args:
            y: the states at the site (B, L, d).
            v: the direction of each row (B, 1, d).
            layer: the layer's number.
            fp: the forward pass.
        """
        raise NotImplementedError

    def artifact_directions(self, context: Context) -> Mapping[int, Tensor] | None:
        """Directions (d,) per layer that are the same for every prompt, or None."""
        return None

    def probe_directions(self, context: Context, call: GenerateCall) -> Mapping[int, Tensor] | None:
        """Directions (batch_size, d) per layer, from probes of the prompt, or None."""
        return None

    def start(self, context: Context) -> Intervention:
        return SteeringIntervention(self, context)


class SteeringIntervention(Intervention):
    """One session of a SteeringMethod."""

    method: SteeringMethod
    acts_in_decode = True

    def __init__(self, method: SteeringMethod, context: Context) -> None:
        super().__init__(method, context)
        layers = list(method.span(len(context.parts.layers)))
        setattr(self, f"{method.writes}_layers", layers)
        constant = method.artifact_directions(context)
        self.directions: dict[int, Tensor] = {}  # layer -> (1 or batch_size, d)
        self.control: Callable[[int, Tensor], Tensor] | None = None  # layer, directions -> those of a control
        if constant is not None:
            self.directions = {layer: v[None] for layer, v in constant.items()}

    def on_call(self, call: GenerateCall) -> None:
        probed = self.method.probe_directions(self.context, call)
        if probed is not None:
            self.directions = dict(probed)

    def on_pass(self, fp: ForwardPass) -> None:
        if fp.is_prefill and not fp.generating:  # a plain pass: its inputs are the prompt
            call = GenerateCall(dict(fp.inputs), self.context.parts.model, fp.batch_size, 1)
            self.on_call(call)

    def ffn(self, fp: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        return self.apply(fp, layer, y)

    def attention(self, fp: ForwardPass, layer: int, y: Tensor) -> Tensor | None:
        return self.apply(fp, layer, y)

    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> Tensor | None:
        return self.apply(fp, layer, h)

    def steer(self, y: Tensor, v: Tensor, layer: int, fp: ForwardPass) -> Tensor:
        """The new states (B, L, d); a method with state of its own overrides this instead of its method's `steer`."""
        return self.method.steer(y, v, layer, fp)

    def apply(self, fp: ForwardPass, layer: int, y: Tensor) -> Tensor | None:
        """Steer the states of one layer in one pass."""
        rows = self.active_rows(fp)
        v = self.directions.get(layer)
        if rows is None or v is None:
            return None
        acts = rows.to(y.device)[:, None].expand(-1, y.shape[1])  # (B, L)
        if self.method.phases == "decode":
            first = fp.first_generated + 1 if fp.is_prefill else 0  # without a cache answers are read again
            acts = acts & (torch.arange(y.shape[1], device=y.device) >= first)
        v = self.directions[layer] = v.to(y.device)
        if self.control is not None:
            v = self.control(layer, v)
        if len(v) > 1:
            v = v.repeat_interleave(fp.beams, 0)
        new = self.steer(y, v[:, None], layer, fp)
        new = torch.where(acts.unsqueeze(-1), new.to(y.dtype), y)
        self.stats.add(layer, fp.zero_padding(norm_ratio(new, y)), fp.batch_size)
        return new
