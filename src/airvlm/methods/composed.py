"""Composition: several methods at once, in a defined order, each with its own report.

`Composed(AIR(), VAF())`: wherever two of them meet, at the decoder's input, a feed-forward or the logits, they act in
the order given, each on what the one before left. Knows nothing of what the methods do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from airvlm.hooks.fields import setting
from airvlm.hooks.intervention import Call, Context, Intervention, Step
from airvlm.hooks.method import Method
from airvlm.report import Report

if TYPE_CHECKING:
    from transformers import LogitsProcessor

__all__ = ["Composed"]


@dataclass(frozen=True, init=False)
class Composed(Method):
    """Several methods in order: `Composed(AIR(), VAF())`."""

    name: ClassVar[str] = "composed"
    mechanism: ClassVar[str] = "several methods at once, each acting on what the one before left"
    forwards: ClassVar[str] = "those of its parts"

    methods: tuple[Method, ...] = setting((), "in the order they act")

    def __init__(self, *parts: Method, methods: Sequence[Method] = ()) -> None:
        chosen = (*parts, *methods)
        if not chosen:
            raise ValueError("a composition needs methods: Composed(AIR(), VAF())")
        for part in chosen:
            if not isinstance(part, Method):
                raise TypeError(
                    f"Composed takes methods, not {type(part).__name__}; None (vanilla) is left out"
                )
        object.__setattr__(self, "methods", chosen)

    @property
    def needs_images(self) -> bool:  # type: ignore[override]  # what a class knows of one method, an instance of many
        return any(part.needs_images for part in self.methods)

    @property
    def needs_pixels(self) -> bool:  # type: ignore[override]  # likewise
        return any(part.needs_pixels for part in self.methods)

    def start(self, context: Context) -> Intervention:
        return _Together(self, context)


class _Together(Intervention):
    """The interventions of the parts, one after the other."""

    def __init__(self, method: Composed, context: Context) -> None:
        super().__init__(method, context)
        self.parts = [part.intervention(context) for part in method.methods]
        self.layers = sorted({layer for part in self.parts for layer in part.layers})
        self.watched = sorted({layer for part in self.parts for layer in part.watched})
        self.decodes = any(part.decodes for part in self.parts)
        self.changes_logits = any(part.changes_logits for part in self.parts)

    def open(self, stack: ExitStack) -> None:
        for part in self.parts:
            part.open(stack)

    def on_call(self, call: Call) -> None:
        for part in self.parts:
            part.start_call(call)

    def processors(self, call: Call) -> list[LogitsProcessor]:
        return [processor for part in self.parts for processor in part.processors(call)]

    def on_pass(self, step: Step) -> None:
        for part in self.parts:
            part.start_pass(step)

    def embeds(self, step: Step, inputs_embeds: Tensor) -> Tensor | None:
        return _chain(inputs_embeds, [partial(part.embeds, step) for part in self.parts])

    def hidden(self, step: Step, layer: int, h: Tensor) -> None:
        for part in self.parts:
            if layer in part.watched:
                part.hidden(step, layer, h)

    def ffn(self, step: Step, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        parts = [part for part in self.parts if layer in part.layers]
        return _chain(y, [partial(part.ffn, step, layer, x) for part in parts])

    def logits(self, step: Step, logits: Tensor) -> Tensor | None:
        parts = [part for part in self.parts if part.changes_logits]
        return _chain(logits, [partial(part.logits, step) for part in parts])

    def problem(self) -> str | None:
        return next((problem for part in self.parts if (problem := part.problem())), None)

    def report(self) -> Report:
        reports = [part.report() for part in self.parts]
        rows = tuple(
            self._joined([report.rows[r] for report in reports if r < len(report.rows)])
            for r in range(max(len(report.rows) for report in reports))
        )
        return self._joined(reports, rows=rows)

    def _joined(self, reports: list[Report], **more: Any) -> Report:
        idle = [f"{report.method['name']}: {report.reason}" for report in reports if not report.fired]
        return Report(
            method=self.method.to_json(),
            fired=any(report.fired for report in reports),
            reason="; ".join(idle) or None,
            layers=tuple(sorted({layer for report in reports for layer in report.layers})),
            tokens=sum(report.tokens for report in reports),
            passes=max(report.passes for report in reports),
            crops=next((report.crops for report in reports if report.crops), ()),
            seconds={
                f"{report.method['name']} {what}": spent
                for report in reports
                for what, spent in report.seconds.items()
            },
            parts=tuple(reports),
            silent=all(report.silent for report in reports),
            **more,
        )


def _chain(value: Tensor, changes: Sequence[Callable[[Tensor], Tensor | None]]) -> Tensor | None:
    """Each change on what the one before left; None when none of them changed anything."""
    new = None
    for change in changes:
        changed = change(value if new is None else new)
        new = new if changed is None else changed
    return new
