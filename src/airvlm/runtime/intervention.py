"""Intervention: what a method does to a model while it is active, and the calls and passes it is shown.

A method subclasses `Intervention` (or uses a template of `airvlm.methods.templates`) and overrides the sites that it
changes; `session.py` calls it from the model's hooks. State per call, batch rows and the report are handled here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from airvlm.models.parts import ModelParts
from airvlm.report import NormRatio, Report

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from airvlm.methods.base import Method
    from airvlm.runtime.row_images import RowImages

__all__ = [
    "DECODING",
    "DISABLED",
    "INPUT",
    "ChangeStats",
    "Context",
    "ForwardPass",
    "GenerateCall",
    "Intervention",
    "RowStats",
    "norm",
    "norm_ratio",
    "token_chunks",
    "without_methods",
]

DECODING = ("greedy", "sampling", "beams")  # modes of `generate` that a method may declare
INPUT = -1  # the decoder's input, where a layer number is expected

DISABLED: ContextVar[bool] = ContextVar("airvlm_methods_disabled", default=False)  # inside `without_methods`


@contextmanager
def without_methods() -> Iterator[None]:
    """Forward passes and generate calls inside this block are seen by no method: extra streams, probes."""
    token = DISABLED.set(True)
    try:
        yield
    finally:
        DISABLED.reset(token)


@dataclass(frozen=True)
class Context:
    """What a method is given when a session opens."""

    parts: ModelParts  # where decoder, layers, head and image tokens are
    processor: Any
    images: RowImages  # which images each batch row shows
    prompts: tuple[str, ...] | None = None  # each row's prompt with one placeholder per image, where it is known


@dataclass
class GenerateCall:
    """One call of `generate` before it runs. An intervention may change `arguments`."""

    arguments: dict[str, Any]  # every argument by name, `logits_processor` included
    model: nn.Module  # the model whose generate was called
    batch_size: int  # rows the caller gave, before beams
    beams: int  # copies of each row: max(num_beams, num_return_sequences)

    def option(self, name: str, default: Any = None) -> Any:
        """A generation option as `generate` resolves it: argument, then the given config, then the model's."""
        if self.arguments.get(name) is not None:
            return self.arguments[name]
        for config in (self.arguments.get("generation_config"), getattr(self.model, "generation_config", None)):
            if getattr(config, name, None) is not None:
                return getattr(config, name)
        return default

    @property
    def input_ids(self) -> Tensor:
        """The prompt's token ids, (batch_size, L)."""
        ids: Any = self.arguments.get("input_ids", self.arguments.get("inputs"))
        return ids


@dataclass
class ForwardPass:
    """One forward pass of the decoder: B = batch_size * beams rows of L tokens."""

    visual: Tensor | None  # (B, L) True at image tokens; None when no row of this pass holds any
    attention_mask: Tensor | None  # (B, T) 1 at real tokens, cached ones included; None when nothing is padded
    length: int  # L
    batch_size: int  # rows of the caller's batch
    beams: int  # copies of each row, side by side: row r shows the images of row r // beams
    is_prefill: bool  # nothing is cached: the sequence starts here
    is_decode: bool  # one new token on top of a cache
    first_generated: int  # first position whose next token is generated; earlier ones are prompt
    step: int  # tokens generated before this pass, 0 in prefill
    inputs: Mapping[str, Any]  # keyword arguments of the model's forward
    generating: bool = False  # inside a `generate` call, whose arguments `on_call` has seen
    visual_on_cpu: Any = None  # `visual` on the CPU (None without it), so that nobody waits to read it again

    def zero_padding(self, values: Tensor) -> Tensor:
        """Values (B, L) per token position, set to 0 (or False) at padding."""
        mask = self.attention_mask
        if self.is_decode or mask is None or mask.shape[-1] < self.length:
            return values
        real = mask[:, : self.length] if self.is_prefill else mask[:, -self.length :]
        return values * real.to(values)


class Intervention:
    """What a method does while it is active. Subclasses override what they need; None leaves a value as it is.

    Class attributes declare the sites, so that only those are hooked:

    * `ffn_layers`: layers whose feed-forward output `ffn` may change
    * `attention_layers`: layers whose attention output `attention` may change
    * `head_layers`: layers whose per-head outputs `heads` may change, before the output projection
    * `residual_layers`: layers whose output `residual` may read or change
    * `changes_logits`: `logits` is called
    * `acts_in_decode`: decode steps are changed too, so no compiled graph may skip the hooks
    """

    ffn_layers: Sequence[int] = ()
    attention_layers: Sequence[int] = ()
    head_layers: Sequence[int] = ()
    residual_layers: Sequence[int] = ()
    changes_logits: bool = False
    acts_in_decode: bool = False

    def __init__(self, method: Method, context: Context) -> None:
        self.method = method
        self.reported_as = method  # whose name and options the report shows: a control that wraps the method, say
        self.context = context
        self.stats = ChangeStats()
        self.batch_size = 0
        self.has_image: Tensor | None = None  # (batch_size,) rows whose sequence shows an image; None: no row does
        self.has_image_on_cpu: Tensor | None = None
        self.measured: dict[str, list[float]] = {}  # values of `measures`, per batch row, when a report is written
        self.seconds: dict[str, float] = {}  # time per part of the work

    # -- overridden by methods

    def open(self, stack: ExitStack) -> None:
        """Enter on `stack` whatever else must be undone when the session closes (an attention function, say)."""

    def on_call(self, call: GenerateCall) -> None:
        """A `generate` call is about to run: reset state, change or refuse its arguments."""

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        """Logits processors to append to this call's."""
        return []

    def on_pass(self, fp: ForwardPass) -> None:
        """A pass starts; its token ids are known, its embeddings are not."""

    def embeds(self, fp: ForwardPass, inputs_embeds: Tensor) -> Tensor | None:
        """The decoder's input (B, L, d), or its replacement."""
        return None

    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> Tensor | None:
        """The output h (B, L, d) of a layer, or its replacement."""
        return None

    def attention(self, fp: ForwardPass, layer: int, y: Tensor) -> Tensor | None:
        """The attention block's output y (B, L, d) before it is added to the residual stream, or its replacement."""
        return None

    def heads(self, fp: ForwardPass, layer: int, o: Tensor) -> Tensor | None:
        """The heads' outputs o (B, L, H, D) before the output projection, or their replacement."""
        return None

    def ffn(self, fp: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        """The feed-forward's input x and output y (B, L, d), or the replacement of y."""
        return None

    def logits(self, fp: ForwardPass, logits: Tensor) -> Tensor | None:
        """The model's logits (B, L or fewer, V), or their replacement."""
        return None

    def finish_call(self, out: Any) -> Any:
        """The output of a `generate` call, or its replacement."""
        return out

    def problem(self) -> str | None:
        """Why the method could not act although it should have, beyond what the session sees of its hooks."""
        return None

    def inactive_reason(self, row: int | None) -> str:
        """Why it decided not to act in a row with an image; None is the whole batch."""
        return "nothing was left to change"

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        """Additional fields of a row's report; None is the whole batch."""
        return {}

    def measures(self) -> dict[str, Tensor]:
        """Tensors (batch_size,) for the report. They are read back once, and then found in `measured`."""
        return {}

    # -- called by the session

    def start_call(self, call: GenerateCall) -> None:
        """A `generate` call begins."""
        self.stats = ChangeStats()
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        self.on_call(call)

    def start_pass(self, fp: ForwardPass) -> None:
        """A forward pass begins: note which rows show an image."""
        self.stats.start_pass()
        if self.batch_size != fp.batch_size or fp.is_prefill:
            self.has_image = self.has_image_on_cpu = None
        self.batch_size = fp.batch_size
        if fp.visual is not None:
            shows = fp.visual[:: fp.beams].any(-1)  # (batch_size,)
            on_cpu = fp.visual_on_cpu[:: fp.beams].any(-1)
            self.has_image = shows if self.has_image is None else self.has_image | shows
            self.has_image_on_cpu = on_cpu if self.has_image_on_cpu is None else self.has_image_on_cpu | on_cpu
        self.on_pass(fp)

    def active_rows(self, fp: ForwardPass) -> Tensor | None:
        """(B,) rows that the method may change: those with an image, or all if it needs none. None: no row."""
        if not self.method.needs_images:
            home = getattr(fp.inputs.get("input_ids"), "device", None)
            return torch.ones(fp.batch_size * fp.beams, dtype=torch.bool, device=home)
        return None if self.has_image is None else self.has_image.repeat_interleave(fp.beams)

    def report(self) -> Report:
        """What happened in the latest call. Everything on a device is read back in one transfer."""
        rows, self.measured = self.stats.read(self.batch_size, self.measures())
        shows = [False] * self.batch_size if self.has_image_on_cpu is None else self.has_image_on_cpu.tolist()
        method = self.reported_as.to_json()
        reports = tuple(self._row_report(method, r, rows[r], shows[r]) for r in range(self.batch_size))
        not_checked = self.context.images.not_checked
        whole: dict[str, Any] = {"rows": reports, "seconds": dict(self.seconds), "images_not_checked": not_checked}
        if len(reports) == 1:  # a batch of one row is that row
            return replace(reports[0], **whole)
        return self._row_report(method, None, RowStats.merge(rows), any(shows), **whole)

    def _row_report(self, method: dict[str, Any], row: int | None, stats: RowStats, shows: bool, **more: Any) -> Report:
        acted = stats.tokens > 0
        reason = None
        if not acted:
            no_image = self.method.needs_images and not shows
            reason = self.method.disabled_reason or (
                "there is no image in this row" if no_image else self.inactive_reason(row)
            )
        fields = {"layers": tuple(sorted(stats.layers)), **self.details(row, acted), **more}
        return Report(
            method=method,
            fired=acted,
            reason=reason,
            tokens=stats.tokens,
            passes=stats.passes,
            norm_ratio=stats.norm_ratio,
            expected=self.method.disabled_reason is not None,
            **fields,
        )


# -- statistics of what was changed


@dataclass
class _LayerSums:
    total: Tensor  # (rows,) sum of the ratios
    peak: Tensor  # (rows,) largest ratio
    count: Tensor  # (rows,) tokens changed


class ChangeStats:
    """Tokens changed in one call, per layer and batch row. Nothing is read back before `read`."""

    def __init__(self) -> None:
        self._layers: dict[int, _LayerSums] = {}
        self._counted: Tensor | None = None  # (rows,) tokens changed in no particular layer
        self._passes: Tensor | None = None  # (rows,) passes with a change, without the current one
        self._current: Tensor | None = None  # (rows,) bool, of the current pass

    def start_pass(self) -> None:
        """Changes added from here on belong to another forward pass."""
        if self._current is not None:
            self._passes = _add(self._passes, self._current.long())
            self._current = None

    def add(self, layer: int, ratio: Tensor, rows: int) -> None:
        """Record norm ratios of one pass in one layer.

        Args:
            layer: the decoder layer, or `INPUT`.
            ratio: (B, R) with B = rows * beams; 0 where a token was not changed.
            rows: rows of the caller's batch.
        """
        ratio = ratio.detach().float().reshape(rows, -1)
        changed = ratio > 0
        new = _LayerSums(ratio.sum(1), ratio.amax(1), changed.sum(1))
        old = self._layers.get(layer)
        if old is not None and old.total.shape == new.total.shape:
            home = old.total.device
            peak = torch.maximum(old.peak, new.peak.to(home))
            new = _LayerSums(old.total + new.total.to(home), peak, old.count + new.count.to(home))
        self._layers[layer] = new
        self._mark(changed.any(1))

    def count(self, tokens: Tensor) -> None:
        """Record tokens (rows,) that one pass changed where no norm ratio exists: attention scores, logits."""
        self._counted = _add(self._counted, tokens)
        self._mark(tokens > 0)

    def _mark(self, rows: Tensor) -> None:
        known = self._current
        self._current = rows if known is None or known.shape != rows.shape else known | rows.to(known.device)

    def read(self, rows: int, more: Mapping[str, Tensor]) -> tuple[list[RowStats], dict[str, list[float]]]:
        """Values on the host, one entry per batch row, and those of further tensors (rows,), in one transfer."""
        self.start_pass()
        tensors: dict[tuple[str, int | str | None], Tensor] = {}
        for layer, sums in self._layers.items():
            tensors |= {("total", layer): sums.total, ("peak", layer): sums.peak, ("count", layer): sums.count}
        if self._counted is not None:
            tensors["counted", None] = self._counted
        if self._passes is not None:
            tensors["passes", None] = self._passes
        tensors |= {(name, "more"): t for name, t in more.items()}
        host = _read_together(tensors)
        zeros = [0.0] * rows
        counted, passes = host.get(("counted", None), zeros), host.get(("passes", None), zeros)
        stats = []
        for r in range(rows):
            layers = {
                n: (host["total", n][r], host["peak", n][r], int(host["count", n][r]))
                for n in self._layers
                if host["count", n][r]
            }
            stats.append(RowStats(layers, int(counted[r]), int(passes[r])))
        return stats, {name: host[name, "more"] for name in more}


def _read_together(tensors: Mapping[Any, Tensor]) -> dict[Any, list[float]]:
    """Small tensors on any device as lists, with one transfer; counts are exact up to 2**24."""
    if not tensors:
        return {}
    home = next(iter(tensors.values())).device
    flat = torch.cat([t.detach().flatten().float().to(home) for t in tensors.values()]).tolist()
    found, start = {}, 0
    for name, t in tensors.items():
        found[name] = flat[start : start + t.numel()]
        start += t.numel()
    return found


def _add(old: Tensor | None, new: Tensor) -> Tensor:
    """Their sum, or the new one alone if a call with another number of rows began unannounced."""
    return new if old is None or old.shape != new.shape else old + new.to(old.device)


@dataclass(frozen=True)
class RowStats:
    """What was changed in one batch row, or in a whole batch."""

    layers: dict[int, tuple[float, float, int]] = field(default_factory=dict)  # layer -> sum, peak, tokens
    elsewhere: int = 0  # tokens changed in no particular layer
    passes: int = 0  # forward passes with a change

    @property
    def tokens(self) -> int:
        """Token positions changed, over all passes."""
        return self.elsewhere + sum(v[2] for v in self.layers.values())

    @property
    def norm_ratio(self) -> NormRatio | None:
        """Mean and largest norm ratio; None where no layer has one."""
        tokens = sum(v[2] for v in self.layers.values())
        if not tokens:
            return None
        return NormRatio(
            mean=sum(v[0] for v in self.layers.values()) / tokens,
            max=max(v[1] for v in self.layers.values()),
            layers={layer: v[0] / v[2] for layer, v in sorted(self.layers.items())},
        )

    @staticmethod
    def merge(rows: list[RowStats]) -> RowStats:
        """The whole batch; its rows share their passes."""
        layers: dict[int, tuple[float, float, int]] = {}
        for row in rows:
            for layer, v in row.layers.items():
                w = layers.get(layer, (0.0, 0.0, 0))
                layers[layer] = (v[0] + w[0], max(v[1], w[1]), v[2] + w[2])
        passes = max((row.passes for row in rows), default=0)
        return RowStats(layers, sum(row.elsewhere for row in rows), passes)


# -- sizes of changes

CHUNK = 256  # token positions widened to float32 at once: a whole prefill would be a copy of twice its size


def token_chunks(length: int) -> list[slice]:
    """The token positions of a pass in chunks, for arithmetic that half precision cannot hold."""
    return [slice(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK)]


def norm(x: Tensor) -> Tensor:
    """Norm per token in float32: (..., d) -> (..., 1)."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)


def norm_ratio(new: Tensor, old: Tensor) -> Tensor:
    """Norm of the change over the norm of the old value, per token: (..., d) -> (...)."""
    return (norm(new.float() - old.float()) / norm(old).clamp_min(1e-30)).squeeze(-1)
