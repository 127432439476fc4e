"""AIR as printed, and its lineage: FFN(H | Z~) = FFN(H) + phi(H Z~') Z~ in a span of layers.

On the prototypes' rows in prefill, or on all rows of every pass, in every layer of the span or only in the one after
the first that is unsure. The term itself is airvlm/methods/air/reinforcement.py, the memory Z~ is evidence.py's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from airvlm.hooks.intervention import Step
from airvlm.hooks.logit_lens import EntropyLens, Trigger
from airvlm.hooks.run import Run
from airvlm.methods.air.reinforcement import identity, reinforce
from airvlm.methods.air.seeing import Seeing
from airvlm.methods.air.sight import Seen

if TYPE_CHECKING:
    from airvlm.methods.air.config import AIR

__all__ = ["ACTIVATIONS", "Reinforcing", "activation", "window"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": identity,
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
}


class Reinforcing(Seeing):
    """Adds the term to feed-forward outputs."""

    def __init__(self, run: Run, air: AIR) -> None:
        super().__init__(run, air)
        first, stop = window(air.layers, len(run.anatomy.layers))
        if air.positions == "visual" and first == len(run.anatomy.layers) - 1:
            raise ValueError(
                f"layers = {air.layers}: nothing reads the visual rows after the last layer, so that adding to them "
                "changes no answer. Begin the span earlier, or set positions='all'."
            )
        self.decodes = air.positions == "all"
        self.lens: EntropyLens | None = None
        self._fires: Tensor | None = None  # (B, L) positions that fired at the layer just watched
        self.phi = activation(air.phi, run.anatomy.model)
        if air.trigger == "entropy":
            first = max(first, 1)  # the layer before decides
            self.lens = EntropyLens(run.anatomy, Trigger(air.threshold))
            self.watched = range(first - 1, stop - 1)
        self.layers = range(first, stop)
        self._memory: tuple[Tensor, Tensor | None] | None = None  # (B, S, d) and its mask
        self._rows: tuple[Tensor, Tensor] | None = None  # (B, R) positions of the prototypes and their mask
        if air.off:
            self.layers = self.watched = ()

    def embeds(self, step: Step, inputs_embeds: Tensor) -> None:
        if not self.air.off and (step.visual is not None or step.fresh):
            self._take_in(step, inputs_embeds)
        elif not step.decode:
            self._rows = None  # more text on top of a cache: the memory stays, the visual rows are not here
        self.seen = self.seen or [[] for _ in range(step.rows)]
        self._fires = None
        if self.lens is not None and self._memory is not None:
            memory, mask = self._memory
            some = memory.new_ones(len(memory), dtype=torch.bool) if mask is None else mask.any(-1)
            self.lens.begin(step, some)

    def _take_in(self, step: Step, inputs_embeds: Tensor) -> None:
        self._memory = self._rows = None
        if self.look(step, inputs_embeds):
            started = time.perf_counter()
            self._memory = _padded([[s.evidence.memory for s in row] for row in self.seen], step.expand)
            if self.air.positions == "visual":
                self._rows = _prototype_rows(self.seen, step.expand)
            self.injection += time.perf_counter() - started

    def hidden(self, step: Step, layer: int, h: Tensor) -> None:
        if (
            self.lens is None
            or self._memory is None
            or (self.air.positions == "visual" and self._rows is None)
        ):
            return
        started = time.perf_counter()
        self._fires = self.lens.look(step, h)
        assert self.lens.highest is not None
        highest = self.lens.highest.view(step.rows, -1).amax(1)  # a row's beams together
        if self.highest is not None and self.highest.shape == highest.shape:
            highest = torch.maximum(self.highest.to(highest.device), highest)
        self.highest = highest
        self.injection += time.perf_counter() - started

    def ffn(self, step: Step, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        if self._memory is None or (self.air.positions == "visual" and (step.decode or self._rows is None)):
            return None
        if self.lens is not None and self._fires is None:
            return None
        started = time.perf_counter()
        rows = None
        acts = None if self._fires is None else self._fires.to(y.device)  # (B, L)
        if self.air.positions == "visual" and self._rows is not None:
            rows, real = (t.to(y.device) for t in self._rows)  # (B, R)
            acts = real if acts is None else real & acts.gather(1, rows)
        memory, mask = self._memory
        if memory.device != y.device:  # a sharded model: the evidence follows its layers
            self._memory = memory, mask = memory.to(y.device), None if mask is None else mask.to(y.device)
        out = reinforce(
            y,
            x,
            memory,
            phi=self.phi,
            strength=self.air.strength,
            memory_mask=mask,
            rows=rows,
            rows_mask=acts,
        )
        self.tally.add(layer, out.ratio, step.rows)
        self.injection += time.perf_counter() - started
        return out.out


def window(layers: tuple[int, int] | None, count: int) -> tuple[int, int]:
    """The span of layers in a decoder of `count`; None is its last fifth, as 26 to 32 is of 32, but two at least."""
    if layers is None:
        return max(0, count - max(2, round(count / 5))), count
    first, stop = layers
    if stop > count:
        raise ValueError(f"layers = {layers}, but the decoder has {count}: the span may end at {count}")
    return first, stop


def activation(phi: str, model: nn.Module) -> Callable[[Tensor], Tensor]:
    if phi != "decoder":
        return ACTIVATIONS[phi]
    config: Any = model.config
    text = config.get_text_config()
    name = getattr(text, "hidden_act", None) or getattr(text, "hidden_activation", None) or "silu"
    found: Callable[[Tensor], Tensor] = ACT2FN[name]
    return found


def _padded(rows: list[list[Tensor | None]], expand: int) -> tuple[Tensor, Tensor | None] | None:
    """Every row's memory (S, d), its pictures one after another, in one tensor (B, S, d) with a mask."""
    parts = [[m for m in row if m is not None] for row in rows]
    example = next(m for row in parts for m in row)
    empty = example.new_zeros(0, example.shape[-1])
    joined = [torch.cat(row) if row else empty for row in parts]
    lengths = [len(m) for m in joined]
    if not max(lengths):
        return None
    memory = nn.utils.rnn.pad_sequence(joined, batch_first=True).repeat_interleave(expand, 0)
    if min(lengths) == max(lengths):
        return memory, None
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return memory, mask.to(memory.device).repeat_interleave(expand, 0)


def _prototype_rows(seen: list[list[Seen]], expand: int) -> tuple[Tensor, Tensor]:
    """Positions (B, R) of every row's prototypes whose picture has a memory, and which of them are real."""
    rows = [[s.positions[s.evidence.prototypes] for s in row if len(_memory_of(s))] for row in seen]
    example = next(s.positions for row in seen for s in row)
    joined = [torch.cat(row) if row else example[:0] for row in rows]
    positions = nn.utils.rnn.pad_sequence(joined, batch_first=True)
    lengths = torch.tensor([len(row) for row in joined])
    mask = torch.arange(positions.shape[1]) < lengths[:, None]
    return positions.repeat_interleave(expand, 0), mask.to(positions.device).repeat_interleave(expand, 0)


def _memory_of(seen: Seen) -> Tensor:
    assert seen.evidence.memory is not None
    return seen.evidence.memory
