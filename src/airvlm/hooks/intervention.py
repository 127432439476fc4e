"""Intervention: what a method does during a run, and the passes and calls it is shown.

A method's file subclasses Intervention; passes.py calls it from the model's hooks. Nothing here touches a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from airvlm.report import Report

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from airvlm.hooks.run import Run

__all__ = ["Call", "Intervention", "Step", "aside", "is_aside"]

# Passes made inside `aside()` belong to no run: a method's own second stream must not trigger other methods.
_ASIDE: ContextVar[bool] = ContextVar("airvlm_aside", default=False)


@contextmanager
def aside() -> Iterator[None]:
    """Forward passes and generate calls inside this block are seen by no method (VCD's second stream)."""
    token = _ASIDE.set(True)
    try:
        yield
    finally:
        _ASIDE.reset(token)


def is_aside() -> bool:
    return _ASIDE.get()


@dataclass
class Call:
    """One call of `generate`, before it runs: an intervention may change `arguments`."""

    arguments: dict[str, Any]  # every argument by name, `logits_processor` included
    model: nn.Module  # the model whose generate was called
    rows: int  # rows the caller gave, before beams
    expand: int  # copies of each row: max(num_beams, num_return_sequences)

    def option(self, name: str, default: Any = None) -> Any:
        """A generation option as `generate` resolves it: argument, then the given config, then the model's."""
        if self.arguments.get(name) is not None:
            return self.arguments[name]
        configs = (self.arguments.get("generation_config"), getattr(self.model, "generation_config", None))
        for config in configs:
            if getattr(config, name, None) is not None:
                return getattr(config, name)
        return default


@dataclass
class Step:
    """One forward pass of the decoder: B rows (beams expanded) of L tokens."""

    visual: Tensor | None  # (B, L) True at image tokens; None when no row of this pass holds any
    attention_mask: Tensor | None  # (B, T) 1 at real tokens, cached ones too; None when nothing is padded
    length: int  # L
    rows: int  # rows of the caller's batch; B = rows * expand
    expand: int  # copies of each row, side by side; row r shows the pictures of row r // expand
    fresh: bool  # nothing is cached: the sequence starts here
    decode: bool  # one new token on top of a cache
    start: int  # first position that decides for itself; those before it follow its decision (lens.py)
    inputs: Mapping[str, Any]  # keyword arguments of the top-level forward


class Intervention:
    """What a method does while it is active. Subclasses override what they need; None means "leave it"."""

    layers: Sequence[int] = ()  # decoder layers whose feed-forward output it may change
    watched: Sequence[int] = ()  # decoder layers whose output it reads
    speaks: bool = False  # changes the model's logits
    decodes: bool = False  # acts on decode steps too, so that no compiled graph may skip it

    def __init__(self, run: Run) -> None:
        self.run = run

    def open(self, stack: ExitStack) -> None:
        """Enter what else must be undone (an attention implementation, say) on `stack`."""

    def call(self, call: Call) -> None:
        """A `generate` call is about to run."""

    def processors(self, call: Call) -> list[LogitsProcessor]:
        """Logits processors to append to this call's."""
        return []

    def begin(self, step: Step) -> None:
        """A pass starts; its token ids are known, its embeddings are not."""

    def embeds(self, step: Step, inputs_embeds: Tensor) -> Tensor | None:
        """The decoder's input (B, L, d), or its replacement."""
        return None

    def hidden(self, step: Step, layer: int, h: Tensor) -> None:
        """The output (B, L, d) of a watched layer."""

    def ffn(self, step: Step, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        """The feed-forward's input x and output y (B, L, d), or the replacement of y."""
        return None

    def logits(self, step: Step, logits: Tensor) -> Tensor | None:
        """The model's logits (B, L or fewer, V), or their replacement."""
        return None

    def report(self) -> Report:
        """What happened in the latest call (reads tensors from the device)."""
        raise NotImplementedError
