"""CropBlend: what the crops say about each visual token is blended into it, where the decoder reads it.

Our own method, made of AIR's parts (crops, entropic transport) without its selection and injection. Each crop's tokens
are carried onto the visual tokens by the transport plan's rows, the crops are mixed by softmax of each token's own
transport cost, and the result c replaces a share of the token: z + weight (c - z). In prefill only, once per image.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.evidence.base import NO_CONTROL, CropControl, CropIntervention, CropMethod
from airvlm.methods.evidence.matching import EvidenceSpec
from airvlm.runtime.intervention import INPUT, Context, ForwardPass, norm

__all__ = ["CropBlend"]


@dataclass(frozen=True)
class CropBlend(CropMethod):
    """Blend what crops say about each visual token into it. Ours, inspired by AIR."""

    name: ClassVar[str] = "crop-blend"
    summary: ClassVar[str] = "carries crop tokens onto the visual tokens they match and blends them in"
    site: ClassVar[str] = "visual tokens"
    cost: ClassVar[str] = "1 pass, and one encoding of the crops per image"
    engines: ClassVar[tuple[str, ...]] = ("transformers", "vllm")

    num_crops: int = option(4, "M, the number of crops per image", low=0, high=4096)
    crop_size: int | None = option(
        None,
        "side in pixels at which crops are encoded, where the tower allows it; none is the model's",
        low=16,
        high=4096,
    )
    num_prototypes: int | None = option(
        None, "visual tokens that are changed, those farthest from their mean; none is all", low=0
    )
    eps: float = option(0.1, "entropic regularizer of the transport; small is sharp", above=0, search=(0.01, 0.3))
    keep: int | None = option(None, "use this many nearest crops; none is all", low=0, search=(1, 12))
    weight: float = option(0.4, "share of the crops in the blend; 0 is off", low=0, high=1, off=0, search=(0.1, 1.0))
    match: Literal["transport", "softmax", "geometry"] = option(
        "transport",
        "which crop tokens a visual token takes: by the transport plan, by softmax of -cost/eps, or by position",
        search=("transport", "softmax", "geometry"),
    )

    def evidence_spec(self) -> EvidenceSpec:
        return EvidenceSpec(self.num_prototypes, self.eps, keep=self.keep, match=self.match)

    def start(self, context: Context, control: CropControl = NO_CONTROL) -> CropIntervention:
        return _Blend(self, context, control)


class _Blend(CropIntervention):
    method: CropBlend

    def embeds(self, fp: ForwardPass, inputs_embeds: Tensor) -> Tensor | None:
        if fp.is_decode or not self.match(fp, inputs_embeds) or fp.visual is None:
            return None
        started = time.perf_counter()
        rows: list[Tensor] = []  # (n,) row of the caller's batch
        positions: list[Tensor] = []  # (n,)
        projected: list[Tensor] = []  # (n, d)
        for row, images in enumerate(self.matched):
            for image in images:
                e = image.evidence
                if e.projected is None:
                    continue
                at, values = image.positions[e.prototypes], e.projected
                if e.covered is not None:  # with match="geometry" there may be places that no kept crop shows
                    at, values = at[e.covered], values[e.covered]
                rows.append(torch.full_like(at, row))
                positions.append(at)
                projected.append(values)
        if not rows:
            return None
        row_of, at, c = torch.cat(rows), torch.cat(positions), torch.cat(projected)  # (n,), (n,), (n, d)
        first = row_of * fp.beams
        z = inputs_embeds[first, at].float()
        change = self.method.weight * (c - z)
        new = inputs_embeds.clone()
        for beam in range(fp.beams):
            new[first + beam, at] = (z + change).to(new.dtype)
        # One line per batch row with token i in column i, so that lines can be summed.
        ratio = (norm(change) / norm(z).clamp_min(1e-30)).squeeze(-1)  # (n,)
        lines = torch.zeros(fp.batch_size, len(ratio), device=ratio.device)
        lines[row_of, torch.arange(len(ratio), device=ratio.device)] = ratio
        self.stats.add(INPUT, lines, fp.batch_size)
        self.seconds["injection"] += time.perf_counter() - started
        return new
