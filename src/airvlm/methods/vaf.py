"""VAF: visual amplification fusion (ClearSight, CVPR 2025). Middle layers are made to look more at the picture.

In the layers where picture and text meet, the attention scores of the picture's columns are raised and those of the
system prompt's lowered, for the text rows after the picture. Positions come from the token ids of each row.

The published code multiplies scores, s (1 + a), which *lowers* attention where a score is negative: that is
`faithful=True`, and is done by scaling keys, so that any attention kernel is kept. The default is sign-safe, s + a |s|,
and computes the scores of the rows after the picture itself; all other rows keep the kernel.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from airvlm.hooks.attention import Columns, attention_modules, reshaped
from airvlm.hooks.fields import setting
from airvlm.hooks.intervention import Call, Intervention, Step
from airvlm.hooks.method import Method
from airvlm.hooks.run import NeverFired, Run
from airvlm.report import Report

__all__ = ["VAF"]

PUBLISHED = (9, 15)  # layers 9 to 14 of LLaVA-1.5-7B's 32, the only published setting
DEPTH = 32


@dataclass(frozen=True)
class VAF(Method):
    """Visual amplification fusion."""

    name: ClassVar[str] = "vaf"
    publication: ClassVar[str] = "ClearSight: visual signal enhancement (CVPR 2025, arXiv 2503.13107)"
    mechanism: ClassVar[str] = "middle layers attend more to the picture and less to the system prompt"
    forwards: ClassVar[str] = "1"

    enhance: float = setting(
        0.15, "how much the scores of the image's keys are raised", low=0, off=0, search=(0.05, 0.6)
    )
    suppress: float = setting(
        0.05,
        "how much the scores of the keys before the image are lowered",
        low=0,
        high=1,
        off=0,
        search=(0.0, 0.3),
    )
    layers: tuple[int, int] | None = setting(
        None,
        "decoder layers that are changed: the first and the one after the last; none is (9, 15) of 32, scaled to the "
        "decoder",
        span=True,
    )
    faithful: bool = setting(False, "multiply scores as the published code does, which inverts negative ones")

    def span(self, depth: int) -> range:
        """The layers that are changed in a decoder of `depth` layers."""
        if self.layers is None:
            first = round(PUBLISHED[0] * depth / DEPTH)
            return range(first, max(first + 1, round(PUBLISHED[1] * depth / DEPTH)))
        if self.layers[1] > depth:
            raise ValueError(
                f"layers = {self.layers}, but the decoder has {depth}: the span may end at {depth}"
            )
        return range(*self.layers)

    def begin(self, run: Run) -> Intervention:
        return Amplifying(run, self)


class Amplifying(Intervention):
    """One run of VAF."""

    decodes = True

    def __init__(self, run: Run, vaf: VAF) -> None:
        super().__init__(run)
        self.vaf = vaf
        self.into_keys = vaf.faithful
        self.span = vaf.span(len(run.anatomy.layers))
        self.rows = 0
        self.showing: Tensor | None = None  # (rows,) rows with a picture
        self.tokens: Tensor | None = None  # (rows,) positions whose scores were changed
        self.passes = 0
        self._reached: Counter[int] = Counter()  # passes in which a layer's attention was reached
        self._layer: dict[nn.Module, int] = {}
        self._now: Columns | None = None
        self._weight: Tensor | None = None  # (B, T) of the sequence so far
        self._total = 0  # tokens of it
        self._shows_all = False  # every row has a picture

    def open(self, stack: ExitStack) -> None:
        if self.vaf.off:
            return
        modules = attention_modules(self.run.anatomy)
        self._layer = {modules[i]: i for i in self.span}
        reshaped(self.run.anatomy, self._layer, self, stack)

    def call(self, call: Call) -> None:
        self.tokens = None
        self.passes = 0
        self._reached.clear()

    def begin(self, step: Step) -> None:
        self.rows = step.rows
        self._total = step.length if step.fresh else self._total + step.length
        if step.fresh:
            self._weight = self.showing = None
        if self.vaf.off:
            return
        if step.visual is not None:
            self._look(step, step.visual)
        elif self._weight is not None and self.showing is not None:
            shows = self.showing.repeat_interleave(step.expand)
            rows = shows[:, None].expand(-1, step.length)  # (B, L): text after a picture
            self._now = Columns(self._weight, rows, 0, self._shows_all)
        else:
            self._now = None
        if self._now is not None:
            self.passes += 1
            tokens = self._real(step, self._now.rows).view(step.rows, -1).sum(-1)
            self.tokens = tokens if self.tokens is None else self.tokens + tokens.to(self.tokens.device)

    def _look(self, step: Step, visual: Tensor) -> None:
        """A prefill with pictures: where they are, what comes before, which rows come after."""
        seen = visual.long().cumsum(-1) > 0  # (B, L) from the first picture on
        has = visual.any(-1, keepdim=True)
        before = (
            torch.zeros_like(seen)
            if not step.fresh
            else ~seen & has & self._real(step, torch.ones_like(seen))
        )
        weight = self.vaf.enhance * visual.float() - self.vaf.suppress * before.float()
        past = self._total - step.length
        if past and self._weight is not None:  # another turn: its pictures join the earlier ones
            weight = torch.cat(
                [nn.functional.pad(self._weight, (0, past - self._weight.shape[-1])), weight], -1
            )
        elif past:
            weight = nn.functional.pad(weight, (past, 0))
        self._weight = weight
        showing = has[:: step.expand, 0]
        self.showing = showing if self.showing is None else self.showing | showing
        rows = seen & ~visual
        first = rows.any(0).nonzero()
        self._shows_all = bool(self.showing.all())
        # A prompt that ends with the picture has no row to change until a token is decoded.
        self._now = Columns(weight, rows, int(first[0]), False) if len(first) else None

    def _real(self, step: Step, rows: Tensor) -> Tensor:
        mask = step.attention_mask
        if step.decode or mask is None or mask.shape[-1] < step.length:
            return rows
        return rows & (mask[:, : step.length] if step.fresh else mask[:, -step.length :]).bool()

    def columns(self, module: nn.Module) -> tuple[Columns, int] | None:
        self._reached[self._layer[module]] += 1
        return None if self._now is None else (self._now, self._total)

    def report(self) -> Report:
        if not self.vaf.off and any(self._reached[i] < self.passes for i in self.span):
            raise NeverFired(
                "vaf could not act: attention ran without going through the AttentionInterface. Is a layer compiled "
                "or wrapped? Undo that"
            )
        showing = [False] * self.rows if self.showing is None else self.showing.tolist()
        tokens = [0] * self.rows if self.tokens is None else self.tokens.tolist()
        rows = tuple(self._report(*row) for row in zip(showing, tokens, strict=True))
        return self._report(any(showing), sum(tokens), rows=rows)

    def _report(self, shows: bool, tokens: int, **more: Any) -> Report:
        if self.vaf.off:
            reason = self.vaf.off
        elif not shows:
            reason = "there is no picture in this row"
        else:
            reason = "no text came after the picture"
        acted = tokens > 0
        return Report(
            method=self.vaf.to_json(),
            fired=acted,
            reason=None if acted else reason,
            layers=tuple(self.span) if acted else (),
            tokens=tokens,
            passes=self.passes if acted else 0,
            silent=self.vaf.off is not None,
            **more,
        )
