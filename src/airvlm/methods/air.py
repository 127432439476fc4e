"""AIR as printed (adaptive visual reinforcement, ICLR 2026), and AIRMemory, our reading of its figures.

AIR adds a term to feed-forward outputs, FFN(H | Z~) = FFN(H) + phi(H' Z~^T) Z~, where Z~ are the tokens of the crops
that are close to the image's prototypes: at the prototypes' positions, in prefill, in the last fifth of the layers.
AIRMemory adds the same term with a memory of prototypes and crops at all positions, in the layer after the first one
that is unsure of the next token, as MemVR does, on whose code the paper's figures were made.

Strength is a ratio: the norm of the added term over the norm of the feed-forward output, per token. It needs no
weights to be read and means the same in every model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from airvlm.methods.base import option
from airvlm.methods.evidence.base import NO_CONTROL, CropControl, CropIntervention, CropMethod, ShownEvidence
from airvlm.methods.evidence.matching import EvidenceSpec
from airvlm.methods.templates import layer_span
from airvlm.methods.templates.memory_term import Activation, identity, literal_term, term
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, norm, token_chunks
from airvlm.runtime.lens import EntropyLens, Trigger, highest_entropy

__all__ = ["ACTIVATIONS", "AIR", "AIRMemory", "reinforce"]

PAPER = "Look Carefully: adaptive visual reinforcement (ICLR 2026, arXiv 2602.24041)"
TAU = 0.06  # the paper's threshold of the transport distance


ACTIVATIONS: dict[str, Activation] = {"identity": identity, "silu": F.silu, "gelu": F.gelu, "relu": F.relu}


@dataclass(frozen=True)
class _FeedForwardEvidence(CropMethod):
    """What AIR and AIRMemory share."""

    site: ClassVar[str] = "feed-forward"
    cost: ClassVar[str] = "1 pass, and one encoding of the crops per image"

    num_prototypes: int | None = option(
        100, "Q, the prototypes: visual tokens farthest from their mean; none is all", low=0, search=(10, 200)
    )
    eps: float = option(0.1, "entropic regularizer of the transport; small is sharp", above=0, search=(0.01, 0.3))
    tau: float = option(TAU, "keep crops whose distance is at most tau", low=0)
    keep: int | None = option(None, "keep this many nearest crops instead", low=0, search=(1, 12))
    quantile: float | None = option(None, "keep crops up to this quantile of their distances instead", low=0, high=1)
    distance: Literal["ot", "cosine"] = option("ot", "of a crop: <T, C>, or the mean of C")
    strength: float | None = option(
        0.12,
        "norm of the added term over the feed-forward's, per token; none adds the bare sum; 0 is off",
        low=0,
        off=0,
        search=(0.05, 1.0),
    )
    layers: tuple[int, int] | None = option(
        None,
        "decoder layers that are changed: the first and the one after the last, as (26, 32); none is the last fifth",
        span=True,
        search=(0.0, 0.8),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [n for n in ("keep", "quantile") if getattr(self, n) is not None]
        if self.tau != TAU:
            given.append("tau")
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both set: give one of tau, keep and quantile")

    def evidence_spec(self) -> EvidenceSpec:
        return EvidenceSpec(
            self.num_prototypes,
            self.eps,
            distance=self.distance,
            tau=self.tau if self.keep is None and self.quantile is None else None,
            keep=self.keep,
            quantile=self.quantile,
        )

    def layer_range(self, depth: int) -> range:
        """The layers that are changed; by default the last fifth, as 26 to 32 is of 32, but at least two."""
        if self.layers is not None:
            return layer_span(self.layers, depth)
        return range(max(0, depth - max(2, round(depth / 5))), depth)


@dataclass(frozen=True)
class AIR(_FeedForwardEvidence):
    """Adaptive visual reinforcement, as printed: the paper's settings are the defaults."""

    name: ClassVar[str] = "air"
    paper: ClassVar[str | None] = PAPER
    summary: ClassVar[str] = "adds a term from the nearest crops to feed-forward outputs of the visual tokens"

    activation: Literal["decoder", "identity", "silu", "gelu", "relu"] = option(
        "decoder", "phi; decoder is the model's own activation"
    )
    positions: Literal["visual", "all"] = option(
        "visual", "token positions that are changed: the prototypes' in prefill, or all in every pass"
    )

    def start(self, context: Context, control: CropControl = NO_CONTROL) -> CropIntervention:
        return _Reinforce(self, context, control)


@dataclass(frozen=True)
class AIRMemory(_FeedForwardEvidence):
    """A memory of prototypes and crops, added where a layer is unsure: our reading of AIR's figures."""

    name: ClassVar[str] = "air-memory"
    summary: ClassVar[str] = "where a layer is unsure, adds a term from prototypes and crops to the next feed-forward"
    cost: ClassVar[str] = "1 pass with the head applied to some layers, and one encoding of the crops per image"

    activation: Literal["decoder", "identity", "silu", "gelu", "relu"] = option(
        "identity", "phi; decoder is the model's own activation"
    )
    threshold: float = option(
        0.75, "entropy of the ten likeliest tokens above which a layer is unsure", low=0, high=1, search=(0.3, 0.9)
    )

    def evidence_spec(self) -> EvidenceSpec:
        return replace(super().evidence_spec(), memory_prototypes=True)

    def start(self, context: Context, control: CropControl = NO_CONTROL) -> CropIntervention:
        return _Reinforce(self, context, control)


class _Reinforce(CropIntervention):
    """Adds the term to feed-forward outputs."""

    method: AIR | AIRMemory

    def __init__(self, method: AIR | AIRMemory, context: Context, control: CropControl) -> None:
        super().__init__(method, context, control)
        depth = len(context.parts.layers)
        span = method.layer_range(depth)
        self.visual_only = isinstance(method, AIR) and method.positions == "visual"
        if self.visual_only and span.start == depth - 1:
            raise ValueError(
                f"layers = {method.layers}: nothing reads the visual tokens after the last layer, so adding to them "
                "changes no answer. Start the span earlier, or set positions='all'."
            )
        self.acts_in_decode = not self.visual_only
        self.phi = find_activation(method.activation, context.parts.model)
        self.lens: EntropyLens | None = None
        if isinstance(method, AIRMemory):
            span = range(max(span.start, 1), span.stop)  # the layer before decides
            self.lens = EntropyLens(context.parts, Trigger(method.threshold))
            self.residual_layers = range(span.start - 1, span.stop - 1)
        self.ffn_layers = span
        self._fires: Tensor | None = None  # (B, L) positions that fired at the layer just read
        self._memory: tuple[Tensor, Tensor | None] | None = None  # (B, S, d) and its mask
        self._prototypes: tuple[Tensor, Tensor] | None = None  # (B, R) token positions, and which of them are real

    def on_call(self, call: GenerateCall) -> None:
        super().on_call(call)
        if self.lens is not None:
            self.lens.start_call()

    def embeds(self, fp: ForwardPass, inputs_embeds: Tensor) -> None:
        if fp.visual is not None or fp.is_prefill:
            self._remember(fp, inputs_embeds)
        elif not fp.is_decode:  # more text on top of a cache: the memory stays, the visual tokens are not in this pass
            self._prototypes = None
        self.matched = self.matched or [[] for _ in range(fp.batch_size)]
        self._fires = None
        if self.lens is not None and self._memory is not None:
            memory, mask = self._memory
            rows = memory.new_ones(len(memory), dtype=torch.bool) if mask is None else mask.any(-1)
            self.lens.start_pass(fp, rows)

    def _remember(self, fp: ForwardPass, inputs_embeds: Tensor) -> None:
        self._memory = self._prototypes = None
        if self.match(fp, inputs_embeds):
            started = time.perf_counter()
            self._memory = _pad_memories([[m.evidence.memory for m in row] for row in self.matched], fp.beams)
            if self.visual_only:
                self._prototypes = _prototype_positions(self.matched, fp.beams)
            self.seconds["injection"] += time.perf_counter() - started

    @property
    def _idle(self) -> bool:
        return self._memory is None or (self.visual_only and self._prototypes is None)

    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> None:
        if self.lens is not None and not self._idle:
            started = time.perf_counter()
            self._fires = self.lens.read(fp, h)
            self.seconds["injection"] += time.perf_counter() - started

    def ffn(self, fp: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        if self._idle or (self.visual_only and fp.is_decode) or (self.lens is not None and self._fires is None):
            return None
        started = time.perf_counter()
        positions = None
        acts = None if self._fires is None else self._fires.to(y.device)  # (B, L)
        if self._prototypes is not None:
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
        self.stats.add(layer, added.ratio, fp.batch_size)
        self.seconds["injection"] += time.perf_counter() - started
        return added.out

    def inactive_reason(self, row: int | None) -> str:
        if self.lens is not None and self.lens.highest is not None and any(self.evidence_of(row)):
            highest = highest_entropy(self.measured, row)
            threshold = self.lens.trigger.threshold
            return f"no layer's entropy exceeded {threshold:g}; the highest was {highest:.3g}"
        return super().inactive_reason(row)

    def measures(self) -> dict[str, Tensor]:
        return {} if self.lens is None else self.lens.measures()


def find_activation(name: str, model: nn.Module) -> Activation:
    """The activation by name; "decoder" is the one of the model's own config."""
    if name != "decoder":
        return ACTIVATIONS[name]
    from transformers.activations import ACT2FN  # imports transformers' model code

    config: Any = model.config
    text = config.get_text_config()
    own = getattr(text, "hidden_act", None) or getattr(text, "hidden_activation", None) or "silu"
    found: Activation = ACT2FN[own]
    return found


def _pad_memories(memories: list[list[Tensor | None]], beams: int) -> tuple[Tensor, Tensor | None] | None:
    """Every row's memory (S, d), its images one after another, in one tensor (B, S, d) with a mask."""
    parts = [[m for m in row if m is not None] for row in memories]
    example = next(m for row in parts for m in row)
    empty = example.new_zeros(0, example.shape[-1])
    joined = [torch.cat(row) if row else empty for row in parts]
    lengths = [len(m) for m in joined]
    if not max(lengths):
        return None
    memory = nn.utils.rnn.pad_sequence(joined, batch_first=True).repeat_interleave(beams, 0)
    if min(lengths) == max(lengths):
        return memory, None
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return memory, mask.to(memory.device).repeat_interleave(beams, 0)


def _prototype_positions(matched: list[list[ShownEvidence]], beams: int) -> tuple[Tensor, Tensor]:
    """Token positions (B, R) of the prototypes of every image with a memory, and which of them are real."""
    rows = [[s.positions[s.evidence.prototypes] for s in row if _has_memory(s)] for row in matched]
    example = next(s.positions for row in matched for s in row)
    joined = [torch.cat(row) if row else example[:0] for row in rows]
    positions = nn.utils.rnn.pad_sequence(joined, batch_first=True)
    lengths = torch.tensor([len(row) for row in joined])
    mask = torch.arange(positions.shape[1]) < lengths[:, None]
    return positions.repeat_interleave(beams, 0), mask.to(positions.device).repeat_interleave(beams, 0)


def _has_memory(shown: ShownEvidence) -> bool:
    return shown.evidence.memory is not None and len(shown.evidence.memory) > 0


# -- the term


@dataclass(frozen=True)
class Added:
    """A feed-forward output with the term added."""

    out: Tensor  # (B, T, d), in the dtype of the feed-forward output
    ratio: Tensor  # (B, R) float32, ||added|| / ||feed-forward||, of the requested positions


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
) -> Added:
    """Add the term to a feed-forward output.

    Args:
        ffn_out: the feed-forward's output (B, T, d).
        x: its input (B, T, d).
        memory: Z~, (S, d) shared or (B, S, d).
        phi: the activation.
        strength: ratio of norms per token; 0 returns `ffn_out` itself; None adds the literal, unscaled sum.
        memory_mask: (S,) or (B, S), True where a token exists.
        positions: (B, R) token positions to change; None is all.
        positions_mask: (B, R), False where a position is only padding or did not fire.
    """
    B, T, d = ffn_out.shape
    if strength == 0:
        R = T if positions is None else positions.shape[-1]
        return Added(ffn_out, torch.zeros(B, R, device=ffn_out.device))
    if positions is None and len(token_chunks(T)) > 1:
        out, ratio = torch.empty_like(ffn_out), ffn_out.new_empty(B, T, dtype=torch.float32)
        for at in token_chunks(T):
            acts = None if positions_mask is None else positions_mask[:, at]
            part = reinforce(
                ffn_out[:, at],
                x[:, at],
                memory,
                phi=phi,
                strength=strength,
                memory_mask=memory_mask,
                positions_mask=acts,
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
    if positions_mask is None:
        positions_mask = torch.ones(base.shape[:2], dtype=torch.bool, device=base.device)
    added = added.masked_fill(~positions_mask.unsqueeze(-1), 0.0)  # (B, R, d) float32
    ratio = norm(added) / size.clamp_min(1e-30)

    added = added.to(ffn_out.dtype)
    # scatter_add, not scatter: padding entries of `positions` may repeat a real position, and add nothing to it.
    out = ffn_out + added if positions is None else ffn_out.scatter_add(1, index, added)
    return Added(out, ratio.squeeze(-1))
