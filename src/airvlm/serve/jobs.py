"""One answer to give: what is asked, how it is sampled, and the way its text goes back.

Knows nothing of the web, nor of how answers are given together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from airvlm import Method
from airvlm.inputs.builder import Request
from airvlm.report import Report
from airvlm.serve.text import GrowingText

__all__ = ["Done", "Failed", "Job", "Piece", "Sampling", "TokenChance"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; None in its place is greedy decoding."""

    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True)
class TokenChance:
    """A token that was said, its log-probability, and the likeliest ones in its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """More of the text."""

    text: str


@dataclass(frozen=True)
class Done:
    """The answer has ended."""

    text: str
    tokens: int
    prompt_tokens: int
    reason: str  # stop or length, as OpenAI says it
    report: Report | None
    chances: tuple[TokenChance, ...] = ()


@dataclass(frozen=True)
class Failed:
    """There is no answer."""

    error: Exception


@dataclass(eq=False)
class Job:
    """An answer that waits, runs, or was called off."""

    row: Request
    method: Method | None
    text: GrowingText
    max_tokens: int
    send: Callable[[Piece | Done | Failed], None]  # called from the model's thread
    sampling: Sampling | None = None
    streams: bool = False
    top_logprobs: int | None = None  # None: no log-probabilities
    chances: list[TokenChance] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    reason: str | None = None  # why it ended

    @property
    def group(self) -> Hashable:
        """Equal for jobs that may run together. A drawn answer runs alone: its seed must mean the same every time."""
        return (self.method, bool(self.row.images), id(self) if self.sampling is not None else None)

    def take(self, token: int, ends: bool, chance: TokenChance | None) -> None:
        """One more token; sets `reason` when it was the last."""
        if ends:
            self.reason = "stop"
            return
        if chance is not None:
            self.chances.append(chance)
        if self.text.add(token):
            self.reason = "stop"
        elif len(self.text.tokens) >= self.max_tokens:
            self.reason = "length"
        if self.streams and self.reason is None and (piece := self.text.fresh()):
            self.send(Piece(piece))

    def begin(self) -> None:
        """Forget a try that failed; what was shown of it stays shown, for greedy decoding says it again."""
        self.text.tokens.clear()
        self.chances.clear()
        self.reason = None

    def end(self, prompt_tokens: int, report: Report | None) -> None:
        if self.cancelled.is_set():
            return
        if self.streams and (piece := self.text.rest()):
            self.send(Piece(piece))
        tokens = len(self.text.tokens)
        done: Any = Done(self.text.whole(), tokens, prompt_tokens, self.reason or "length", report, tuple(self.chances))
        self.send(done)
