"""Run: a method at work on one model, from the `with` that opens it to the report of what it did.

What is opened is undone when the block is left, also by an error: graphs, `generate`, hooks, and what the method itself
opened. Knows nothing of what a method computes; how its passes are followed is passes.py.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from airvlm.hooks.generation import prepared, shadow_generate, token_ids
from airvlm.hooks.graphs import forget_graphs
from airvlm.hooks.intervention import Call
from airvlm.hooks.passes import Passes
from airvlm.models.anatomy import Anatomy
from airvlm.report import Report

if TYPE_CHECKING:
    from types import TracebackType

    from airvlm.hooks.method import Method

__all__ = ["DidNotAct", "NeverFired", "Run"]


class NeverFired(RuntimeError):
    """A method was asked for and could not act."""


class DidNotAct(UserWarning):
    """A method looked and decided not to act; the report says why."""


class Run:
    """A method at work on one model: hooks while the block is open, the report afterwards."""

    def __init__(
        self, method: Method, model: nn.Module, processor: Any, images: Any, anatomy: Anatomy | None
    ) -> None:
        self.method = method
        self.anatomy = anatomy if anatomy is not None else Anatomy.of(model)
        self.model = self.anatomy.model  # without torch.compile's or PEFT's wrapper
        self.processor = processor
        self.images = images
        self._given = model  # with them
        self.calls = 0  # generate calls seen
        self._stack: ExitStack | None = None
        self._report: Report | None = None
        self.intervention = method.begin(self)
        self.passes = Passes(self.anatomy, self.intervention, method.name)

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("this run is already open; call the method again for another block")
        with ExitStack() as stack:  # closes what was opened so far when opening fails half-way
            forget_graphs(self._given, self.model, decodes=self.intervention.decodes, stack=stack)
            self.intervention.open(stack)
            shadow_generate(self.model, self._begin_call, self.passes.end_call, stack)
            self.passes.hook(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        assert stack is not None, "a run is closed once"
        stack.close()
        if kind is not None or not (self.calls or self.passes.steps):
            return  # the caller's own error comes first; a block without any pass asked for nothing
        report = self.report
        if not report.fired and not report.silent:
            warnings.warn(f"{self.method.name} did not act: {report.reason}", DidNotAct, stacklevel=2)

    @property
    def report(self) -> Report:
        """What the method did in the latest call. Raises NeverFired where it could not act."""
        if self._report is not None:
            return self._report
        problem = self.passes.problem(needs_images=self.method.needs_images)
        if problem is not None:
            raise NeverFired(f"{self.method.name} could not act: {problem}.")
        report = self.intervention.report()
        if self._stack is None:  # nothing more can happen
            self._report = report
        return report

    def row(self, i: int) -> Report:
        """The report of one row of the caller's batch."""
        return self.report.rows[i]

    def _begin_call(self, arguments: dict[str, Any]) -> Call:
        ids = token_ids(arguments.get("input_ids", arguments.get("inputs")), self.method.name)
        call = Call(arguments, self.model, rows=int(ids.shape[0]), expand=1)
        call.expand = max(call.option("num_beams", 1), call.option("num_return_sequences", 1))
        call = prepared(call, self.method.name, self.intervention)
        self.calls += 1
        self.passes.begin_call(call.rows, int(ids.shape[1]))
        return call
