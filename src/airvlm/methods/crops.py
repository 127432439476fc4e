"""CRoPS (TMLR 2026): subtracts what the text alone makes likely, and what the least attended visual tokens do.

Two extra streams: (u) the prompt without the image in which, from layer `layer` on, only the n(t) least attended text
tokens are seen, n(t) = floor(10 + 30 (1 - e^(-0.001 t))); (s) SID's, in which only the `keep` least attended visual
tokens are seen. With t counted from 1 and w = e^(decay t),

l* = (1 + alpha) (w l - (w - 1) l_u) - alpha l_s   where l >= max l + log beta,

at steps where the likeliest token has at most `gate` of what the cut-off leaves; l with its cut-off elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from airvlm.methods.base import option
from airvlm.methods.sid import LeastAttended
from airvlm.methods.templates.contrastive import ContrastiveMethod, Weight
from airvlm.runtime.attention import AttentionChange, attention_modules, fit_keys
from airvlm.runtime.intervention import Context, ForwardPass
from airvlm.runtime.streams import Stream, remove_images

__all__ = ["CRoPS"]

LARGEST = 1e4  # of w


@dataclass(frozen=True)
class CRoPS(ContrastiveMethod):
    """Two contrasts: without image and most of the text, and with the least attended visual tokens."""

    name: ClassVar[str] = "crops"
    paper: ClassVar[str | None] = "CRoPS: a training-free hallucination mitigation framework (TMLR 2026)"
    summary: ClassVar[str] = "subtracts what scraps of the text, and the least attended visual tokens, make likely"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "3 passes, one without visual tokens"

    alpha: float = option(1.0, "weight of the least attended visual tokens; 0 is off", low=0, off=0, search=(0.1, 2.0))
    decay: float = option(
        0.01, "lambda, how fast the image is forgotten, per token; 0 is off", low=0, off=0, search=(0.002, 0.05)
    )
    beta: float = option(0.1, "tokens less likely than beta times the likeliest are never said", low=0, high=1)
    gate: float = option(0.95, "act only where the likeliest token has at most this probability", low=0, high=1)
    layer: int = option(2, "first decoder layer in which tokens are hidden; the one before chooses them", low=1)
    keep: float = option(0.25, "share of the visual tokens that stay visible", above=0, high=1)
    faithful: bool = option(False, "as the published code: text queries that see nothing attend to all positions alike")

    def streams(self, context: Context) -> Sequence[Stream]:
        parts = context.parts
        text = Stream(
            self.name,
            parts,
            edit_ids=remove_images(parts, context.processor),
            attention=_LeastAttendedText(context, self.layer, self.faithful),
        )
        return [text, Stream(self.name, parts, attention=LeastAttended(self, context, self.layer, self.keep))]

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[Weight]:
        w = min(LARGEST, math.exp(min(50.0, self.decay * (fp.step + 1))))
        p = l.softmax(-1)
        top = p.amax(-1, keepdim=True)
        left = torch.where(p >= self.beta * top, p, 0.0).sum(-1, keepdim=True)
        unsure = (top / left <= self.gate).float()  # (B, L, 1)
        a = self.alpha
        return 1 + unsure * ((1 + a) * w - 1), unsure * (1 + a) * (1 - w), -a * unsure


def visible_text(t: int) -> int:
    """How many text tokens are seen when token t, counted from 1, is generated."""
    return math.floor(10 + 30 * (1 - math.exp(-0.001 * t)))


class _LeastAttendedText:
    """Hides all but the least attended tokens of a stream without images, from a layer on.

    A query that would see nothing sees itself. The published code adds masks to each other, and such a query attends to
    all positions alike, later ones included (`faithful`).
    """

    def __init__(self, context: Context, layer: int, faithful: bool = False) -> None:
        depth = len(context.parts.layers)
        if layer >= depth:
            raise ValueError(f"layer = {layer}, but the decoder has {depth} layers")
        self.context, self.layer, self.faithful = context, layer, faithful
        self._layer_of: dict[nn.Module, int] = {}
        self._step = 0  # tokens generated before this pass
        self._pass: tuple[Tensor, int, int] | None = None  # mask, new tokens, first of them that generates
        self._hidden: Tensor | None = None  # (B, new, total)
        self._blind: Tensor | None = None  # (B, new) queries that would see nothing

    def find_layers(self) -> None:
        self._layer_of = {module: i for i, module in enumerate(attention_modules(self.context.parts))}

    def start_pass(self, fp: ForwardPass) -> None:
        self._step = 0 if fp.is_prefill else fp.step

    def start_stream_pass(self, mask: Tensor, new: int, first: int) -> None:
        self._pass, self._hidden = (mask.bool(), new, first), None

    def attention_change(self, module: nn.Module) -> AttentionChange | None:
        layer = self._layer_of[module]
        if self._pass is None or layer < self.layer - 1:
            return None
        total = int(self._pass[0].shape[1])
        if layer == self.layer - 1:
            return AttentionChange(total, first=self._pass[2], observe=self._choose)
        if not self.faithful:
            return AttentionChange(total, hidden_keys=self._hidden)
        real = self._pass[0]

        def spread(p: Tensor) -> Tensor:  # (B, H, R, T)
            even = (real / real.sum(-1, keepdim=True)).to(p)
            return fit_keys(even, p.shape[-1], total)[:, None, None].expand_as(p)

        return AttentionChange(total, queries=self._blind, hidden_keys=self._hidden, probabilities=spread)

    def _choose(self, p: Tensor) -> None:  # (B, H, R, T)
        assert self._pass is not None
        real, new, first = self._pass
        total = int(real.shape[1])
        attended = nn.functional.pad(p.mean(1)[..., :total], (total - min(total, p.shape[-1]), 0), value=torch.inf)
        position = torch.arange(total, device=p.device)
        query = position[total - new :]  # of the new tokens
        seen = real.to(p.device)[:, None] & (position <= query[:, None])  # (B, new, total), by causality and padding
        attended = attended.masked_fill(~seen[:, first:], torch.inf)
        rank = attended.argsort(dim=-1, stable=True).argsort(dim=-1)
        counts = [visible_text(self._step + 1 + j) for j in range(new - first)]
        # a number by itself goes to a device with the operation; a tensor is copied there
        limit = counts[0] if len(counts) == 1 else torch.tensor(counts, device=p.device)[:, None]
        chosen = rank < limit  # (B, R, total)
        chosen = torch.cat([chosen[:, :1].expand(-1, first, -1), chosen], 1) & seen  # the prompt's last token decides
        nothing = ~chosen.any(-1, keepdim=True)
        self._blind = nothing[..., 0] & real.to(p.device)[:, total - new :]
        self._hidden = ~(chosen | (nothing & (position == query[:, None])))
