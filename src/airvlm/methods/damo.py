"""DAMO (ICLR 2025): decoding by accumulating the momentum of activations where the layers' predictions turn round.

At the last position, with r_l the output of layer l, p_l = softmax(W r_l) without the final norm and the difference
dp_l = p_l - p_{l-1}, every layer l from the middle on computes, from q = m = 0,

    q <- alpha q + (1 - alpha) dp_{l-1},    c = cos(dp_l, q),    beta = beta_2 if c < tau else beta_1,
    m <- beta m + (1 - beta) (r_l - r_{l-1}),

and once c < tau has occurred, r_l <- r_{l-1} + m in this and all later layers of the pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from airvlm.methods.base import Method, option
from airvlm.methods.templates.layers import layer_span, scale_span
from airvlm.runtime.intervention import Context, ForwardPass, Intervention, norm_ratio

__all__ = ["DAMO"]


@dataclass(frozen=True)
class DAMO(Method):
    """Decoding by accumulating activations momentum."""

    name: ClassVar[str] = "damo"
    paper: ClassVar[str | None] = "DAMO: accumulating activations momentum (ICLR 2025, openreview JUr0YOMvZA)"
    summary: ClassVar[str] = "keeps the momentum of states where a layer turns the prediction round"
    site: ClassVar[str] = "hidden states"
    cost: ClassVar[str] = "1 pass with the head applied to the upper half of the layers, twice where it acts"
    needs_images: ClassVar[bool] = False

    tau: float = option(
        -0.3, "cosine below which a layer turns round; -1 is off", low=-1, high=1, off=-1, search=(-0.9, 0.3)
    )
    alpha: float = option(0.7, "how long changes of the prediction are remembered", low=0, high=1)
    beta_1: float = option(0.05, "share of earlier steps in the momentum of states", low=0, high=1)
    beta_2: float = option(0.2, "the same in a layer that turns round", low=0, high=1)
    layers: tuple[int, int] | None = option(
        None, "decoder layers: the first and the one after the last; none is (16, 32) of 32, scaled", span=True
    )

    def span(self, depth: int) -> range:
        """The layers that may be changed."""
        found = scale_span((16, 32), 32, depth) if self.layers is None else layer_span(self.layers, depth)
        if found.start < 1:
            raise ValueError(
                f"layers = {self.layers}: the first must be 1 or later, since two states before it are read"
            )
        return found

    def start(self, context: Context) -> Intervention:
        return _Momentum(self, context)


class _Momentum(Intervention):
    method: DAMO
    acts_in_decode = True

    def __init__(self, method: DAMO, context: Context) -> None:
        super().__init__(method, context)
        self.span = method.span(len(context.parts.layers))
        self.residual_layers = range(self.span.start - 2, self.span.stop)  # -1 is the decoder's input
        if self.span.start == 1:
            self.residual_layers = range(-1, self.span.stop)
        self._reset()

    def _reset(self) -> None:
        self._r: Tensor | None = None  # (B, R, d) state of the layer before, as it was left
        self._p: Tensor | None = None  # (B, R, V) its prediction
        self._dp: Tensor | None = None  # (B, R, V) its change of the prediction
        self._q: Tensor | None = None
        self._m: Tensor | None = None
        self._turned: Tensor | None = None  # (B, R) whether a layer has turned round

    def on_pass(self, fp: ForwardPass) -> None:
        self._reset()

    @torch.no_grad()
    def _predict(self, r: Tensor) -> Tensor:
        p: Tensor = self.context.parts.head(r).float().softmax(-1)
        return p

    @torch.no_grad()
    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> Tensor | None:
        first = fp.first_generated if fp.is_prefill else fp.length - 1 if not fp.is_decode else 0
        r, before, old = h[:, first:], self._r, self._p  # (B, R, d)
        p = self._predict(r)
        if layer not in self.span:
            self._dp = torch.zeros_like(p) if old is None else p - old.to(p.device)
            self._r, self._p = r, p
            return None
        assert before is not None and old is not None and self._dp is not None
        before, dp = before.to(r.device), p - old.to(p.device)
        a = self.method.alpha
        self._q = (1 - a) * self._dp if self._q is None else a * self._q.to(p.device) + (1 - a) * self._dp
        turns = cosine_similarity(dp, self._q.to(p.device), -1) < self.method.tau  # (B, R)
        turns = turns.to(r.device)
        beta = torch.where(turns, self.method.beta_2, self.method.beta_1).unsqueeze(-1)
        step = r.float() - before.float()
        self._m = (1 - beta) * step if self._m is None else beta * self._m.to(r.device) + (1 - beta) * step
        self._turned = turns if self._turned is None else self._turned.to(r.device) | turns
        new = torch.where(self._turned.unsqueeze(-1), (before.float() + self._m).to(r.dtype), r)
        self._r = new
        self._p = torch.where(self._turned.unsqueeze(-1).to(p.device), self._predict(new), p)
        self._dp = self._p - old.to(p.device)
        self.stats.add(layer, fp.zero_padding(norm_ratio(new, r)) if first == 0 else norm_ratio(new, r), fp.batch_size)
        return torch.cat([h[:, :first], new], 1)

    def inactive_reason(self, row: int | None) -> str:
        return f"no layer's prediction turned round (cosine below {self.method.tau:g})"
