"""Intervention: what a method does during a run, and the context, calls and passes it is shown.

A method's file subclasses Intervention (or a template of templates.py) and says what it changes; passes.py calls it
from the model's hooks. State per call, batch rows, the report and its reasons are kept here. Nothing here touches a
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from airvlm.models.anatomy import Anatomy
from airvlm.report import NormRatio, Report

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from airvlm.hooks.method import Method
    from airvlm.hooks.row_images import RowImages

__all__ = [
    "INPUT",
    "Call",
    "Changes",
    "Context",
    "Counts",
    "Intervention",
    "Step",
    "aside",
    "is_aside",
    "norm",
    "norm_ratio",
]

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


@dataclass(frozen=True)
class Context:
    """What a method is given of a run."""

    anatomy: Anatomy
    processor: Any
    images: RowImages  # which images each batch row shows


@dataclass
class Call:
    """One call of `generate`, before it runs: an intervention may change `arguments`."""

    arguments: dict[str, Any]  # every argument by name, `logits_processor` included
    model: nn.Module  # the model whose generate was called
    rows: int  # batch rows the caller gave, before beams
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
    """One forward pass of the decoder: B batch rows (beams expanded) of L tokens."""

    visual: Tensor | None  # (B, L) True at image tokens; None when no row of this pass holds any
    attention_mask: Tensor | None  # (B, T) 1 at real tokens, cached ones too; None when nothing is padded
    length: int  # L
    rows: int  # rows of the caller's batch; B = rows * expand
    expand: int  # copies of each row, side by side; row r shows the images of row r // expand
    fresh: bool  # nothing is cached: the sequence starts here
    decode: bool  # one new token on top of a cache
    start: int  # first position that decides for itself; those before it follow its decision (logit_lens.py)
    inputs: Mapping[str, Any]  # keyword arguments of the top-level forward
    generating: bool = False  # inside a `generate` call, whose arguments `on_call` has seen
    visual_host: Tensor | None = (
        None  # `visual` on the CPU, so that nobody waits for the device to read it again
    )

    def on_host(self) -> Tensor:
        """`visual` on the CPU, of a pass with image tokens."""
        assert self.visual is not None
        return self.visual.cpu() if self.visual_host is None else self.visual_host

    def without_padding(self, positions: Tensor) -> Tensor:
        """Values (B, L) of token positions, 0 (or False) at those that are only padding."""
        mask = self.attention_mask
        if self.decode or mask is None or mask.shape[-1] < self.length:
            return positions
        real = mask[:, : self.length] if self.fresh else mask[:, -self.length :]
        return positions * real.to(positions)


class Intervention:
    """What a method does while it is active. Subclasses override what they need; None means "leave it"."""

    layers: Sequence[int] = ()  # decoder layers whose feed-forward output it may change
    watched: Sequence[int] = ()  # decoder layers whose output it reads
    changes_logits: bool = False  # changes the model's logits
    decodes: bool = False  # acts on decode steps too, so that no compiled graph may skip it

    def __init__(self, method: Method, context: Context) -> None:
        self.method = method
        self.context = context
        self.changes = Changes()
        self.rows = 0  # of the caller's batch
        self.with_image: Tensor | None = None  # (rows,) rows whose sequence shows an image; None: no row does
        self.shows: Tensor | None = None  # `with_image` on the CPU
        self.measured: dict[
            str, list[float]
        ] = {}  # what `measures` gave, by batch row, when a report is written
        self.seconds: dict[str, float] = {}  # by part of the work, of the run so far

    # -- what a subclass overrides

    def open(self, stack: ExitStack) -> None:
        """Enter what else must be undone (an attention implementation, say) on `stack`."""

    def on_call(self, call: Call) -> None:
        """A `generate` call is about to run: its state starts anew, its arguments may be changed or refused."""

    def processors(self, call: Call) -> list[LogitsProcessor]:
        """Logits processors to append to this call's."""
        return []

    def on_pass(self, step: Step) -> None:
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

    def problem(self) -> str | None:
        """Why it could not act although it should have, beyond what passes.py sees of hooks."""
        return None

    def reason(self, row: int | None) -> str:
        """Why it decided not to act in a row with an image; None is the whole batch."""
        return "nothing was left to change"

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        """More fields of a row's report; None is the whole batch."""
        return {}

    def measures(self) -> dict[str, Tensor]:
        """Tensors (rows,) that a report tells of: read together with all else, and then found in `measured`."""
        return {}

    # -- what every method has

    def start_call(self, call: Call) -> None:
        """A `generate` call begins."""
        self.changes.clear()
        self.on_call(call)

    def start_pass(self, step: Step) -> None:
        """A forward pass begins."""
        self.changes.start_pass()
        if self.rows != step.rows or step.fresh:
            self.with_image = self.shows = None
        self.rows = step.rows
        if step.visual is not None:
            shows = step.visual[:: step.expand].any(-1)  # (rows,)
            self.with_image = shows if self.with_image is None else self.with_image | shows
            shows = step.on_host()[:: step.expand].any(-1)
            self.shows = shows if self.shows is None else self.shows | shows
        self.on_pass(step)

    def report(self) -> Report:
        """What happened in the latest call; all that is on a device is read in one go."""
        counts, self.measured = self.changes.read(self.rows, self.measures())
        shows = [False] * self.rows if self.shows is None else self.shows.tolist()
        rows = tuple(self._report(r, counts[r], shows[r]) for r in range(self.rows))
        return self._report(None, Counts.joined(counts), any(shows), rows=rows, seconds=dict(self.seconds))

    def _report(self, row: int | None, counts: Counts, shows: bool, **more: Any) -> Report:
        off = self.method.off
        acted = counts.tokens > 0
        reason = None
        if not acted:
            missing = self.method.needs_images and not shows
            reason = off or ("there is no image in this row" if missing else self.reason(row))
        return Report(
            method=self.method.to_json(),
            fired=acted,
            reason=reason,
            tokens=counts.tokens,
            passes=counts.passes,
            norm_ratio=counts.ratio,
            silent=off is not None,
            **{"layers": tuple(sorted(counts.layers)), **self.details(row, acted), **more},
        )


# -- what was changed, per decoder layer and batch row: counted on the device and read once at the end

INPUT = -1  # the decoder's input, where a layer would stand


def norm(x: Tensor) -> Tensor:
    """Norm per token in float32: (..., d) -> (..., 1)."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)


def norm_ratio(new: Tensor, old: Tensor) -> Tensor:
    """Norm of what was added over the norm of what was there, per token: (..., d) -> (...)."""
    return (norm(new.float() - old.float()) / norm(old).clamp_min(1e-30)).squeeze(-1)


@dataclass
class _Sums:
    total: Tensor  # (rows,) sum of the ratios
    peak: Tensor  # (rows,) largest ratio
    count: Tensor  # (rows,) tokens changed


class Changes:
    """Changed tokens of one call, by layer and batch row. Nothing is read back before `rows`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """A new call begins."""
        self._layers: dict[int, _Sums] = {}
        self._counted: Tensor | None = None  # (rows,) tokens changed in no layer in particular
        self._passes: Tensor | None = None  # (rows,) passes with any, but for the one under way
        self._now: Tensor | None = None  # (rows,) bool, of the pass under way

    def start_pass(self) -> None:
        """What is added from here on belongs to another forward pass."""
        if self._now is not None:
            self._passes = _added(self._passes, self._now.long())
            self._now = None

    def add(self, layer: int, ratio: Tensor, rows: int) -> None:
        """Norm ratios (B, R) of one pass in one layer, B = rows * copies; 0 where a token was left alone."""
        ratio = ratio.detach().float().reshape(rows, -1)
        changed = ratio > 0
        new = _Sums(ratio.sum(1), ratio.amax(1), changed.sum(1))
        old = self._layers.get(layer)
        if old is not None and old.total.shape == new.total.shape:
            home = old.total.device
            peak = torch.maximum(old.peak, new.peak.to(home))
            new = _Sums(old.total + new.total.to(home), peak, old.count + new.count.to(home))
        self._layers[layer] = new
        self._acted(changed.any(1))

    def count(self, tokens: Tensor) -> None:
        """Tokens (rows,) that one pass changed where no ratio tells how much: attention scores, logits."""
        self._counted = _added(self._counted, tokens)
        self._acted(tokens > 0)

    def _acted(self, rows: Tensor) -> None:
        same = self._now is not None and self._now.shape == rows.shape
        self._now = self._now | rows.to(self._now.device) if self._now is not None and same else rows

    def rows(self, rows: int) -> list[Counts]:
        """Host values, one for each batch row."""
        return self.read(rows, {})[0]

    def read(self, rows: int, more: Mapping[str, Tensor]) -> tuple[list[Counts], dict[str, list[float]]]:
        """Host values, one for each batch row, and those of further tensors (rows,): one read-back for all."""
        self.start_pass()
        sums = {n: (s.total, s.peak, s.count) for n, s in self._layers.items()}
        others = {"counted": self._counted, "passes": self._passes}
        tensors: dict[tuple[str, int | str | None], Tensor] = {}
        tensors |= {(name, n): t for n, own in sums.items() for name, t in zip(_SUMS, own, strict=True)}
        tensors |= {(name, None): t for name, t in others.items() if t is not None}
        tensors |= {(name, "more"): t for name, t in more.items()}
        host = _together(tensors)
        none = [0.0] * rows
        counted, passes = (host.get((name, None), none) for name in others)
        counts = [
            Counts(
                {
                    n: (host["total", n][r], host["peak", n][r], int(host["count", n][r]))
                    for n in sums
                    if host["count", n][r]
                },
                int(counted[r]),
                int(passes[r]),
            )
            for r in range(rows)
        ]
        return counts, {name: host[name, "more"] for name in more}


_SUMS = ("total", "peak", "count")


def _together(tensors: Mapping[Any, Tensor]) -> dict[Any, list[float]]:
    """Small tensors as lists, from whatever devices they lie on, with one read-back; counts are exact to 2**24."""
    if not tensors:
        return {}
    home = next(iter(tensors.values())).device
    flat = torch.cat([t.detach().flatten().float().to(home) for t in tensors.values()]).tolist()
    found, start = {}, 0
    for name, t in tensors.items():
        found[name] = flat[start : start + t.numel()]
        start += t.numel()
    return found


def _added(old: Tensor | None, new: Tensor) -> Tensor:
    """Their sum; the new alone where a call with another number of rows began without being announced."""
    return new if old is None or old.shape != new.shape else old + new.to(old.device)


@dataclass(frozen=True)
class Counts:
    """One batch row's, or a whole batch's."""

    layers: dict[int, tuple[float, float, int]] = field(default_factory=dict)  # layer -> sum, peak, tokens
    elsewhere: int = 0  # tokens changed in no layer in particular
    passes: int = 0  # forward passes that changed any

    @property
    def tokens(self) -> int:
        return self.elsewhere + sum(v[2] for v in self.layers.values())

    @property
    def ratio(self) -> NormRatio | None:
        tokens = sum(v[2] for v in self.layers.values())
        if not tokens:
            return None
        return NormRatio(
            mean=sum(v[0] for v in self.layers.values()) / tokens,
            max=max(v[1] for v in self.layers.values()),
            layers={layer: v[0] / v[2] for layer, v in sorted(self.layers.items())},
        )

    @staticmethod
    def joined(rows: list[Counts]) -> Counts:
        """The whole batch: its rows share their passes."""
        layers: dict[int, tuple[float, float, int]] = {}
        for row in rows:
            for layer, v in row.layers.items():
                w = layers.get(layer, (0.0, 0.0, 0))
                layers[layer] = (v[0] + w[0], max(v[1], w[1]), v[2] + w[2])
        passes = max((row.passes for row in rows), default=0)
        return Counts(layers, sum(row.elsewhere for row in rows), passes)
