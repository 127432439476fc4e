"""HulluEdit (CVPR 2026): shrinks the part of the last state that neither the image's nor the text's states explain.

At every generated token, with h the final normed state, U are the first `rank` right singular vectors of the visual
tokens' states in a late layer (centered, weighted by w = softmax of cos(state, h) / temperature), and P those of the
text's states after U is removed. With u = U U^T h, p = P P^T h and the rest s = h - u - p,

    ln = kappa (1 - a) / a, a = |u|^2 / |h|^2 >= floor;    lp = prior b / (1 - b), b = |p|^2 / |h|^2 <= ceiling,

where lp is 0 if b is below a threshold and both are bounded, h' = u + p / (1 + ln + lp) + s / (1 + ln), scaled by
(|h| / |h'|)^restore, and the logits are those of (1 - blend) h + blend h'. Nothing enters the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method, option
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention, without_methods

__all__ = ["HulluEdit"]

LAYER = 25 / 32  # the output that published code calls hidden state 26 of LLaVA-1.5-7B
EPS = 1e-6


@dataclass(frozen=True)
class HulluEdit(Method):
    """Edits the last state by what visual and text states span."""

    name: ClassVar[str] = "hulluedit"
    paper: ClassVar[str | None] = "HulluEdit: evidence subspace editing (CVPR 2026, arXiv 2602.22727)"
    summary: ClassVar[str] = "shrinks what neither the image's nor the text's states explain of the last state"
    site: ClassVar[str] = "logits"
    cost: ClassVar[str] = "1 pass, and two singular value decompositions per token, each of which waits for the device"
    decoding: ClassVar[tuple[str, ...]] = ("greedy", "sampling")

    blend: float = option(0.7, "share of the edited state; 0 is off", low=0, high=1, off=0, search=(0.1, 1.0))
    kappa: float = option(0.6, "how much the rest is shrunk", low=0)
    prior: float = option(0.3, "how much the text's part is shrunk beyond it", low=0)
    rank: int = option(6, "directions of the visual states", low=1)
    rank_prior: int = option(4, "directions of the text's states", low=0)
    temperature: float = option(1.5, "of the weights of visual states", above=0)
    restore: float = option(0.5, "exponent by which the length is restored", low=0, high=1)
    floor: float = option(0.05, "smallest share of the visual part", above=0, high=1)
    ceiling: float = option(0.95, "largest share of the text's part", low=0, high=0.999)
    threshold: float = option(0.02, "share of the text's part below which it is kept", low=0, high=1)
    largest: float = option(4.0, "bound of ln and lp", low=0)
    layer: int | None = option(None, "decoder layer whose states are read; none is layer 25 of 32, scaled", low=0)
    faithful: bool = option(
        False, "as the published code: visual states begin at the second position, whatever is there"
    )

    def span(self, depth: int) -> int:
        """The layer that is read in a decoder of `depth` layers."""
        layer = min(depth - 1, round(LAYER * depth)) if self.layer is None else self.layer
        if layer >= depth:
            raise ValueError(f"layer = {layer}, but the decoder has {depth} layers")
        return layer

    def edit(self, h: Tensor, visual: Tensor, text: Tensor) -> Tensor:
        """The edited state (d,), from the visual (n, d) and the text's (m, d) states; all float32."""
        cos = (visual @ h) / ((visual.norm(dim=1) + EPS) * (h.norm() + EPS))
        U = main_directions(visual, (cos / self.temperature).softmax(0), self.rank)  # (d, r)
        P = main_directions(text - (text @ U) @ U.T, None, self.rank_prior)
        u, p = U @ (U.T @ h), P @ (P.T @ h)
        rest, length = h - u - p, h @ h + EPS
        a = ((u @ u) / length).clamp(self.floor, 1)
        b = ((p @ p) / length).clamp(0, self.ceiling)
        ln = (self.kappa * (1 - a) / (a + EPS)).clamp(0, self.largest)
        lp = torch.where(b < self.threshold, 0.0, self.prior * b / (1 - b + EPS)).clamp(0, self.largest)
        new = u + p / (1 + ln + lp) + rest / (1 + ln)
        new = new * (length / (new @ new + EPS)).sqrt() ** self.restore
        return (1 - self.blend) * h + self.blend * new

    def start(self, context: Context) -> Intervention:
        return _Edit(self, context)


def main_directions(X: Tensor, weights: Tensor | None, rank: int) -> Tensor:
    """The first right singular vectors (d, <= rank) of the centered rows of X (n, d), weighted or not.

    Directions without any variance are zero, since which of them come first would be arbitrary.
    """
    if weights is None:
        centered = X - X.mean(0)
    else:
        centered = (X - weights @ X) * weights.sqrt()[:, None]
    _, values, right = torch.linalg.svd(centered.double(), full_matrices=False)
    kept = values[:rank] > 1e-6 * values[:1]
    return (right[: len(kept)].contiguous() * kept[:, None]).T.float()


class _Edit(Intervention):
    method: HulluEdit
    acts_in_decode = changes_logits = True

    def __init__(self, method: HulluEdit, context: Context) -> None:
        super().__init__(method, context)
        depth = len(context.parts.layers)
        self._layer = method.span(depth)
        self.residual_layers = sorted({self._layer, depth - 1})
        self._visual: list[Tensor] = []  # (n, d) of each row
        self._text: list[Tensor] = []  # (m, d) of each row
        self._last: Tensor | None = None  # (B, d) the last layer's output at the last position

    def on_call(self, call: GenerateCall) -> None:
        self._visual, self._text = [], []

    @torch.no_grad()
    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> None:
        if layer == self._layer:
            self._keep(fp, h)
        if layer == self.residual_layers[-1]:
            self._last = h[:, -1]

    def _keep(self, fp: ForwardPass, h: Tensor) -> None:
        if fp.is_decode:
            self._text = [torch.cat([known, own.float()]) for known, own in zip(self._text, h, strict=True)]
            return
        visual = torch.zeros(h.shape[:2], dtype=torch.bool) if fp.visual is None else fp.visual_on_cpu
        real = fp.zero_padding(torch.ones(h.shape[:2], dtype=torch.bool, device=h.device)).cpu()
        if self.method.faithful and fp.visual is not None:  # as many as there are, after the first token
            place = real.long().cumsum(1) - 1
            visual = (place >= 1) & (place <= visual.sum(1, keepdim=True))
        if fp.is_prefill:
            self._visual, self._text = [h.new_zeros(0, h.shape[-1], dtype=torch.float32)] * len(h), []
            self._text = list(self._visual)
        for row in range(len(h)):
            own = h[row].float()
            self._visual[row] = torch.cat([self._visual[row], own[(visual[row] & real[row]).to(h.device)]])
            self._text[row] = torch.cat([self._text[row], own[(~visual[row] & real[row]).to(h.device)]])

    @torch.no_grad()
    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        changed = self.active_rows(fp)
        if changed is None or not fp.generating or self._last is None or not self._visual:
            return None
        assert self.has_image_on_cpu is not None
        rows = [r for r, shown in enumerate(self.has_image_on_cpu.tolist()) if shown]
        with without_methods():
            h = self.context.parts.norm(self._last)  # (B, d)
            edited = h.clone()
            for row in rows:
                edited[row] = self.method.edit(h[row].float(), self._visual[row], self._text[row]).to(h.dtype)
            new = self.context.parts.head(edited).to(logits)  # (B, V)
        new = torch.where(changed.to(logits.device)[:, None], new, logits[:, -1])
        self.stats.count(changed.long())
        return torch.cat([logits[:, :-1], new[:, None]], 1)

    def inactive_reason(self, row: int | None) -> str:
        return "it acts on the steps of generate"
