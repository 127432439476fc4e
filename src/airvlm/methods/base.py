"""Method: a configuration that is also a context manager, and the only file that touches nn.Module hooks.

`with METHOD(model, processor, images=images) as run:` hooks the model, follows its forward passes and hands
each of them to the method's Intervention; leaving the block removes every trace. This file knows how passes,
beams, caches and compiled graphs behave, and nothing of what a method computes.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from airvlm.anatomy import Anatomy
from airvlm.methods.generation import prepared, shadow_generate, token_ids
from airvlm.methods.graphs import forget_graphs
from airvlm.methods.intervention import Call, Intervention, Step, aside, is_aside
from airvlm.report import Report

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Call", "DidNotAct", "Intervention", "Method", "NeverFired", "Run", "Step", "aside"]


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
        self.steps = 0  # forward passes seen by the top-level hook
        self._since = 0  # of these, since the latest generate call began
        self.image_steps = 0  # of these, passes with image rows
        self.decoded = 0  # passes in which the decoder's own hook ran
        self._spoken = 0  # passes in which the hook on the model's output ran
        self._layers_seen: Counter[int] = Counter()  # passes in which a feed-forward's hook ran
        self._batch: tuple[int, int] | None = None  # rows and prompt length of the generate call under way
        self._step: Step | None = None
        self._stack: ExitStack | None = None
        self._report: Report | None = None
        self.intervention = method.begin(self)

    # -- the block

    def __enter__(self) -> Self:
        if self._stack is not None:
            raise RuntimeError("this run is already open; call the method again for another block")
        with ExitStack() as stack:  # closes what was opened so far when opening fails half-way
            forget_graphs(self._given, self.model, decodes=self.intervention.decodes, stack=stack)
            self.intervention.open(stack)
            shadow_generate(self.model, self._begin_call, self._end_call, stack)
            self._hook(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack, self._step = self._stack, None, None
        assert stack is not None, "a run is closed once"
        stack.close()
        if kind is not None or not (self.calls or self.steps):
            return  # the caller's own error comes first; a block without any pass asked for nothing
        report = self.report
        if not report.fired and not report.silent:
            warnings.warn(f"{self.method.name} did not act: {report.reason}", DidNotAct, stacklevel=2)

    @property
    def report(self) -> Report:
        """What the method did in the latest call. Raises NeverFired where it could not act."""
        if self._report is not None:
            return self._report
        self._prove_it_ran()
        report = self.intervention.report()
        if self._stack is None:  # nothing more can happen
            self._report = report
        return report

    def row(self, i: int) -> Report:
        """The report of one row of the caller's batch."""
        return self.report.rows[i]

    def _prove_it_ran(self) -> None:
        problem = None
        if not self.steps:
            problem = (
                "no forward pass reached the hooks. Call the model (or its generate) inside the `with` block; "
                "a function compiled around the model before the block opened must be compiled again"
            )
        elif self.method.needs_images and not self.image_steps:
            problem = (
                f"no input token is the image token {self.anatomy.image_token_id}. Pass input_ids that the "
                "model's processor made with a picture (a cache from an earlier turn hides its picture)"
            )
        elif self.method.needs_images and not self.decoded:
            problem = (
                f"{type(self.anatomy.decoder).__name__} ran without its hooks. Is it compiled or wrapped? Undo "
                "that, or pass an Anatomy(...) that names the module really called"
            )
        elif any(self._layers_seen[i] < self.decoded for i in self.intervention.layers):
            problem = (
                "feed-forwards ran without their hooks in some passes. Is a layer compiled or wrapped? Undo that, "
                "or pass an Anatomy(...) that names the modules really called"
            )
        elif self.intervention.speaks and self._spoken < self.steps:
            problem = "the model's output was not hooked in some passes. Is the model compiled or wrapped? Undo that"
        if problem is not None:
            raise NeverFired(f"{self.method.name} could not act: {problem}.")

    # -- opening

    def _begin_call(self, arguments: dict[str, Any]) -> Call:
        ids = token_ids(arguments.get("input_ids", arguments.get("inputs")), self.method.name)
        call = Call(arguments, self.model, rows=int(ids.shape[0]), expand=1)
        call.expand = max(call.option("num_beams", 1), call.option("num_return_sequences", 1))
        call = prepared(call, self.method.name, self.intervention)
        self.calls += 1
        self._since = 0
        self._batch = (call.rows, int(ids.shape[1]))
        return call

    def _end_call(self) -> None:
        self._batch = None

    def _hook(self, stack: ExitStack) -> None:
        """Three kinds of hooks: token ids at the top, embeddings at the decoder, the layers' feed-forwards."""

        def top(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ids = kwargs.get("input_ids", args[0] if args else None)
            if not self._skip(_length(ids)):
                self._begin_step(ids, kwargs)

        def decoder(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            embeds = kwargs.get("inputs_embeds")
            if embeds is None or self._skip(embeds.shape[1]):
                return None
            new = self._embeds(embeds)
            return None if new is None else (args, {**kwargs, "inputs_embeds": new})

        stack.callback(self.model.register_forward_pre_hook(top, with_kwargs=True).remove)
        stack.callback(self.anatomy.decoder.register_forward_pre_hook(decoder, with_kwargs=True).remove)
        if self.intervention.speaks:
            self._say(stack)
        for i in self.intervention.watched:
            self._watch(i, stack)
        for i in self.intervention.layers:
            self._reinforce(i, stack)

    def _skip(self, length: int) -> bool:
        """Nothing to do: another stream, or a decode step being compiled that the method leaves alone."""
        if torch.compiler.is_compiling():
            return not self.intervention.decodes and length == 1
        return is_aside()

    def _watch(self, i: int, stack: ExitStack) -> None:
        # A layer's output is read where the next layer takes it: it was a tuple in some versions, a tensor in others.
        def pre(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            h = args[0] if args else kwargs["hidden_states"]
            if not self._skip(h.shape[-2]):
                self._hidden(i, h)

        stack.callback(self.anatomy.layers[i + 1].register_forward_pre_hook(pre, with_kwargs=True).remove)

    def _reinforce(self, i: int, stack: ExitStack) -> None:
        def post(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
            x = args[0] if args else kwargs["hidden_states"]
            if self._skip(x.shape[-2]):
                return None
            y = out[0] if isinstance(out, tuple) else out  # a mixture of experts may add its router's logits
            new = self._ffn(i, x, y)
            if new is None:
                return None
            return (new, *out[1:]) if isinstance(out, tuple) else new

        stack.callback(self.anatomy.ffns[i].register_forward_hook(post, with_kwargs=True).remove)

    def _say(self, stack: ExitStack) -> None:
        def post(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            if not self._skip(_length(kwargs.get("input_ids", args[0] if args else None))):
                self._logits(out)

        stack.callback(self.model.register_forward_hook(post, with_kwargs=True).remove)

    # -- the passes; a graph that is being compiled breaks here rather than bake our state into itself

    @torch.compiler.disable
    def _begin_step(self, ids: Any, kwargs: dict[str, Any]) -> None:
        ids = token_ids(ids, self.method.name)
        B, L = ids.shape
        decode = L == 1 and self._since > 0
        visual = None if decode else ids == self.anatomy.image_token_id  # (B, L)
        if visual is not None and not bool(visual.any()):  # a sync, in prefill only
            visual = None
        past = kwargs.get("past_key_values")
        fresh = not decode and (past is None or not bool(past.get_seq_length() > 0))
        rows, prompt = self._batch or (B, L)
        mask = kwargs.get("attention_mask")
        self._step = Step(
            visual=visual,
            attention_mask=mask if isinstance(mask, Tensor) and mask.dim() == 2 else None,
            length=L,
            rows=rows if B % rows == 0 else B,
            expand=B // rows if B % rows == 0 else 1,
            fresh=fresh,
            decode=decode,
            start=min(prompt, L) - 1 if fresh else 0,
            inputs=kwargs,
        )
        self.steps += 1
        self._since += 1
        self.image_steps += visual is not None
        self.intervention.begin(self._step)

    @torch.compiler.disable
    def _embeds(self, embeds: Tensor) -> Tensor | None:
        step = self._step
        if step is None or embeds.shape[1] != step.length:
            return None  # the decoder was called on its own, outside the model
        self.decoded += 1
        return self.intervention.embeds(step, embeds)

    @torch.compiler.disable
    def _hidden(self, i: int, h: Tensor) -> None:
        if self._step is not None:
            self.intervention.hidden(self._step, i, h)

    @torch.compiler.disable
    def _logits(self, out: Any) -> None:
        if self._step is None:
            return
        if getattr(out, "logits", None) is None:
            raise ValueError(f"{self.method.name} changes the model's logits: call it with return_dict=True.")
        self._spoken += 1
        new = self.intervention.logits(self._step, out.logits)
        if new is not None:
            out.logits = new

    @torch.compiler.disable
    def _ffn(self, i: int, x: Tensor, y: Tensor) -> Tensor | None:
        step = self._step
        if step is None:
            return None
        self._layers_seen[i] += 1
        shape = y.shape
        if y.dim() == 2:  # a mixture of experts that sees its tokens in one row: (B * L, d)
            x, y = (t.view(-1, step.length, t.shape[-1]) for t in (x, y))
        new = self.intervention.ffn(step, i, x, y)
        return None if new is None else new.view(shape)


@dataclass(frozen=True)
class Method:
    """Base of every method: a frozen dataclass whose fields are its configuration."""

    name: ClassVar[str] = ""  # as the registry and the command line spell it
    publication: ClassVar[str] = ""  # where it was published
    mechanism: ClassVar[str] = ""  # what it does, in one line
    forwards: ClassVar[str] = ""  # what it costs, in forward passes
    needs_images: ClassVar[bool] = True  # cannot act on a prompt without a picture
    needs_pixels: ClassVar[bool] = False  # reads pixels: features encoded beforehand will not do
    kinds: ClassVar[dict[str, type[Method]]] = {}  # every subclass by its name, for from_json

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("name"):
            Method.kinds[cls.name] = cls

    def __call__(
        self,
        model: nn.Module,
        processor: Any = None,
        *,
        images: Any = None,
        anatomy: Anatomy | None = None,
    ) -> Run:
        """This method on `model`, active inside a `with` block.

        images: the pictures of each row, in the batch's order: one picture, a list of them, or None a row.
        anatomy: the model's parts, for models that `Anatomy.of` does not know.
        """
        return Run(self, model, processor, images, anatomy)

    def begin(self, run: Run) -> Intervention:
        """What acts during one run; a subclass returns its own Intervention."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Plain values that `Method.from_json` turns back into an equal method."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"name": self.name, **{k: _plain(v) for k, v in values.items()}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Method:
        """The method that `to_json` wrote."""
        name, values = data["name"], {k: v for k, v in data.items() if k != "name"}
        if name not in Method.kinds:
            raise ValueError(f"unknown method {name!r}; known: {', '.join(sorted(Method.kinds))}")
        return Method.kinds[name](**{k: _rich(v) for k, v in values.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Method):
        return value.to_json()
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _rich(value: Any) -> Any:
    if isinstance(value, Mapping) and "name" in value:
        return Method.from_json(value)
    return tuple(_rich(v) for v in value) if isinstance(value, list | tuple) else value


def _length(ids: Any) -> int:
    return int(ids.shape[-1]) if isinstance(ids, Tensor) else 0
