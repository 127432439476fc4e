"""VCD: visual contrastive decoding (CVPR 2024). What a noisy image also makes likely is held against the answer.

l* = (1 + alpha) l - alpha l' where l >= max l + log beta, with l' the logits for a noisy image.

`faithful=True` computes what the published code does: noise from the global generator, so that results depend on the
order of the questions, and nothing at all unless tokens are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.noise import add_noise
from airvlm.methods.templates.contrastive import ContrastiveIntervention, ContrastiveMethod, OnlySampling
from airvlm.runtime.intervention import Context, ForwardPass, Intervention
from airvlm.runtime.streams import Stream

__all__ = ["VCD"]


@dataclass(frozen=True)
class VCD(ContrastiveMethod):
    """Visual contrastive decoding."""

    name: ClassVar[str] = "vcd"
    paper: ClassVar[str | None] = (
        "Mitigating object hallucinations by visual contrastive decoding (CVPR 2024, arXiv 2311.16922)"
    )
    summary: ClassVar[str] = "subtracts what the model would say of a noisy image"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "2 passes"
    needs_pixels: ClassVar[bool] = True

    alpha: float = option(
        1.0, "weight of the contrast; 0 is off, the cut-off included", low=0, off=0, search=(0.25, 2.0)
    )
    beta: float = option(
        0.1,
        "tokens less likely than beta times the likeliest are never said; 0 cuts nothing",
        low=0,
        high=1,
        search=(0.01, 0.5),
    )
    noise_step: int = option(
        500,
        "step of the noise schedule, 0 to 999; 500 keeps 0.86 of the image and adds 0.51 noise",
        low=0,
        high=999,
        search=(200, 900),
    )
    seed: int = option(0, "seed of the noise, together with each image's pixels")
    faithful: bool = option(False, "noise from the global generator, and only when sampling, as the published code")

    def streams(self, context: Context) -> Sequence[Stream]:
        seed = None if self.faithful else self.seed
        noise = partial(add_noise, step=self.noise_step, seed=seed)
        return [Stream(self.name, context.parts, images=noise)]

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[float]:
        return 1 + self.alpha, -self.alpha

    def start(self, context: Context) -> Intervention:
        return OnlySampling(self, context) if self.faithful else ContrastiveIntervention(self, context)
