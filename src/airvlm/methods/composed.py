"""Composition: several methods at once, in a defined order, each with its own report.

`Composed(AIR(), VAF())`: wherever two of them meet, at the decoder's input, a feed-forward or the logits, they act in
the order given, each on what the one before left. Knows nothing of what the methods do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import Tensor

from airvlm.hooks.intervention import Call, Intervention, Step
from airvlm.hooks.method import Method
from airvlm.hooks.run import Run
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

    methods: tuple[Method, ...]  # in the order they act

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

    def begin(self, run: Run) -> Intervention:
        return _Together(run, self)


class _Share:
    """The run as one part sees it: all of the run, and the part's own method."""

    def __init__(self, run: Run, method: Method) -> None:
        self._run = run
        self.method = method

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


class _Together(Intervention):
    """The interventions of the parts, one after the other."""

    def __init__(self, run: Run, composed: Composed) -> None:
        super().__init__(run)
        self.composed = composed
        self.parts = [part.begin(cast(Run, _Share(run, part))) for part in composed.methods]
        self.layers = sorted({layer for part in self.parts for layer in part.layers})
        self.watched = sorted({layer for part in self.parts for layer in part.watched})
        self.decodes = any(part.decodes for part in self.parts)
        self.speaks = any(part.speaks for part in self.parts)

    def open(self, stack: ExitStack) -> None:
        for part in self.parts:
            part.open(stack)

    def call(self, call: Call) -> None:
        for part in self.parts:
            part.call(call)

    def processors(self, call: Call) -> list[LogitsProcessor]:
        return [processor for part in self.parts for processor in part.processors(call)]

    def begin(self, step: Step) -> None:
        for part in self.parts:
            part.begin(step)

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
        parts = [part for part in self.parts if part.speaks]
        return _chain(logits, [partial(part.logits, step) for part in parts])

    def report(self) -> Report:
        reports = [part.report() for part in self.parts]
        count = max(len(report.rows) for report in reports)
        rows = tuple(
            self._joined([report.rows[r] for report in reports if r < len(report.rows)]) for r in range(count)
        )
        return self._joined(reports, rows=rows)

    def _joined(self, reports: list[Report], **more: Any) -> Report:
        fired = any(report.fired for report in reports)
        idle = [f"{report.method['name']}: {report.reason}" for report in reports if not report.fired]
        return Report(
            method=self.composed.to_json(),
            fired=fired,
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
