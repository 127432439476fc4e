"""AD-HH: adaptive deactivation of hallucination heads (ICLR 2025). Known heads may not rely on the text.

For listed heads (layer, head) and the last query: where the attention on the text after the image sums to `tau` or
more, it is multiplied by `scale` (0: removed). Nothing is renormalized.

Which heads hallucinate was found by switching off each head on 3,000 captions with object labels. The published lists
of three checkpoints are built in; other models need `heads`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method, option
from airvlm.methods.templates.attention import AttentionIntervention
from airvlm.runtime.attention import AttentionChange, fit_keys
from airvlm.runtime.intervention import Context, GenerateCall, Intervention

__all__ = ["ADHH"]

Heads = tuple[tuple[int, int], ...]


def _pairs(text: str) -> Heads:
    layers_and_heads = [pair.split(".") for pair in text.split()]
    return tuple((int(layer), int(head)) for layer, head in layers_and_heads)


# layer.head as published, most influential first; the names are parts of the checkpoints' own
PUBLISHED = {
    ("llava-1.5-7b", "llava-v1.5-7b"): _pairs(
        "16.29 26.9 13.31 15.10 20.12 30.9 19.18 17.0 18.9 26.28 19.27 18.26 15.25 14.16 31.26 15.24 31.3 22.20 27.29 "
        "17.28"
    ),
    ("llava-1.5-13b", "llava-v1.5-13b"): _pairs(
        "0.8 29.27 23.18 20.11 36.26 19.37 22.16 22.34 21.31 20.34 37.11 17.25 35.10 17.5 15.26 0.22 19.5 19.0 14.1 "
        "23.20 21.6 30.24 26.27 21.32 15.28 15.31 19.30 20.8 19.14 14.9 39.26 25.1 18.32 17.27 39.32"
    ),
    ("llava-v1.6-34b",): _pairs("45.34 43.4 43.48 44.29 35.47 40.27 54.34 37.48 43.2 41.34"),
}


@dataclass(frozen=True)
class ADHH(Method):
    """Adaptive deactivation of hallucination heads."""

    name: ClassVar[str] = "ad-hh"
    paper: ClassVar[str | None] = "Mitigating hallucinations via modular attribution and intervention (ICLR 2025)"
    summary: ClassVar[str] = "keeps listed heads from relying on the text"
    site: ClassVar[str] = "attention"
    data: ClassVar[str] = "a list of heads, built in for LLaVA-1.5-7B, -13B and LLaVA-1.6-34B"

    tau: float = option(0.4, "attention on the text from which a head is deactivated", low=0, high=1)
    scale: float = option(0.0, "what is left of that attention; 1 is off", low=0, high=1, off=1, search=(0.0, 0.9))
    heads: tuple[tuple[int, int], ...] | None = option(
        None, "pairs (layer, head), counted from 0; none is the published list of a known checkpoint", low=0
    )

    def start(self, context: Context) -> Intervention:
        return _Deactivate(self, context)


def find_heads(method: ADHH, context: Context) -> Heads:
    """The heads of the option, or those published for the model; an error if there are none."""
    config: Any = getattr(context.parts.model, "config", None)
    name = str(getattr(config, "_name_or_path", "")).lower()
    heads = method.heads
    if heads is None:
        heads = next((known for names, known in PUBLISHED.items() if any(one in name for one in names)), None)
    if not heads:
        known = ", ".join(names[0] for names in PUBLISHED)
        raise ValueError(
            f"{method.name} has no list of heads for {name or 'this model'} (only for {known}): give heads="
        )
    for layer, head in heads:
        if layer >= len(context.parts.layers) or head >= context.parts.num_heads(layer):
            raise ValueError(f"{method.name}: the model has no head {head} in a layer {layer}")
    return heads


class _Deactivate(AttentionIntervention):
    method: ADHH

    def __init__(self, method: ADHH, context: Context) -> None:
        super().__init__(method, context)
        self._listed: dict[int, Tensor] = {}  # layer -> (H,)
        for layer, head in find_heads(method, context):
            heads = torch.zeros(context.parts.num_heads(layer), dtype=torch.bool)
            self._listed.setdefault(layer, heads)[head] = True
        self.span = sorted(self._listed)
        self._highest: Tensor | None = None  # (batch_size,) largest attention of a listed head on the text

    def on_call(self, call: GenerateCall) -> None:
        super().on_call(call)
        self._highest = None

    def attention_of(self, layer: int) -> AttentionChange | None:
        assert self.visual_keys is not None and self.before_keys is not None and self.padding_keys is not None
        text = ~(self.visual_keys | self.before_keys | self.padding_keys)  # (B, total)

        def deactivate(p: Tensor) -> Tensor:  # (B, H, R, T)
            listed = self._listed[layer] = self._listed[layer].to(p.device)
            after = fit_keys(text, p.shape[-1], self.total).to(p.device)[:, None, None]  # (B, 1, 1, T)
            share = (p * after).sum(-1) * listed[:, None]  # (B, H, R)
            hit = listed[:, None] & (share >= self.method.tau)
            self._note(share.amax((1, 2)), hit.any(1).sum(-1))
            return torch.where(hit[..., None] & after, p * self.method.scale, p)

        return self.change(probabilities=deactivate)

    def _note(self, highest: Tensor, hits: Tensor) -> None:
        rows = self.batch_size
        assert self.has_image is not None
        self.stats.count(hits.view(rows, -1).sum(-1) * self.has_image.to(hits))
        own = highest.view(rows, -1).amax(-1) * self.has_image.to(highest)
        known = self._highest
        self._highest = own if known is None or known.shape != own.shape else torch.maximum(known.to(own), own)

    def measures(self) -> dict[str, Tensor]:
        return {} if self._highest is None else {"highest": self._highest}

    def inactive_reason(self, row: int | None) -> str:
        highest = self.measured.get("highest", [])
        if not highest:
            return super().inactive_reason(row)
        most = max(highest) if row is None or row >= len(highest) else highest[row]
        return f"no listed head had {self.method.tau:g} of its attention on the text; the highest had {most:.3f}"
