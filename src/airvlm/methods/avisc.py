"""AvisC: attentional vision calibration (ACL Findings 2025). What the over-attended visual tokens alone make likely is
subtracted.

From the last prompt token's attention in prefill, averaged over heads: the fewest layers that together hold `gamma` of
all layers' attention to the image are averaged to A. Blind tokens are those with A >= mean + lam std. In the second
stream all *other* visual tokens are zero vectors at the decoder's input: it sees the blind ones alone.
l* = (1 + alpha) l - alpha l_blind where l >= max l + log beta.

`faithful=True` is the published code: nothing at all unless tokens are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from airvlm.methods.base import option
from airvlm.methods.templates.attention import AttentionIntervention
from airvlm.methods.templates.contrastive import ContrastiveMethod, OnlySampling
from airvlm.runtime.attention import AttentionChange
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention
from airvlm.runtime.streams import Stream

__all__ = ["AvisC"]


@dataclass(frozen=True)
class AvisC(ContrastiveMethod):
    """Attentional vision calibration."""

    name: ClassVar[str] = "avisc"
    paper: ClassVar[str | None] = (
        "Don't miss the forest for the trees: attentional vision calibration (ACL Findings 2025, arXiv 2405.17820)"
    )
    summary: ClassVar[str] = "subtracts what the model would say if it saw only the over-attended visual tokens"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "2 passes"

    alpha: float = option(1.0, "weight of the contrast; 0 is off, the cut-off included", low=0, off=0, search=(0.1, 3))
    beta: float = option(0.1, "tokens less likely than beta times the likeliest are never said", low=0, high=1)
    gamma: float = option(0.5, "share of the attention to the image that the chosen layers hold", low=0, high=1)
    lam: float = option(1.0, "standard deviations above the mean from which a token is blind", low=-10, high=10)
    faithful: bool = option(False, "only when sampling, as the published code")

    def streams(self, context: Context) -> Sequence[Stream]:
        return [Stream(self.name, context.parts)]  # what it sees is known after the model's own prefill

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[float]:
        return 1 + self.alpha, -self.alpha

    def start(self, context: Context) -> Intervention:
        return _Calibrate(self, context)


def find_blind(attention: Tensor, visual: Tensor, gamma: float, lam: float) -> Tensor:
    """The blind tokens (B, L).

    Args:
        attention: of the last prompt token, averaged over heads, (layers, B, L).
        visual: image tokens (B, L).
        gamma: share of the attention to the image that the chosen layers hold.
        lam: standard deviations above the mean.
    """
    image = attention * visual
    mass = image.sum(-1)  # (layers, B)
    share, order = (mass / mass.sum(0).clamp_min(1e-30)).sort(0, descending=True)
    count = ((share.cumsum(0) < gamma).sum(0) + 1).clamp_max(len(share))  # (B,)
    chosen = order.argsort(0) < count  # (layers, B)
    a = (image * chosen[..., None]).sum(0) / count[:, None]  # (B, L)
    K = visual.sum(-1, keepdim=True)
    mean = a.sum(-1, keepdim=True) / K.clamp_min(1)
    variance = (visual * (a - mean) ** 2).sum(-1, keepdim=True) / (K - 1).clamp_min(1)  # unbiased
    return visual & (a >= mean + lam * variance.sqrt())


class _Reader(AttentionIntervention):
    """Reads the last prompt token's attention in prefill."""

    def __init__(self, method: AvisC, context: Context) -> None:
        super().__init__(method, context)
        self.span = range(len(context.parts.layers))
        self.attention_by_layer: dict[int, Tensor] = {}  # (B, L), averaged over heads

    def on_pass(self, fp: ForwardPass) -> None:
        super().on_pass(fp)
        if fp.visual is None:
            self.current = None

    def attention_of(self, layer: int) -> AttentionChange | None:
        assert self.current is not None

        def observe(p: Tensor) -> None:  # (B, H, R, T): the first query is the prompt's last token
            mean = p[:, :, 0].mean(1)[..., : self.total]
            self.attention_by_layer[layer] = nn.functional.pad(mean, (self.total - mean.shape[-1], 0))

        return AttentionChange(self.total, first=self.current[1], observe=observe)


class _Calibrate(OnlySampling):
    method: AvisC

    def __init__(self, method: AvisC, context: Context) -> None:
        super().__init__(method, context)
        self.reader = _Reader(method, context)
        self.extra[0].edit_embeds = self._keep_blind
        self._blind: Tensor | None = None  # (B, L)

    def open(self, stack: ExitStack) -> None:
        super().open(stack)
        self.reader.open(stack)

    def on_call(self, call: GenerateCall) -> None:
        super().on_call(call)
        self.sampling = self.sampling or not self.method.faithful
        self.reader.start_call(call)

    def on_pass(self, fp: ForwardPass) -> None:
        super().on_pass(fp)
        self.reader.start_pass(fp)

    def _keep_blind(self, embeds: Tensor, visual: Tensor) -> Tensor:
        read = self.reader.attention_by_layer
        if read:  # also called for the features that some families add in later layers
            attention = torch.stack([read[layer].to(visual.device) for layer in self.reader.span])
            self._blind = find_blind(attention, visual, self.method.gamma, self.method.lam)
            read.clear()
        assert self._blind is not None
        return embeds * (self._blind | ~visual).to(embeds)[..., None]

    def problem(self) -> str | None:
        return self.reader.problem()

    def measures(self) -> dict[str, Tensor]:
        found = super().measures()
        if self._blind is not None and found:
            found["blind"] = self._blind.view(self.batch_size, -1, self._blind.shape[-1])[:, 0].sum(-1)
        return found

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        details = super().details(row, acted)
        blind = self.measured.get("blind", [])
        if row is not None and row < len(blind):
            details["extra"]["blind_tokens"] = int(blind[row])
        return details
