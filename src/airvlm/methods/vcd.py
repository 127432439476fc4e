"""VCD: visual contrastive decoding (CVPR 2024). What a noisy image also makes likely is subtracted.

Every pass runs twice, with the image and with a noisy one; the logits become (1 + alpha) l - alpha l' where l is
plausible, l >= max l + log beta, and nothing elsewhere. The second stream has a cache of its own, follows beams, and
is seen by no other method. Rows without an image are left alone.

`faithful=True` computes what the published code does, its flaws included: noise from the global generator, so that
results depend on the order of the questions, and nothing at all unless tokens are sampled.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method, option
from airvlm.methods.noise import add_noise
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention, token_chunks
from airvlm.runtime.streams import SecondStream

__all__ = ["VCD", "contrast"]


def contrast(l: Tensor, noisy: Tensor, alpha: float, beta: float) -> Tensor:
    """(1 + alpha) l - alpha l' where l >= max l + log beta, the lowest finite value elsewhere: (..., V)."""
    low, high = torch.finfo(l.dtype).min, torch.finfo(l.dtype).max
    if l.dim() == 3 and l.shape[1] > 1:  # a plain pass has the logits of all positions
        mixed = torch.empty_like(l)
        for at in token_chunks(l.shape[1]):
            mixed[:, at] = ((1 + alpha) * l[:, at].float() - alpha * noisy[:, at].float()).clamp(low, high)
    else:
        mixed = ((1 + alpha) * l.float() - alpha * noisy.float()).clamp(low, high).to(l.dtype)
    if beta == 0:
        return mixed
    # The lowest value and not -inf: beam search adds scores, and must not meet inf - inf.
    return mixed.masked_fill(l < l.amax(-1, keepdim=True) + math.log(beta), low)


@dataclass(frozen=True)
class VCD(Method):
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
        1.0,
        "weight of the contrast; 0 is off, the plausibility cut included",
        low=0,
        off=0,
        search=(0.25, 2.0),
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
    seed: int = option(0, "of the noise, together with each image's pixels")
    faithful: bool = option(False, "noise from the global generator, and only when sampling, as the published code")

    def start(self, context: Context) -> Intervention:
        return Contrasting(self, context)


class Contrasting(Intervention):
    """One run of VCD."""

    method: VCD
    changes_logits = acts_in_decode = True

    def __init__(self, method: VCD, context: Context) -> None:
        super().__init__(method, context)
        self.flips: Tensor | None = None  # (rows,) positions whose likeliest token changed
        self.sampling = True  # or a plain pass
        seed = None if method.faithful else method.seed
        self.stream = SecondStream(
            method.name, context.parts.model, lambda images: add_noise(images, method.noise_step, seed)
        )

    def open(self, stack: ExitStack) -> None:
        stack.callback(self.stream.end)

    def on_call(self, call: GenerateCall) -> None:
        self.flips = None
        self.seconds = {"contrast": 0.0}
        self.sampling = bool(call.option("do_sample", False))
        self.stream.start_call(call)

    def on_pass(self, fp: ForwardPass) -> None:
        self.stream.start_pass(fp)

    @torch.no_grad()
    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        if self.has_image is None or (self.method.faithful and not self.sampling):
            return None
        started = time.perf_counter()
        other = self.stream.logits(fp).to(logits)
        mixed = contrast(logits, other, self.method.alpha, self.method.beta)
        shows = self.has_image.to(logits.device)
        new = torch.where(shows.repeat_interleave(fp.beams)[:, None, None], mixed, logits)
        flips = (new.argmax(-1) != logits.argmax(-1)).view(fp.batch_size, -1).sum(-1)
        self.flips = flips if self.flips is None else self.flips + flips.to(self.flips.device)
        self.stats.count(shows.long() * logits.shape[1] * fp.beams)
        self.seconds["contrast"] = self.seconds.get("contrast", 0.0) + time.perf_counter() - started
        return new

    def inactive_reason(self, row: int | None) -> str:
        return "tokens are not sampled, where the published code does nothing (faithful=True)"

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        flips = self.measured.get("flips", [])
        changed = sum(flips) if row is None else flips[row] if flips else 0
        return {"extra": {"likeliest_changed": int(changed)}}

    def measures(self) -> dict[str, Tensor]:
        return {} if self.flips is None else {"flips": self.flips}
