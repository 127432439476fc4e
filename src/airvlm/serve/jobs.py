"""One answer that waits or runs, and what happens to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

from airvlm import Method
from airvlm.inputs.builder import Request
from airvlm.report import Report
from airvlm.runtime.text_stream import PartialText

__all__ = ["Delta", "Event", "Failed", "Finished", "Job", "Sampling", "TokenLogprob"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True)
class TokenLogprob:
    """A token of the answer, its log-probability, and the likeliest tokens in its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Delta:
    """More of an answer's text, with the log-probabilities of tokens that were not sent yet."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Finished:
    """The end of an answer: its whole text, and the log-probabilities that no Delta has sent."""

    text: str
    tokens: int
    finish_reason: str  # "stop" or "length"
    report: Report | None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Failed:
    """There is no answer."""

    error: Exception


Event: TypeAlias = "Delta | Finished | Failed"


@dataclass(eq=False)
class Job:
    """One answer that waits or runs.

    Args:
        row: the request's images and prompt.
        method: the method; None is the model as it is.
        text: the answer so far.
        max_tokens: longest answer.
        send: takes what happens to the answer; called from the model's thread.
        cancelled: set if nobody waits for the answer any more.
        sampling: None is greedy decoding.
        stream: send the text in pieces.
        top_logprobs: how many likely tokens to report per token; None reports no log-probabilities.
    """

    row: Request
    method: Method | None
    text: PartialText
    max_tokens: int
    send: Callable[[Event], None]
    cancelled: threading.Event
    sampling: Sampling | None = None
    stream: bool = False
    top_logprobs: int | None = None
    finish_reason: str | None = None
    _logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def group(self) -> Hashable:
        """Equal for jobs that may run together. A sampled answer runs alone, so that its seed determines it."""
        alone = id(self) if self.sampling is not None else None
        return (self.method, bool(self.row.images), self.top_logprobs is None, alone)

    def start(self) -> None:
        """Forget an attempt that failed; text that was sent stays sent, since greedy decoding repeats it."""
        self.text.tokens.clear()
        self._logprobs.clear()
        self.finish_reason = None

    def _add(self, token: int, logprob: TokenLogprob | None) -> None:
        """Take the next token, which does not end the answer by itself."""
        if logprob is not None:
            self._logprobs.append(logprob)
        if self.text.add(token):
            self.finish_reason = "stop"
        elif len(self.text.tokens) >= self.max_tokens:
            self.finish_reason = "length"
        elif self.stream and (piece := self.text.next_piece()):
            self.send(Delta(piece, self._take_logprobs()))

    def take(self, token: int, ends: Collection[int], logprob: TokenLogprob | None = None) -> None:
        """Take what the model generated next, unless the answer has ended; sets `finish_reason` if it ends now."""
        if self.cancelled.is_set():
            self.finish_reason = "cancelled"
        elif self.finish_reason is not None:
            return
        elif token in ends:
            self.finish_reason = "stop"
        else:
            self._add(token, logprob)

    def finish(self, report: Report | None) -> None:
        if self.cancelled.is_set():
            return
        if self.stream and (piece := self.text.last_piece()):
            self.send(Delta(piece, self._take_logprobs()))
        reason = self.finish_reason or "length"
        self.send(Finished(self.text.whole(), len(self.text.tokens), reason, report, self._take_logprobs()))

    def _take_logprobs(self) -> tuple[TokenLogprob, ...]:
        taken = tuple(self._logprobs)
        self._logprobs.clear()
        return taken
