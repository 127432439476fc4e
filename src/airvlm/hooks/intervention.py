"""Intervention: what a method does during a run, and the context, calls and passes it is shown.

A method's file subclasses Intervention (or a template of templates.py) and says what it changes; passes.py calls it
from the model's hooks. State per call, batch rows, the report and its reasons are kept here; changes.py counts what was
changed. Nothing here touches a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from airvlm.hooks.changes import Changes, Counts
from airvlm.models.anatomy import Anatomy
from airvlm.report import Report

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from airvlm.hooks.method import Method
    from airvlm.hooks.row_images import RowImages

__all__ = [
    "INPUT",
    "Call",
    "Context",
    "Intervention",
    "Step",
    "aside",
    "blocks",
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
        method, off = self.method.to_json(), self.method.off
        rows = tuple(self._report(method, off, r, counts[r], shows[r]) for r in range(self.rows))
        whole = Counts.joined(counts)
        return self._report(method, off, None, whole, any(shows), rows=rows, seconds=dict(self.seconds))

    def _report(
        self,
        method: dict[str, Any],
        off: str | None,
        row: int | None,
        counts: Counts,
        shows: bool,
        **more: Any,
    ) -> Report:
        acted = counts.tokens > 0
        reason = None
        if not acted:
            missing = self.method.needs_images and not shows
            reason = off or ("there is no image in this row" if missing else self.reason(row))
        return Report(
            method=method,
            fired=acted,
            reason=reason,
            tokens=counts.tokens,
            passes=counts.passes,
            norm_ratio=counts.ratio,
            silent=off is not None,
            **{"layers": tuple(sorted(counts.layers)), **self.details(row, acted), **more},
        )


# -- how large a change is

INPUT = -1  # the decoder's input, where a layer would stand


BLOCK = (
    256  # token positions that are widened to float32 at once: a whole prefill would be a copy twice its size
)


def blocks(length: int) -> list[slice]:
    """The token positions of a pass in blocks, for arithmetic that half precision cannot hold."""
    return [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


def norm(x: Tensor) -> Tensor:
    """Norm per token in float32: (..., d) -> (..., 1)."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)


def norm_ratio(new: Tensor, old: Tensor) -> Tensor:
    """Norm of what was added over the norm of what was there, per token: (..., d) -> (...)."""
    return (norm(new.float() - old.float()) / norm(old).clamp_min(1e-30)).squeeze(-1)
