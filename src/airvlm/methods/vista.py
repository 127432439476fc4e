"""VISTA (ICML 2025): steers hidden states towards what the image adds, and mixes in what late layers say.

(a) VSV: v_l is the difference of layer l's state at the end of the prompt with and without the image. Every state is
    moved along it and brought back to its length: r + strength v, times |r| / |r + strength v|.
(b) SLA: (1 - gamma) l + gamma times the mean of the logits read off the `window` layers before the last one.

`faithful=True` computes what the published code does: (a) on feed-forward outputs y and with unit vectors,
unit(unit(y) + strength s unit(v)) |y| with s = 1 + max(0, cos(y, -v)), the first coordinate of v_0 larger by 1 (a
principal component of a single sample), and (b) with one layer more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.composed import CombinedIntervention
from airvlm.methods.templates.lens import LensIntervention, LensMethod
from airvlm.methods.templates.steering import Site, SteeringIntervention, SteeringMethod, steer_keeping_norm, unit
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention, norm
from airvlm.runtime.probe import run_probe
from airvlm.runtime.streams import remove_images

__all__ = ["VISTA"]


@dataclass(frozen=True)
class VISTA(SteeringMethod, LensMethod):
    """Visual information steering with token-logit augmentation."""

    name: ClassVar[str] = "vista"
    paper: ClassVar[str | None] = "The hidden life of tokens: VISTA (ICML 2025, arXiv 2502.03628)"
    summary: ClassVar[str] = "steers states towards what the image adds, and mixes in what late layers say"
    site: ClassVar[str] = "hidden states"
    cost: ClassVar[str] = "1 pass with the head applied to some layers, and 2 prefills per question"
    needs_images: ClassVar[bool] = True
    normed: ClassVar[bool] = False  # paper and code read layers without the final norm

    strength: float = option(0.17, "lambda, how far states are moved", low=0, off=0, search=(0.01, 0.5))
    gamma: float = option(0.3, "share of the late layers in the logits", low=0, high=1, off=0, search=(0.0, 0.5))
    window: int = option(5, "late layers that are read, before the last one", low=1)
    faithful: bool = option(False, "compute what the published code does, flaws included")

    @property
    def writes(self) -> Site:  # type: ignore[override]  # an option decides
        return "ffn" if self.faithful else "residual"

    def span(self, depth: int) -> Sequence[int]:
        return range(depth)

    def lens_layers(self, depth: int) -> Sequence[int]:
        count = self.window + self.faithful
        return range(max(0, depth - 1 - count), depth - 1)

    def probe_directions(self, context: Context, call: GenerateCall) -> Mapping[int, Tensor]:
        layers = self.span(len(context.parts.layers))
        sites = {"residual": layers}
        shown = run_probe(context.parts, call.arguments, sites=sites).states
        blind = run_probe(context.parts, call.arguments, sites=sites, edit_ids=remove_images(context.parts)).states
        found = {layer: shown["residual", layer].float() - blind["residual", layer].float() for layer in layers}
        if self.faithful:
            found[0][:, 0] += 1
        return found

    def steer(self, y: Tensor, v: Tensor, layer: int, fp: ForwardPass) -> Tensor:
        if self.faithful:
            against = -(unit(y) * unit(v)).sum(-1, keepdim=True)  # cos(y, -v)
            return steer_keeping_norm(y, v, self.strength * (1 + against.clamp_min(0)))
        moved = y.float() + self.strength * v
        return (moved * norm(y) / norm(moved).clamp_min(1e-30)).to(y.dtype)

    def next_logits(self, l: Tensor, lens: Tensor, fp: ForwardPass) -> Tensor:
        return (1 - self.gamma) * l + self.gamma * lens.mean(0)

    def start(self, context: Context) -> Intervention:
        halves: list[Intervention] = [SteeringIntervention(self, context)] if self.strength else []
        if self.gamma:
            halves.append(LensIntervention(self, context))
        return halves[0] if len(halves) == 1 else CombinedIntervention(self, context, halves)
