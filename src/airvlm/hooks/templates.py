"""Templates: what most methods share, so that one says only what it changes, and when.

`VisualTokenMethod`  the visual tokens at the decoder's input, in prefill: write `visual_tokens`
`FeedForwardMethod`  the feed-forward output of a span of layers, in every pass: write `feed_forward`
`AttentionMethod`    the attention scores of the image's keys, for the text after it: write `key_weights`
`LogitsMethod`       the logits of every pass: write `next_logits`

Batch rows, beams, caches, padding, counting, the report and "off" are dealt with here; rows without an image are left
alone. Methods that keep something from pass to pass subclass Intervention instead. Knows no paper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from airvlm.hooks.attention import ScoreChange, attention_modules, change_scores
from airvlm.hooks.intervention import INPUT, Context, Intervention, Step, norm_ratio
from airvlm.hooks.method import Method

__all__ = ["AttentionMethod", "FeedForwardMethod", "LogitsMethod", "VisualTokenMethod", "layer_span"]


def layer_span(layers: tuple[int, int], depth: int) -> range:
    """(first, one after the last) in a decoder of `depth` layers, or an error."""
    if layers[1] > depth:
        raise ValueError(f"layers = {layers}, but the decoder has {depth}: the span may end at {depth}")
    return range(*layers)


@dataclass(frozen=True)
class VisualTokenMethod(Method):
    """Changes visual tokens where the decoder reads them."""

    def visual_tokens(self, z: Tensor, context: Context) -> Tensor:
        """The visual tokens z (n, d) of a prefill, all images of the batch one after another -> (n, d)."""
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return _VisualTokens(self, context)


class _VisualTokens(Intervention):
    method: VisualTokenMethod

    def embeds(self, step: Step, inputs_embeds: Tensor) -> Tensor | None:
        if step.visual is None:
            return None
        visual = step.on_host().nonzero(as_tuple=True)  # on the CPU: a mask on a device is waited for
        z = inputs_embeds[visual]  # (n, d)
        new = self.method.visual_tokens(z, self.context).to(z)
        ratio = torch.zeros(step.visual.shape, device=z.device)
        ratio[visual] = norm_ratio(new, z)
        self.changes.add(INPUT, ratio, step.rows)
        out = inputs_embeds.clone()
        out[visual] = new
        return out


@dataclass(frozen=True)
class FeedForwardMethod(Method):
    """Changes feed-forward outputs of a span of layers, in prefill and decode steps alike."""

    def span(self, depth: int) -> Sequence[int]:
        """The layers that are changed in a decoder of `depth` layers: those of a field `layers`, or all."""
        layers: tuple[int, int] | None = getattr(self, "layers", None)
        return range(depth) if layers is None else layer_span(layers, depth)

    def feed_forward(self, x: Tensor, y: Tensor, layer: int, context: Context) -> Tensor:
        """The feed-forward's input x and output y (B, L, d) -> the new output (B, L, d)."""
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return _FeedForward(self, context)


class _FeedForward(Intervention):
    method: FeedForwardMethod
    decodes = True

    def __init__(self, method: FeedForwardMethod, context: Context) -> None:
        super().__init__(method, context)
        self.layers = method.span(len(context.anatomy.layers))

    def ffn(self, step: Step, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        acts = _acts(self, step)
        if acts is None:
            return None
        new = torch.where(
            acts.to(y.device)[:, None, None], self.method.feed_forward(x, y, layer, self.context), y
        )
        self.changes.add(layer, step.without_padding(norm_ratio(new, y)), step.rows)
        return new


def _acts(intervention: Intervention, step: Step) -> Tensor | None:
    """(B,) the batch rows to change; None when there is none."""
    if not intervention.method.needs_images:
        return torch.ones(step.rows * step.expand, dtype=torch.bool)
    shows = intervention.with_image
    return None if shows is None else shows.repeat_interleave(step.expand)


@dataclass(frozen=True)
class LogitsMethod(Method):
    """Changes the logits of every pass."""

    def next_logits(self, logits: Tensor, step: Step, context: Context) -> Tensor:
        """The model's logits (B, L or fewer, V) -> the new ones."""
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return _Logits(self, context)


class _Logits(Intervention):
    method: LogitsMethod
    changes_logits = decodes = True

    def logits(self, step: Step, logits: Tensor) -> Tensor | None:
        acts = _acts(self, step)
        if acts is None:
            return None
        acts = acts.to(logits.device)
        new = torch.where(acts[:, None, None], self.method.next_logits(logits, step, self.context), logits)
        self.changes.count(acts.view(step.rows, -1).sum(-1) * logits.shape[1])
        return new


@dataclass(frozen=True)
class AttentionMethod(Method):
    """Changes attention scores: those of weighted keys, for the queries after the first image."""

    multiplies: ClassVar[bool] = False  # s (1 + w), which scaled keys do in any kernel; otherwise s + w |s|

    def span(self, depth: int) -> range:
        """The layers that are changed in a decoder of `depth` layers."""
        raise NotImplementedError

    def key_weights(self, visual: Tensor, before: Tensor) -> Tensor:
        """Weights w (B, L) of the keys: `visual` (B, L) are image tokens, `before` the text before the first image."""
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return _Attention(self, context)


class _Attention(Intervention):
    method: AttentionMethod
    decodes = True

    def __init__(self, method: AttentionMethod, context: Context) -> None:
        super().__init__(method, context)
        self.multiplies = method.multiplies
        self.span = method.span(len(context.anatomy.layers))
        self._reached: Counter[int] = Counter()  # passes in which a layer's attention was reached
        self._passes = 0  # passes in which it should have been
        self._layer: dict[nn.Module, int] = {}
        self._now: ScoreChange | None = None
        self._weight: Tensor | None = None  # (B, T) of the sequence so far
        self._total = 0  # tokens of it
        self._all_show = False  # every row has an image

    def open(self, stack: ExitStack) -> None:
        modules = attention_modules(self.context.anatomy)
        self._layer = {modules[i]: i for i in self.span}
        change_scores(self.context.anatomy, self._layer, self, stack)

    def on_call(self, call: Any) -> None:
        self._passes = 0
        self._reached.clear()

    def on_pass(self, step: Step) -> None:
        self._total = step.length if step.fresh else self._total + step.length
        if step.fresh:
            self._weight = None
        self._now = None
        if step.visual is not None:
            self._find(step, step.visual)
        elif self._weight is not None and self.with_image is not None:
            shows = self.with_image.repeat_interleave(step.expand)
            queries = shows[:, None].expand(-1, step.length)  # (B, L): text after an image
            self._now = ScoreChange(self._weight, queries, 0, self._all_show)
        if self._now is not None:
            self._passes += 1
            self.changes.count(step.without_padding(self._now.queries).view(step.rows, -1).sum(-1))

    def _find(self, step: Step, visual: Tensor) -> None:
        """A prefill with images: where they are, what comes before, which queries come after."""
        seen = visual.long().cumsum(-1) > 0  # (B, L) from the first image on
        has = visual.any(-1, keepdim=True)
        before = (
            torch.zeros_like(seen)
            if not step.fresh
            else ~seen & has & step.without_padding(torch.ones_like(seen))
        )
        weight = self.method.key_weights(visual.float(), before.float())
        past = self._total - step.length
        if past and self._weight is not None:  # another turn: its images join the earlier ones
            weight = torch.cat(
                [nn.functional.pad(self._weight, (0, past - self._weight.shape[-1])), weight], -1
            )
        elif past:
            weight = nn.functional.pad(weight, (past, 0))
        self._weight = weight
        queries = seen & ~visual
        shown = step.on_host()
        first = ((shown.long().cumsum(-1) > 0) & ~shown).any(0).nonzero()
        assert self.shows is not None
        self._all_show = bool(self.shows.all())
        # A prompt that ends with the image has no query to change until a token is decoded.
        self._now = ScoreChange(weight, queries, int(first[0]), False) if len(first) else None

    def scores(self, module: nn.Module) -> tuple[ScoreChange, int] | None:
        """The change in this pass and layer, and the tokens of the sequence so far."""
        self._reached[self._layer[module]] += 1
        return None if self._now is None else (self._now, self._total)

    def problem(self) -> str | None:
        if any(self._reached[i] < self._passes for i in self.span):
            return "attention did not go through the AttentionInterface. Is a layer compiled or wrapped? Undo that"
        return None

    def reason(self, row: int | None) -> str:
        return "no text came after the image"

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        return {"layers": tuple(self.span) if acted else ()}
