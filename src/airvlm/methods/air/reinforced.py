"""AIR as printed, and its lineage: FFN(H | Z~) = FFN(H) + phi(H Z~') Z~ in a span of layers.

At the prototypes' token positions in prefill, or at all positions of every pass, in every layer of the span or only in
the one after the first that is unsure. Strength is a ratio: the norm of the added term over the norm of the
feed-forward output, per token; it needs no weights to be read and means the same in every model. The memory Z~ is
evidence.py's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from airvlm.hooks.intervention import Call, Context, Step, blocks, norm
from airvlm.hooks.logit_lens import EntropyLens, Trigger, highest_of
from airvlm.hooks.templates import layer_span
from airvlm.methods.air.evidence import ShownEvidence, WithEvidence

if TYPE_CHECKING:
    from airvlm.methods.air.config import AIR

__all__ = ["ACTIVATIONS", "Reinforced", "activation", "default_span", "literal_term", "reinforce", "term"]

Activation = Callable[[Tensor], Tensor]


def identity(scores: Tensor) -> Tensor:
    return scores


ACTIVATIONS: dict[str, Activation] = {
    "identity": identity,
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
}


class Reinforced(WithEvidence):
    """Adds the term to feed-forward outputs."""

    def __init__(self, method: AIR, context: Context) -> None:
        super().__init__(method, context)
        depth = len(context.anatomy.layers)
        span = default_span(depth) if method.layers is None else layer_span(method.layers, depth)
        self.visual_only = method.positions == "visual"
        if self.visual_only and span.start == depth - 1:
            raise ValueError(
                f"layers = {method.layers}: nothing reads the visual tokens after the last layer, so that adding to "
                "them changes no answer. Begin the span earlier, or set positions='all'."
            )
        self.decodes = not self.visual_only
        self.phi = activation(method.phi, context.anatomy.model)
        self.lens: EntropyLens | None = None
        if method.trigger == "entropy":
            span = range(max(span.start, 1), span.stop)  # the layer before decides
            self.lens = EntropyLens(context.anatomy, Trigger(method.threshold))
            self.watched = range(span.start - 1, span.stop - 1)
        self.layers = span
        self._fires: Tensor | None = None  # (B, L) positions that fired at the layer just read
        self._memory: tuple[Tensor, Tensor | None] | None = None  # (B, S, d) and its mask
        self._prototypes: tuple[Tensor, Tensor] | None = (
            None  # (B, R) their token positions, and which are real
        )

    def on_call(self, call: Call) -> None:
        super().on_call(call)
        if self.lens is not None:
            self.lens.start_call()

    def embeds(self, step: Step, inputs_embeds: Tensor) -> None:
        if step.visual is not None or step.fresh:
            self._remember(step, inputs_embeds)
        elif not step.decode:
            self._prototypes = (
                None  # more text on top of a cache: the memory stays, the visual tokens are not here
            )
        self.matched = self.matched or [[] for _ in range(step.rows)]
        self._fires = None
        if self.lens is not None and self._memory is not None:
            memory, mask = self._memory
            some = memory.new_ones(len(memory), dtype=torch.bool) if mask is None else mask.any(-1)
            self.lens.start_pass(step, some)

    def _remember(self, step: Step, inputs_embeds: Tensor) -> None:
        self._memory = self._prototypes = None
        if self.match(step, inputs_embeds):
            started = time.perf_counter()
            self._memory = _padded([[m.evidence.memory for m in row] for row in self.matched], step.expand)
            if self.visual_only:
                self._prototypes = _prototype_positions(self.matched, step.expand)
            self.seconds["injection"] += time.perf_counter() - started

    @property
    def _idle(self) -> bool:
        return self._memory is None or (self.visual_only and self._prototypes is None)

    def hidden(self, step: Step, layer: int, h: Tensor) -> None:
        if self.lens is None or self._idle:
            return
        started = time.perf_counter()
        self._fires = self.lens.read(step, h)
        self.seconds["injection"] += time.perf_counter() - started

    def ffn(self, step: Step, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        if (
            self._idle
            or (self.visual_only and step.decode)
            or (self.lens is not None and self._fires is None)
        ):
            return None
        started = time.perf_counter()
        positions = None
        acts = None if self._fires is None else self._fires.to(y.device)  # (B, L)
        if self.visual_only and self._prototypes is not None:
            positions, real = (t.to(y.device) for t in self._prototypes)  # (B, R)
            acts = real if acts is None else real & acts.gather(1, positions)
        assert self._memory is not None
        memory, mask = self._memory
        if memory.device != y.device:  # a sharded model: the evidence follows its layers
            self._memory = memory, mask = memory.to(y.device), None if mask is None else mask.to(y.device)
        added = reinforce(
            y,
            x,
            memory,
            phi=self.phi,
            strength=self.method.strength,
            memory_mask=mask,
            positions=positions,
            positions_mask=acts,
        )
        self.changes.add(layer, added.ratio, step.rows)
        self.seconds["injection"] += time.perf_counter() - started
        return added.out

    def reason(self, row: int | None) -> str:
        if self.lens is not None and self.lens.highest is not None and any(self._of(row)):
            highest = highest_of(self.measured, row)
            return f"no layer's entropy passed {self.method.threshold:g}; the highest was {highest:.3g}"
        return super().reason(row)

    def measures(self) -> dict[str, Tensor]:
        return {} if self.lens is None else self.lens.measures()


def default_span(depth: int) -> range:
    """The last fifth of a decoder, as 26 to 32 is of 32, but two layers at least."""
    return range(max(0, depth - max(2, round(depth / 5))), depth)


def activation(phi: str, model: nn.Module) -> Activation:
    if phi != "decoder":
        return ACTIVATIONS[phi]
    config: Any = model.config
    text = config.get_text_config()
    name = getattr(text, "hidden_act", None) or getattr(text, "hidden_activation", None) or "silu"
    found: Activation = ACT2FN[name]
    return found


def _padded(memories: list[list[Tensor | None]], expand: int) -> tuple[Tensor, Tensor | None] | None:
    """Every row's memory (S, d), its images one after another, in one tensor (B, S, d) with a mask."""
    parts = [[m for m in row if m is not None] for row in memories]
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


def _prototype_positions(matched: list[list[ShownEvidence]], expand: int) -> tuple[Tensor, Tensor]:
    """Token positions (B, R) of every row's prototypes whose image has a memory, and which of them are real."""
    rows = [[s.positions[s.evidence.prototypes] for s in row if len(_memory_of(s))] for row in matched]
    example = next(s.positions for row in matched for s in row)
    joined = [torch.cat(row) if row else example[:0] for row in rows]
    positions = nn.utils.rnn.pad_sequence(joined, batch_first=True)
    lengths = torch.tensor([len(row) for row in joined])
    mask = torch.arange(positions.shape[1]) < lengths[:, None]
    return positions.repeat_interleave(expand, 0), mask.to(positions.device).repeat_interleave(expand, 0)


def _memory_of(matched: ShownEvidence) -> Tensor:
    assert matched.evidence.memory is not None
    return matched.evidence.memory


# -- the term


@dataclass(frozen=True)
class Added:
    """A feed-forward output with the term added."""

    out: Tensor  # (B, T, d), the dtype of the feed-forward output
    ratio: Tensor  # (B, R) float32, ||added|| / ||feed-forward||, of the positions that were asked for


def term(x: Tensor, memory: Tensor, phi: Activation = identity, memory_mask: Tensor | None = None) -> Tensor:
    """phi(x Z~') Z~ up to one positive factor per token: x (B, R, d), memory (S, d) or (B, S, d) -> (B, R, d).

    The factor keeps half precision from overflowing and is free: whatever matches magnitudes divides it out again.
    Use `literal_term` for the bare sum. An empty memory, or one wholly masked, gives zeros.
    """
    scores = _scores(x, memory, phi, memory_mask)  # (B, R, S) float32
    if scores.shape[-1] == 0:
        return torch.zeros_like(x)
    largest = scores.abs().amax(-1, keepdim=True)
    scores = scores / torch.where(largest > 0, largest, 1.0)
    return scores.to(memory.dtype) @ memory


def literal_term(
    x: Tensor, memory: Tensor, phi: Activation = identity, memory_mask: Tensor | None = None
) -> Tensor:
    """phi(x Z~') Z~ as printed, in float32 whatever the model's dtype (the sum overflows half precision)."""
    return _scores(x, memory, phi, memory_mask) @ memory.float()


def _scores(x: Tensor, memory: Tensor, phi: Activation, memory_mask: Tensor | None) -> Tensor:
    """phi(x Z~'), (B, R, S) float32, zero where the memory is masked."""
    x = x.to(memory.dtype)
    if x.dtype == torch.float16:
        # A dot product over thousands of dimensions can pass 65504; of unit vectors it cannot.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        length = torch.where(length > 0, length, 1.0)
        scores = ((x / length.to(x.dtype)) @ memory.mT).float() * length
    else:
        scores = (x @ memory.mT).float()
    scores = phi(scores)
    if memory_mask is not None:
        # phi(0) need not be 0, so the mask comes after phi.
        scores = scores.masked_fill(~memory_mask.unsqueeze(-2), 0.0)
    return scores


def reinforce(
    ffn_out: Tensor,
    x: Tensor,
    memory: Tensor,
    *,
    phi: Activation = identity,
    strength: float | None,
    memory_mask: Tensor | None = None,
    positions: Tensor | None = None,
    positions_mask: Tensor | None = None,
    gate: Tensor | None = None,
) -> Added:
    """Add the term to the feed-forward output ffn_out (B, T, d), whose input was x (B, T, d).

    strength     ratio of norms per token; 0 returns `ffn_out` itself; None adds the literal, unscaled sum
    memory       Z~, (S, d) shared or (B, S, d); memory_mask (S,) or (B, S), True where a token exists
    positions    (B, R) token positions to change, all when None; positions_mask (B, R) False where one is only padding
    gate         (B,) bool, False for batch rows to leave alone (an entropy trigger that did not fire)
    """
    B, T, d = ffn_out.shape
    if strength == 0:
        R = T if positions is None else positions.shape[-1]
        return Added(ffn_out, torch.zeros(B, R, device=ffn_out.device))
    if positions is None and len(blocks(T)) > 1:
        out, ratio = torch.empty_like(ffn_out), ffn_out.new_empty(B, T, dtype=torch.float32)
        for at in blocks(T):
            part = reinforce(
                ffn_out[:, at],
                x[:, at],
                memory,
                phi=phi,
                strength=strength,
                memory_mask=memory_mask,
                positions_mask=None if positions_mask is None else positions_mask[:, at],
                gate=gate,
            )
            out[:, at], ratio[:, at] = part.out, part.ratio
        return Added(out, ratio)
    if positions is None:
        base = ffn_out
    else:
        index = positions.unsqueeze(-1).expand(-1, -1, d)  # (B, R, d)
        base, x = ffn_out.gather(1, index), x.gather(1, index)

    size = norm(base)  # (B, R, 1)
    if strength is None:
        added = literal_term(x, memory, phi, memory_mask)
    else:
        added = term(x, memory, phi, memory_mask)
        length = norm(added)
        added = added * torch.where(length > 0, strength * size / length.clamp_min(1e-30), 0.0)
    acts = (
        torch.ones(base.shape[:2], dtype=torch.bool, device=base.device)
        if positions_mask is None
        else positions_mask
    )
    if gate is not None:
        acts = acts & gate.unsqueeze(-1)
    added = added.masked_fill(~acts.unsqueeze(-1), 0.0)  # (B, R, d) float32
    ratio = norm(added) / size.clamp_min(1e-30)

    added = added.to(ffn_out.dtype)
    # scatter_add, not scatter: padding entries of `positions` may repeat a real position, and add nothing to it.
    out = ffn_out + added if positions is None else ffn_out.scatter_add(1, index, added)
    return Added(out, ratio.squeeze(-1))
