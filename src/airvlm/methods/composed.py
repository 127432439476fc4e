"""Composition: several methods at once, in a defined order, each with its own report.

`Composed(CropBlend(), VAF())`, on the command line `crop-blend+vaf`: where two of them change the same value, they act
in the given order, each on what the one before left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from airvlm.inputs.builder import ViewQueue
from airvlm.inputs.images import LoadedImage
from airvlm.methods.base import Method, option
from airvlm.methods.evidence.base import CropMethod
from airvlm.models.parts import ModelParts
from airvlm.report import Report
from airvlm.runtime.intervention import DECODING, Context, ForwardPass, GenerateCall, Intervention

if TYPE_CHECKING:
    from transformers import LogitsProcessor

__all__ = ["CombinedIntervention", "Composed"]


@dataclass(frozen=True, init=False)
class Composed(Method):
    """Several methods in order: `Composed(CropBlend(), VAF())`."""

    name: ClassVar[str] = "composed"
    summary: ClassVar[str] = "several methods at once, each acting on what the one before left"
    cost: ClassVar[str] = "those of its parts"

    methods: tuple[Method, ...] = option((), "the methods, in the order in which they act")

    def __init__(self, *parts: Method, methods: Sequence[Method] = ()) -> None:
        chosen: list[Method] = []
        for part in (*parts, *methods):
            if not isinstance(part, Method):
                raise TypeError(f"Composed takes methods, not {type(part).__name__}; leave None (vanilla) out")
            chosen += part.methods if isinstance(part, Composed) else (part,)  # one list: the order is all that counts
        if len(chosen) < 2:
            raise ValueError("a composition needs two methods or more: Composed(CropBlend(), VAF())")
        claims = [claim for part in chosen for claim in part.exclusive]
        for claim in claims:
            if claims.count(claim) > 1:
                names = " and ".join(part.name for part in chosen if claim in part.exclusive)
                raise ValueError(f"{names} cannot be combined: only one method can have a {claim} of its own")
        if "re-ask" in claims and any(isinstance(part, CropMethod) for part in chosen):
            raise ValueError("a method that asks again with other images cannot be combined with one that uses crops")
        object.__setattr__(self, "methods", tuple(chosen))

    @property
    def label(self) -> str:
        return "+".join(part.label for part in self.methods)

    @property
    def exclusive(self) -> tuple[str, ...]:  # type: ignore[override]  # those of its parts
        return tuple(claim for part in self.methods for claim in part.exclusive)

    @property
    def needs_images(self) -> bool:  # type: ignore[override]  # its parts decide
        return any(part.needs_images for part in self.methods)

    @property
    def needs_pixels(self) -> bool:  # type: ignore[override]  # likewise
        return any(part.needs_pixels for part in self.methods)

    @property
    def site(self) -> str:  # type: ignore[override]  # likewise
        return ", ".join(dict.fromkeys(part.site for part in self.methods))

    @property
    def decoding(self) -> tuple[str, ...]:  # type: ignore[override]  # likewise
        return tuple(mode for mode in DECODING if all(mode in part.decoding for part in self.methods))

    def further_views(self, parts: ModelParts, processor: Any, images: Sequence[LoadedImage]) -> ViewQueue | None:
        queues = (part.further_views(parts, processor, images) for part in self.methods)
        return next((queue for queue in queues if queue is not None), None)

    def start(self, context: Context) -> Intervention:
        return CombinedIntervention(self, context, [part.intervention(context) for part in self.methods])


class CombinedIntervention(Intervention):
    """Several interventions, one after the other: those of a composition, or the halves of one method.

    Args:
        method: that they belong to.
        context: of the session.
        parts: the interventions, in the order in which they act.
    """

    def __init__(self, method: Method, context: Context, parts: Sequence[Intervention]) -> None:
        super().__init__(method, context)
        self.parts = list(parts)
        for site in ("ffn_layers", "attention_layers", "head_layers", "residual_layers"):
            setattr(self, site, sorted({layer for part in self.parts for layer in getattr(part, site)}))
        self.acts_in_decode = any(part.acts_in_decode for part in self.parts)
        self.changes_logits = any(part.changes_logits for part in self.parts)

    def open(self, stack: ExitStack) -> None:
        for part in self.parts:
            part.open(stack)

    def on_call(self, call: GenerateCall) -> None:
        for part in self.parts:
            part.start_call(call)

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        return [processor for part in self.parts for processor in part.processors(call)]

    def on_pass(self, fp: ForwardPass) -> None:
        for part in self.parts:
            part.start_pass(fp)

    def embeds(self, fp: ForwardPass, inputs_embeds: Tensor) -> Tensor | None:
        return _chain(inputs_embeds, [partial(part.embeds, fp) for part in self.parts])

    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> Tensor | None:
        return _chain(h, [partial(p.residual, fp, layer) for p in self.parts if layer in p.residual_layers])

    def attention(self, fp: ForwardPass, layer: int, y: Tensor) -> Tensor | None:
        return _chain(y, [partial(p.attention, fp, layer) for p in self.parts if layer in p.attention_layers])

    def heads(self, fp: ForwardPass, layer: int, o: Tensor) -> Tensor | None:
        return _chain(o, [partial(p.heads, fp, layer) for p in self.parts if layer in p.head_layers])

    def ffn(self, fp: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        return _chain(y, [partial(p.ffn, fp, layer, x) for p in self.parts if layer in p.ffn_layers])

    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        return _chain(logits, [partial(p.logits, fp) for p in self.parts if p.changes_logits])

    def finish_call(self, out: Any) -> Any:
        for part in reversed(self.parts):
            out = part.finish_call(out)
        return out

    def problem(self) -> str | None:
        return next((problem for part in self.parts if (problem := part.problem())), None)

    def report(self) -> Report:
        reports = [part.report() for part in self.parts]
        num_rows = max(len(report.rows) for report in reports)
        rows = tuple(
            self._join([report.rows[r] for report in reports if r < len(report.rows)]) for r in range(num_rows)
        )
        return self._join(reports, rows=rows)

    def _join(self, reports: list[Report], **more: Any) -> Report:
        composed = isinstance(self.method, Composed)  # else they are halves of one method
        idle = [f"{r.method['name']}: {r.reason}" if composed else str(r.reason) for r in reports if not r.fired]
        seconds = [(f"{r.method['name']} " if composed else "", r.seconds) for r in reports]
        return Report(
            method=self.reported_as.to_json(),
            fired=any(report.fired for report in reports),
            reason="; ".join(dict.fromkeys(idle)) or None,
            layers=tuple(sorted({layer for report in reports for layer in report.layers})),
            tokens=max(report.tokens for report in reports),  # they may be the same tokens: each part has its own count
            passes=max(report.passes for report in reports),
            crops=next((report.crops for report in reports if report.crops), ()),
            norm_ratio=None if composed else next((r.norm_ratio for r in reports if r.norm_ratio), None),
            seconds={f"{name}{part}": spent for name, own in seconds for part, spent in own.items()},
            parts=tuple(reports) if composed else (),
            extra={} if composed else {k: v for r in reports for k, v in r.extra.items()},
            expected=all(report.expected for report in reports),
            images_not_checked=reports[0].images_not_checked,
            **more,
        )


def _chain(value: Tensor, changes: Sequence[Callable[[Tensor], Tensor | None]]) -> Tensor | None:
    """Each change applied to what the one before left; None when none of them changed anything."""
    new = None
    for change in changes:
        changed = change(value if new is None else new)
        new = new if changed is None else changed
    return new
