"""M3ID: multi-modal mutual-information decoding (CVPR 2024). What the text alone makes likely is subtracted, more and
more as the answer grows.

l* = l + ((1 - g_t) / g_t) (l - l_u) with g_t = exp(-decay t), where l_u are the logits of the prompt without the image.
The paper applies it only where the model is not confident (max p below `gate`); the code that most comparisons use
(`faithful=True`) has no gate, counts t from 0, so that the first token is never changed, and adds a cut-off.

Two relatives differ in the weight alone: `schedule="constant"` is VDD, l + alpha (l - l_u), and
`schedule="entropy"` is LCD's weight alpha / H(p_u), here with the model's own decoder as the language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.templates.contrastive import ContrastiveMethod, Weight
from airvlm.runtime.intervention import Context, ForwardPass
from airvlm.runtime.streams import Stream, remove_images

__all__ = ["M3ID"]

LARGEST = 1e4  # of the weight: at 512 tokens the published one is 28,000


@dataclass(frozen=True)
class M3ID(ContrastiveMethod):
    """Multi-modal mutual-information decoding."""

    name: ClassVar[str] = "m3id"
    paper: ClassVar[str | None] = (
        "Multi-modal hallucination control by visual information grounding (CVPR 2024, arXiv 2403.14003)"
    )
    summary: ClassVar[str] = "subtracts what the model would say without the image, more as the answer grows"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "2 passes, the second without visual tokens"

    schedule: Literal["decay", "constant", "entropy"] = option(
        "decay", "weight of the contrast: exp(decay t) - 1 (M3ID), alpha (VDD), or alpha over the entropy (LCD)"
    )
    decay: float = option(0.02, "lambda, how fast the image is forgotten, per token", low=0, off=0, search=(0.005, 0.1))
    alpha: float = option(1.0, "weight of the constant and entropy schedules", low=0, off=0, search=(0.1, 2.0))
    gate: float = option(1.0, "act only where the likeliest token has at most this probability", low=0, high=1)
    beta: float = option(0.0, "cut-off: tokens less likely than beta times the likeliest are never said", low=0, high=1)
    faithful: bool = option(False, "as the code that most comparisons use: t from 0, no gate, beta = 0.1")

    def streams(self, context: Context) -> Sequence[Stream]:
        return [Stream(self.name, context.parts, edit_ids=remove_images(context.parts, context.processor))]

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[Weight]:
        if self.schedule == "decay":
            t = fp.step + (not self.faithful)
            weight: Weight = min(LARGEST, float(torch.expm1(torch.tensor(self.decay * t))))
        elif self.schedule == "entropy":
            log_p = others[0].log_softmax(-1)
            entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)  # (B, L, 1)
            weight = (self.alpha / entropy.clamp_min(1e-6)).clamp_max(LARGEST)
        else:
            weight = self.alpha
        if self.gate < 1 and not self.faithful:
            unsure = l.softmax(-1).amax(-1, keepdim=True) <= self.gate  # (B, L, 1)
            weight = torch.where(unsure, weight, 0.0)
        return 1 + weight, -weight

    def cut(self, l: Tensor, others: Sequence[Tensor]) -> float:
        return 0.1 if self.faithful else self.beta
