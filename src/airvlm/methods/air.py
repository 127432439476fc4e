"""AIR: adaptive visual reinforcement, in three readings (arXiv 2602.24041).

`AIR.paper()` adds phi(H' Z~') Z~ to the retained visual rows in prefill; `AIR.lineage()` adds a memory at all rows
where a layer is unsure; `AIR.transported()` carries crop tokens to the visual tokens they match. What the evidence
is, is evidence.py; how the model is reached is base.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from airvlm.evidence import Recipe
from airvlm.methods.base import Call, Intervention, Method, Run, Step
from airvlm.methods.lens import EntropyLens, Trigger
from airvlm.methods.sight import Seen, Sight
from airvlm.methods.tally import Counts, Tally
from airvlm.reinforcement import identity, norm, reinforce
from airvlm.report import Crop, Report, Sinkhorn
from airvlm.views import Glance

__all__ = ["AIR", "window"]

INPUT = -1  # the decoder's input, in reports, where a layer would stand
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": identity,
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
}


@dataclass(frozen=True)
class AIR(Recipe, Method):
    """Adaptive visual reinforcement. `AIR()` is the transported reading."""

    name: ClassVar[str] = "air"
    publication: ClassVar[str] = "Look Carefully: adaptive visual reinforcement (ICLR 2026, arXiv 2602.24041)"
    mechanism: ClassVar[str] = "crops that agree with the picture's distinctive tokens reinforce them"
    forwards: ClassVar[str] = "1, and one encoding of the crops a picture"

    # carry: blend what the crops say into the visual tokens; ffn: add the term to feed-forward outputs
    reading: Literal["carry", "ffn"] = "carry"
    weight: float = 0.15  # carry: share of the carried token in the blend
    # ffn: norm of the added term over the feed-forward's, per token; None adds the bare sum; 0 is off
    strength: float | None = 0.12
    # ffn: first layer and the one after the last, as (26, 32); None is the last fifth of the decoder
    layers: tuple[int, int] | None = None
    rows: Literal["visual", "all"] = (
        "visual"  # ffn: the prototypes' rows in prefill, or all rows of every pass
    )
    phi: str = "decoder"  # ffn: activation; decoder (the model's own), identity, silu, gelu or relu
    # ffn: act in all layers of the span, or only in the one after the first that is unsure of the next token
    trigger: Literal["none", "entropy"] = "none"
    threshold: float = 0.75  # entropy of the ten likeliest tokens above which a layer is unsure, 0 to 1
    patches: int = 12  # M, crops of a picture
    # overlapping windows in several scales, or random crops drawn from the seed
    plan: Literal["windows", "random"] = "windows"
    # crops of the original; controls: of the picture as the model sees it, of another picture
    source: Literal["original", "shrunk", "other"] = "original"

    def __post_init__(self) -> None:
        super().__post_init__()
        options: dict[str, tuple[str, ...]] = {
            "reading": ("carry", "ffn"),
            "rows": ("visual", "all"),
            "phi": ("decoder", *ACTIVATIONS),
            "trigger": ("none", "entropy"),
            "plan": ("windows", "random"),
            "source": ("original", "shrunk", "other"),
        }
        for field, allowed in options.items():
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} = {getattr(self, field)!r}: choose one of {', '.join(allowed)}")
        if self.patches < 0:
            raise ValueError(f"patches = {self.patches}: the number of crops cannot be negative")
        if self.reading == "carry" and self.rows == "all":
            raise ValueError(
                "reading='carry' writes visual tokens only: for all of them set top_q=1.0, not rows"
            )
        if self.layers is not None and (len(self.layers) != 2 or not 0 <= self.layers[0] < self.layers[1]):
            raise ValueError(f"layers = {self.layers}: give (first, one after the last), counted from 0")

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The equations as printed: the term on the Q retained visual rows, in prefill, in every layer of the span."""
        preset = {"reading": "ffn", "top_q": 100, "eps": 0.1, "tau": 0.06, "rows": "visual", "phi": "decoder"}
        return cls._preset(preset, changes)

    @classmethod
    def lineage(cls, **changes: Any) -> Self:
        """As the paper's figures point to, built on MemVR: a memory at all rows, where a layer is unsure."""
        preset = {
            "reading": "ffn",
            "top_q": 100,
            "eps": 0.1,
            "tau": 0.06,
            "rows": "all",
            "phi": "identity",
            "memory": "prototypes+crops",
            "trigger": "entropy",
        }
        return cls._preset(preset, changes)

    @classmethod
    def transported(cls, **changes: Any) -> Self:
        """Our own, of the same parts: the plan carries each crop's tokens to the visual tokens they match."""
        return cls._preset({"reading": "carry", "weight": 0.15, "eps": 0.03, "top_q": 0.375}, changes)

    @classmethod
    def _preset(cls, preset: dict[str, Any], changes: dict[str, Any]) -> Self:
        rules = {"tau", "keep", "quantile"}
        if rules & set(changes):  # another rule of selection replaces the preset's
            preset = {name: value for name, value in preset.items() if name not in rules}
        return cls(**{**preset, **changes})

    @property
    def off(self) -> bool:
        """Configured to do nothing."""
        return self.strength == 0 or (self.reading == "carry" and self.weight == 0)

    def begin(self, run: Run) -> Intervention:
        return Carrying(run, self) if self.reading == "carry" else Reinforcing(run, self)


class _Seeing(Intervention):
    """What both readings share: the evidence of each row, and the report."""

    def __init__(self, run: Run, air: AIR) -> None:
        super().__init__(run)
        self.air = air
        glance = Glance(air.patches, air.plan, air.seed)
        self.sight = Sight(run, air, glance, air.source, carrying=air.reading == "carry")
        self.seen: list[list[Seen]] = []  # by row of the caller's batch
        self.tally = Tally()
        self.injection = 0.0  # seconds
        self.highest: Tensor | None = None  # (rows,) the largest entropy seen, where a trigger looks

    def call(self, call: Call) -> None:
        self.tally.clear()
        self.highest = None
        if not self.air.off:
            self.sight.call(call)

    def look(self, step: Step, embeds: Tensor) -> bool:
        """Take in the pictures of a pass; whether the sequence shows any."""
        if step.visual is not None:
            self.seen = self.sight.see(step, embeds)
        elif step.fresh:
            self.seen = [[] for _ in range(step.rows)]
        return any(self.seen)

    def report(self) -> Report:
        counts = self.tally.rows(len(self.seen))
        highest = None if self.highest is None else self.highest.tolist()
        rows = tuple(
            self._report(counts[r], seen, None if highest is None else highest[r])
            for r, seen in enumerate(self.seen)
        )
        seconds = {**self.sight.seconds, "injection": self.injection}
        whole = [picture for seen in self.seen for picture in seen]
        return self._report(
            Counts.joined(counts),
            whole,
            None if highest is None else max(highest),
            rows=rows,
            seconds=seconds,
        )

    def _report(self, counts: Counts, seen: list[Seen], highest: float | None, **more: Any) -> Report:
        evidence = [picture.evidence for picture in seen]
        return Report(
            method=self.air.to_json(),
            fired=counts.tokens > 0,
            reason=None if counts.tokens else self._reason(seen, highest),
            layers=tuple(sorted(counts.layers)),
            tokens=counts.tokens,
            passes=counts.passes,
            crops=tuple(
                tuple(
                    Crop((box[0], box[1], box[2], box[3]), distance, kept)
                    for box, distance, kept in zip(
                        e.views.boxes, e.distances.tolist(), e.kept.tolist(), strict=True
                    )
                )
                for e in evidence
            ),
            norm_ratio=counts.ratio,
            sinkhorn=Sinkhorn(
                max(int(e.iterations) for e in evidence), all(bool(e.converged) for e in evidence)
            )
            if evidence
            else None,
            silent=self.air.off,
            **more,
        )

    def _reason(self, seen: list[Seen], highest: float | None) -> str:
        air = self.air
        if air.off:
            return "its strength is 0"
        if not seen:
            return "there is no picture in this row"
        if air.patches == 0 and air.memory == "crops":
            return "patches = 0: there are no crops to look at"
        if not any(s.evidence.count for s in seen) and (air.reading == "carry" or air.memory == "crops"):
            nearest = min(float(s.evidence.distances.min()) for s in seen)
            rule = f"within tau = {air.tau:g}" if air.tau is not None else f"among the {air.keep} to keep"
            return f"no crop is {rule}; the nearest has d = {nearest:.4g}"
        if highest is not None:
            return f"no layer's entropy passed {air.threshold:g}; the highest was {highest:.3g}"
        return "nothing was left to add"


class Carrying(_Seeing):
    """Blends what the crops say into the visual tokens, where the decoder reads them. Prefill only."""

    def embeds(self, step: Step, inputs_embeds: Tensor) -> Tensor | None:
        if self.air.off or step.decode:
            self.seen = self.seen or [[] for _ in range(step.rows)]
            return None
        if not self.look(step, inputs_embeds) or step.visual is None:
            return None
        started = time.perf_counter()
        places: list[Tensor] = []  # row of the batch (n,)
        positions: list[Tensor] = []
        carried: list[Tensor] = []
        for row, pictures in enumerate(self.seen):
            for seen in pictures:
                e = seen.evidence
                if e.carried is None:
                    continue
                at, values = seen.positions[e.prototypes], e.carried
                if e.covered is not None:  # geometry may leave places that no kept crop shows
                    at, values = at[e.covered], values[e.covered]
                places.append(torch.full_like(at, row * step.expand))
                positions.append(at)
                carried.append(values)
        if not places:
            return None
        place, at, c = torch.cat(places), torch.cat(positions), torch.cat(carried)  # (n,), (n,), (n, d)
        z = inputs_embeds[place, at].float()
        w = self.air.weight
        change = w * (c - z)
        new = inputs_embeds.clone()
        for copy in range(step.expand):
            new[place + copy, at] = (z + change).to(new.dtype)
        self._count(change, z, place // step.expand, step.rows)
        self.injection += time.perf_counter() - started
        return new

    def _count(self, change: Tensor, z: Tensor, row: Tensor, rows: int) -> None:
        ratio = (norm(change) / norm(z).clamp_min(1e-30)).squeeze(-1)  # (n,)
        # Spread into one line a row, so that the tally can sum lines: token i stands in column i.
        lines = torch.zeros(rows, len(ratio), device=ratio.device)
        lines[row, torch.arange(len(ratio), device=ratio.device)] = ratio
        self.tally.add(INPUT, lines, rows)


class Reinforcing(_Seeing):
    """Adds the term to feed-forward outputs."""

    def __init__(self, run: Run, air: AIR) -> None:
        super().__init__(run, air)
        first, stop = window(air.layers, len(run.anatomy.layers))
        if air.rows == "visual" and first == len(run.anatomy.layers) - 1:
            raise ValueError(
                f"layers = {air.layers}: nothing reads the visual rows after the last layer, so that adding to them "
                "changes no answer. Begin the span earlier, or set rows='all'."
            )
        self.decodes = air.rows == "all"
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
            if self.air.rows == "visual":
                self._rows = _prototype_rows(self.seen, step.expand)
            self.injection += time.perf_counter() - started

    def hidden(self, step: Step, layer: int, h: Tensor) -> None:
        if self.lens is None or self._memory is None or (self.air.rows == "visual" and self._rows is None):
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
        if self._memory is None or (self.air.rows == "visual" and (step.decode or self._rows is None)):
            return None
        if self.lens is not None and self._fires is None:
            return None
        started = time.perf_counter()
        rows = None
        acts = None if self._fires is None else self._fires.to(y.device)  # (B, L)
        if self.air.rows == "visual" and self._rows is not None:
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
