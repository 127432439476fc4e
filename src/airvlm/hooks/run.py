"""Run: a method at work on one model, from the `with` that opens it to the report of what it did.

What is opened is undone when the block is left, also by an error: graphs, `generate`, hooks, and what the method itself
opened. A call of `generate` is refused where no method could act. Knows nothing of what a method computes; how its
passes are followed is passes.py.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import LogitsProcessorList

from airvlm.hooks.generation import BlockRefused, Blocks
from airvlm.hooks.intervention import Call, Context, Intervention
from airvlm.hooks.passes import Passes, token_ids
from airvlm.hooks.row_images import RowImages
from airvlm.models.anatomy import Anatomy, every_module
from airvlm.report import Report

if TYPE_CHECKING:
    from types import TracebackType

    from airvlm.hooks.method import Method

__all__ = ["BlockRefused", "DidNotAct", "NeverFired", "Run"]

_FINGERPRINTS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


class NeverFired(RuntimeError):
    """A method was asked for and could not act."""


class DidNotAct(UserWarning):
    """A method decided not to act; the report says why."""


class Run:
    """A method at work on one model: hooks while the block is open, the report afterwards."""

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        processor: Any,
        images: Any,
        anatomy: Anatomy | None,
        check_images: bool = True,
    ) -> None:
        self.method = method
        self.name = method.name
        self.anatomy = anatomy if anatomy is not None else Anatomy.of(model)
        self.model = self.anatomy.model  # without torch.compile's or PEFT's wrapper
        self._given = model  # with them
        row_images = RowImages(method.name, self.anatomy, processor, images, check=check_images)
        self.context = Context(self.anatomy, processor, row_images)
        self.calls = 0  # generate calls seen
        self._stack: ExitStack | None = None
        self._blocks: Blocks | None = None
        self._report: Report | None = None
        self.intervention = method.intervention(self.context)
        self.passes = Passes(self.anatomy, self.intervention, method.name)
        _check_calibration(method, self.model)

    @property
    def images(self) -> Any:
        """The images of the next call, as they were given; set them before a call with others."""
        return self.context.images.raw

    @images.setter
    def images(self, images: Any) -> None:
        self.context.images.give(images)

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("this run is already open; call the method again for another block")
        self._blocks = Blocks.enter(self.model, self)
        try:
            with ExitStack() as stack:  # closes what was opened so far when opening fails half-way
                forget_graphs(self._given, self.model, decodes=self.intervention.decodes, stack=stack)
                self.intervention.open(stack)
                self.passes.hook(self._blocks, stack)
                self._stack = stack.pop_all()
        except BaseException:
            self._blocks.leave(self)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        assert stack is not None and self._blocks is not None, "a run is closed once"
        interrupted = self._blocks.leave(
            self
        )  # first: a call that is still running stops before the hooks are gone
        stack.close()
        if kind is not None:
            return  # the caller's own error comes first
        if interrupted is not None:
            raise BlockRefused(interrupted)
        if not (self.calls or self.passes.steps):
            return  # a block without any pass asked for nothing
        report = self.report
        if not report.fired and not report.silent:
            warnings.warn(f"{self.method.name} did not act: {report.reason}", DidNotAct, stacklevel=2)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The model's generate under this block, from whatever thread: for streams that are read in another one."""
        if self._blocks is None or self._stack is None:
            raise BlockRefused(f"the block of {self.method.name} is not open: call generate inside it")
        return self._blocks.generate((self,), args, kwargs, handed=True)

    @property
    def report(self) -> Report:
        """What the method did in the latest call. Raises NeverFired where it could not act."""
        if self._report is not None:
            return self._report
        problem = self.passes.problem(needs_images=self.method.needs_images) or self.intervention.problem()
        if problem is not None:
            raise NeverFired(f"{self.method.name} could not act: {problem}.")
        report = self.intervention.report()
        if self._stack is None:  # nothing more can happen
            self._report = report
        return report

    def row(self, i: int) -> Report:
        """The report of one row of the caller's batch."""
        return self.report.rows[i]

    def begin_call(self, arguments: dict[str, Any]) -> Call:
        """A generate call is about to run."""
        ids = token_ids(arguments.get("input_ids", arguments.get("inputs")), self.method.name)
        call = Call(arguments, self.model, rows=int(ids.shape[0]), expand=1)
        call.expand = max(call.option("num_beams", 1), call.option("num_return_sequences", 1))
        call = prepared(call, self.method.name, self.intervention)
        self.calls += 1
        self.passes.begin_call(call.rows, int(ids.shape[1]))
        return call

    def end_call(self) -> None:
        self.passes.end_call()


def prepared(call: Call, name: str, intervention: Intervention) -> Call:
    """The call with what the intervention adds to it. Raises for modes that no method can serve."""
    if call.option("prefill_chunk_size") is not None:
        raise ValueError(
            f"{name} cannot act with prefill_chunk_size: transformers then drops the image from the prefill. "
            "Leave prefill_chunk_size unset."
        )
    if call.option("cache_implementation") == "paged":
        raise ValueError(f"{name} cannot act in continuous batching: use another cache_implementation.")
    if call.arguments.get("assistant_model") is not None:
        raise ValueError(
            f"{name} cannot act in assisted decoding: the assistant's guesses are not made under it, and a model that "
            "assists itself is seen twice. Leave assistant_model out."
        )
    if intervention.decodes:
        _stay_eager(call)
    intervention.start_call(call)
    extra = intervention.processors(call)
    if extra:
        given = call.arguments.get("logits_processor") or []
        call.arguments["logits_processor"] = LogitsProcessorList([*given, *extra])
    return call


def _stay_eager(call: Call) -> None:
    """generate compiles decode steps by itself on some devices and caches: not while a method acts in them."""
    config = call.arguments.get("generation_config")
    if config is None:
        call.arguments["disable_compile"] = True
    else:
        eager = {**config.to_dict(), "disable_compile": True}
        call.arguments["generation_config"] = type(config).from_dict(eager)


def forget_graphs(given: nn.Module, model: nn.Module, *, decodes: bool, stack: ExitStack) -> None:
    """Drop compiled graphs, which ignore hooks that were added after they were traced.

    Of the model as the caller holds it (`given`) and as transformers calls it (`model`). decodes: decode steps matter
    too, which generate compiles by itself. Resetting is process-wide in torch.
    """
    if any(_is_compiled(module) for module in every_module(given)):
        torch.compiler.reset()
        stack.callback(torch.compiler.reset)  # graphs traced with the hooks must not outlive them
    elif decodes and "_compiled_call" in model.__dict__:
        del model._compiled_call  # None would crash get_compiled_call, which only tests hasattr
        torch.compiler.reset()


def _is_compiled(module: nn.Module) -> bool:
    """Whether the module runs a graph that may have been traced before."""
    if getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in module._modules:
        return True
    forward = module.__dict__.get("forward")  # forward = torch.compile(forward)
    return hasattr(forward, "_torchdynamo_orig_callable")


def _check_calibration(method: Method, model: nn.Module) -> None:
    """A method whose fields were found for one model says little of another."""
    if method.calibrated_on is None:
        return
    if model not in _FINGERPRINTS:
        from airvlm.models.loading import fingerprint  # hashes the weights: only where somebody asks

        _FINGERPRINTS[model] = fingerprint(model)
    if _FINGERPRINTS[model] != method.calibrated_on:
        warnings.warn(
            f"{method.name} was calibrated on a model with the fingerprint {method.calibrated_on}, and this one has "
            f"{_FINGERPRINTS[model]}: calibrate it again",
            UserWarning,
            stacklevel=4,
        )
