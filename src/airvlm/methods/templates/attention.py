"""AttentionMethod: changes attention scores of the image's keys. HeadMethod: scales the outputs of attention heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from airvlm.methods.base import Method
from airvlm.runtime.attention import AttentionChange, Mode, attention_modules, fit_keys, watch_attention
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention, norm_ratio

__all__ = ["AttentionIntervention", "AttentionMethod", "HeadIntervention", "HeadMethod", "Queries"]

Queries = Literal["after_image", "last"]


@dataclass(frozen=True)
class AttentionMethod(Method):
    """Changes the attention scores of weighted keys, for queries that follow the first image."""

    site: ClassVar[str] = "attention"
    mode: ClassVar[Mode] = (
        "abs"  # scale: s (1 + w), in any kernel; abs: s + w |s|; mean_abs: s + w mean of |s| over heads
    )
    queries: ClassVar[Queries] = "after_image"  # all text after the image, or only the last prompt token and answers

    def span(self, depth: int) -> Sequence[int]:
        """The layers that are changed in a decoder of `depth` layers."""
        raise NotImplementedError

    def key_weights(self, visual: Tensor, before: Tensor) -> Tensor:
        """Weights w of the keys, (B, L) or per head (B, H, L).

        Args:
            visual: (B, L), 1 at image tokens.
            before: (B, L), 1 at text before the first image.
        """
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return _KeyWeights(self, context)


class AttentionIntervention(Intervention):
    """Base of interventions in attention: which queries and keys are meant, and proof that layers were reached.

    Subclasses set `span` and override `attention_of`; `visual_keys` (B, total) marks the image's keys so far.
    """

    acts_in_decode = True
    queries: Queries = "last"
    span: Sequence[int] = ()

    def __init__(self, method: Method, context: Context) -> None:
        super().__init__(method, context)
        self.total = 0  # tokens of the sequence so far
        self.visual_keys: Tensor | None = None  # (B, total)
        self.before_keys: Tensor | None = None  # (B, total) text before the first image
        self.padding_keys: Tensor | None = None  # (B, total)
        self.current: tuple[Tensor, int, bool] | None = None  # queries (B, L), the first of them, whether it is all
        self._every = False  # every row shows an image
        self._layer_of: dict[nn.Module, int] = {}
        self._reached: Counter[int] = Counter()  # passes in which a layer's attention was reached
        self._passes = 0  # passes in which it should have been

    def attention_of(self, layer: int) -> AttentionChange | None:
        """The change of one layer in the current pass, of the queries in `current`."""
        raise NotImplementedError

    def open(self, stack: ExitStack) -> None:
        self.find_layers()
        watch_attention(self.context.parts, self._layer_of, self, stack)

    def find_layers(self) -> None:
        """Find the attention modules of `span`. `open` does it; for an extra stream it is all that is needed."""
        modules = attention_modules(self.context.parts)
        self._layer_of = {modules[i]: i for i in self.span}

    def attention_change(self, module: nn.Module) -> AttentionChange | None:
        """Called by the attention function."""
        layer = self._layer_of.get(module)
        if layer is None:
            return None
        self._reached[layer] += 1
        return None if self.current is None else self.attention_of(layer)

    def on_call(self, call: GenerateCall) -> None:
        self._passes = 0
        self._reached.clear()

    def on_pass(self, fp: ForwardPass) -> None:
        self.total = fp.length if fp.is_prefill else self.total + fp.length
        if fp.is_prefill:
            self.visual_keys = self.before_keys = self.padding_keys = None
        self.current = None
        if fp.visual is not None:
            assert self.has_image_on_cpu is not None
            self._every = bool(self.has_image_on_cpu.all())
            self._find_image(fp, fp.visual)
        elif self.visual_keys is not None and self.has_image is not None:
            self._extend_keys(torch.zeros_like(self.visual_keys[:, :1]).expand(-1, fp.length))
            first = fp.length - 1 if self.queries == "last" else 0  # of text that is read on top of a cache
            shown = torch.arange(fp.length, device=self.has_image.device) >= first
            rows = self.has_image.repeat_interleave(fp.beams)
            self.current = rows[:, None] & shown, first, self._every and not first
        self._passes += self.current is not None

    def count_queries(self, fp: ForwardPass) -> None:
        """Record the current queries as changed."""
        if self.current is not None:
            self.stats.count(fp.zero_padding(self.current[0]).view(fp.batch_size, -1).sum(-1))

    def _find_image(self, fp: ForwardPass, visual: Tensor) -> None:
        """A prefill with images: find the images, the text before them, and the queries that are changed."""
        seen = visual.long().cumsum(-1) > 0  # (B, L) from the first image on
        has = visual.any(-1, keepdim=True)
        real = fp.zero_padding(torch.ones_like(seen))
        before = ~seen & has & real if fp.is_prefill else torch.zeros_like(seen)
        self._extend_keys(visual, before, ~real)
        shown = fp.visual_on_cpu  # (B, L)
        after = (shown.long().cumsum(-1) > 0) & ~shown
        queries = seen & ~visual
        if self.queries == "last":
            # generated positions of a sequence that is read without a cache were last once
            late = torch.arange(fp.length) >= (fp.first_generated if fp.is_prefill else fp.length - 1)
            after, queries = after & late, queries & late.to(queries.device)
        first = after.any(0).nonzero()
        # A prompt that ends with the image has no query to change until a token is decoded.
        self.current = (queries, int(first[0]), False) if len(first) else None

    def _extend_keys(self, visual: Tensor, before: Tensor | None = None, padding: Tensor | None = None) -> None:
        """Append the keys of this pass to those so far; keys of passes without an image are text."""
        empty = torch.zeros_like(visual)
        new = (visual, empty if before is None else before, empty if padding is None else padding)
        old = (self.visual_keys, self.before_keys, self.padding_keys)
        past = self.total - visual.shape[1]
        joined = []
        for known, own in zip(old, new, strict=True):
            known = own.new_zeros(own.shape[0], 0) if known is None else known
            joined.append(torch.cat([nn.functional.pad(known, (0, past - known.shape[1])), own], -1))
        self.visual_keys, self.before_keys, self.padding_keys = joined

    def change(self, **what: Any) -> AttentionChange:
        """An AttentionChange of the current queries."""
        assert self.current is not None
        queries, first, every = self.current
        return AttentionChange(self.total, queries, first, every, **what)

    def problem(self) -> str | None:
        if any(self._reached[i] < self._passes for i in self.span):
            return "attention did not go through the AttentionInterface. If a layer is compiled or wrapped, undo that"
        return None

    def inactive_reason(self, row: int | None) -> str:
        return "no text came after the image"

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        return {"layers": tuple(self.span) if acted else ()}


class _KeyWeights(AttentionIntervention):
    method: AttentionMethod

    def __init__(self, method: AttentionMethod, context: Context) -> None:
        super().__init__(method, context)
        self.span = method.span(len(context.parts.layers))
        self.queries = method.queries
        self._weight: Tensor | None = None  # of the keys so far

    def on_pass(self, fp: ForwardPass) -> None:
        super().on_pass(fp)
        self.count_queries(fp)
        if fp.visual is not None:  # also where no query comes after the image in this pass
            assert self.visual_keys is not None and self.before_keys is not None
            self._weight = self.method.key_weights(self.visual_keys.float(), self.before_keys.float())

    def attention_of(self, layer: int) -> AttentionChange | None:
        return self.change(weight=self._weight, mode=self.method.mode)


@dataclass(frozen=True)
class HeadMethod(Method):
    """Scales the outputs of attention heads before the output projection, for the last query, in any kernel."""

    site: ClassVar[str] = "attention"

    def span(self, depth: int) -> Sequence[int]:
        """The layers that are changed in a decoder of `depth` layers."""
        raise NotImplementedError

    def head_factors(self, image_share: Tensor, layer: int) -> Tensor:
        """Factors (B, R, H) of the heads, for R queries.

        Args:
            image_share: (B, R, H) share of each query's attention that is on the image.
            layer: the layer's number.
        """
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return HeadIntervention(self, context)


class HeadIntervention(AttentionIntervention):
    """One session of a HeadMethod; `share` holds what `head_factors` is given, layer -> (B, R, H)."""

    method: HeadMethod

    def __init__(self, method: HeadMethod, context: Context) -> None:
        super().__init__(method, context)
        self.span = self.head_layers = method.span(len(context.parts.layers))
        self.share: dict[int, Tensor] = {}

    def attention_of(self, layer: int) -> AttentionChange | None:
        assert self.current is not None

        def observe(p: Tensor) -> None:  # (B, H, R, T)
            assert self.visual_keys is not None
            visual = fit_keys(self.visual_keys, p.shape[-1], self.total).to(p)
            self.share[layer] = (p * visual[:, None, None]).sum(-1).transpose(1, 2)

        return AttentionChange(self.total, first=self.current[1], observe=observe)

    def heads(self, fp: ForwardPass, layer: int, o: Tensor) -> Tensor | None:
        share = self.share.pop(layer, None)
        if share is None or self.current is None:
            return None
        queries, first, _ = self.current
        factors = self.method.head_factors(share, layer).to(o)  # (B, R, H)
        part = o[:, first:]
        changed = torch.where(queries[:, first:, None, None].to(o.device), part * factors[..., None], part)
        ratio = norm_ratio(changed.flatten(2), part.flatten(2))
        self.stats.add(layer, ratio, fp.batch_size)
        return torch.cat([o[:, :first], changed], 1)
