"""AttentionMethod: changes attention scores of the image's keys."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from airvlm.methods.base import Method
from airvlm.runtime.attention import ScoreChange, attention_modules, change_scores
from airvlm.runtime.intervention import Context, ForwardPass, Intervention

__all__ = ["AttentionMethod"]


@dataclass(frozen=True)
class AttentionMethod(Method):
    """Changes the attention scores of weighted keys, for the queries after the first image."""

    site: ClassVar[str] = "attention"
    multiplies: ClassVar[bool] = False  # s (1 + w), which scaled keys do in any kernel; otherwise s + w |s|

    def span(self, depth: int) -> range:
        """The layers that are changed in a decoder of `depth` layers."""
        raise NotImplementedError

    def key_weights(self, visual: Tensor, before: Tensor) -> Tensor:
        """Weights w (B, L) of the keys.

        Args:
            visual: (B, L), 1 at image tokens.
            before: (B, L), 1 at text before the first image.
        """
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return _Attention(self, context)


class _Attention(Intervention):
    method: AttentionMethod
    acts_in_decode = True

    def __init__(self, method: AttentionMethod, context: Context) -> None:
        super().__init__(method, context)
        self.multiplies = method.multiplies
        self.span = method.span(len(context.parts.layers))
        self._reached: Counter[int] = Counter()  # passes in which a layer's attention was reached
        self._passes = 0  # passes in which it should have been
        self._layer: dict[nn.Module, int] = {}
        self._now: ScoreChange | None = None
        self._weight: Tensor | None = None  # (B, T) of the sequence so far
        self._total = 0  # tokens of it
        self._all_show = False  # every row has an image

    def open(self, stack: ExitStack) -> None:
        modules = attention_modules(self.context.parts)
        self._layer = {modules[i]: i for i in self.span}
        change_scores(self.context.parts, self._layer, self, stack)

    def on_call(self, call: Any) -> None:
        self._passes = 0
        self._reached.clear()

    def on_pass(self, fp: ForwardPass) -> None:
        self._total = fp.length if fp.is_prefill else self._total + fp.length
        if fp.is_prefill:
            self._weight = None
        self._now = None
        if fp.visual is not None:
            self._find(fp, fp.visual)
        elif self._weight is not None and self.has_image is not None:
            shows = self.has_image.repeat_interleave(fp.beams)
            queries = shows[:, None].expand(-1, fp.length)  # (B, L): text after an image
            self._now = ScoreChange(self._weight, queries, 0, self._all_show)
        if self._now is not None:
            self._passes += 1
            self.stats.count(fp.zero_padding(self._now.queries).view(fp.batch_size, -1).sum(-1))

    def _find(self, fp: ForwardPass, visual: Tensor) -> None:
        """A prefill with images: find the images, the text before them, and the queries after them."""
        seen = visual.long().cumsum(-1) > 0  # (B, L) from the first image on
        has = visual.any(-1, keepdim=True)
        before = torch.zeros_like(seen) if not fp.is_prefill else ~seen & has & fp.zero_padding(torch.ones_like(seen))
        weight = self.method.key_weights(visual.float(), before.float())
        past = self._total - fp.length
        if past and self._weight is not None:  # another turn: its images join the earlier ones
            weight = torch.cat([nn.functional.pad(self._weight, (0, past - self._weight.shape[-1])), weight], -1)
        elif past:
            weight = nn.functional.pad(weight, (past, 0))
        self._weight = weight
        queries = seen & ~visual
        shown = fp.visual_on_cpu
        first = ((shown.long().cumsum(-1) > 0) & ~shown).any(0).nonzero()
        assert self.has_image_on_cpu is not None
        self._all_show = bool(self.has_image_on_cpu.all())
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

    def inactive_reason(self, row: int | None) -> str:
        return "no text came after the image"

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        return {"layers": tuple(self.span) if acted else ()}
