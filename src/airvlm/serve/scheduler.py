"""The queue in front of the model: answers that wait run together where their methods and settings agree.

One thread owns the model. A batch equals its rows run alone, so an answer does not depend on what else runs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from airvlm import VLM, Method
from airvlm.inputs.builder import Request
from airvlm.report import Report
from airvlm.runtime.text_stream import PartialText

__all__ = ["Delta", "Event", "Failed", "Finished", "Job", "QueueFull", "Sampling", "Scheduler", "TokenLogprob"]


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
        return (self.method, bool(self.row.images), id(self) if self.sampling is not None else None)

    def start(self) -> None:
        """Forget an attempt that failed; text that was sent stays sent, since greedy decoding repeats it."""
        self.text.tokens.clear()
        self._logprobs.clear()
        self.finish_reason = None

    def add(self, token: int, logprob: TokenLogprob | None) -> None:
        """Take the next token, which does not end the answer by itself."""
        if logprob is not None:
            self._logprobs.append(logprob)
        if self.text.add(token):
            self.finish_reason = "stop"
        elif len(self.text.tokens) >= self.max_tokens:
            self.finish_reason = "length"
        elif self.stream and (piece := self.text.next_piece()):
            self.send(Delta(piece, self._take_logprobs()))

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


class QueueFull(Exception):
    """More answers wait than the server holds."""


class Scheduler:
    """Runs jobs in batches, in the order they came.

    Args:
        vlm: the model.
        batch: most answers that run together.
        queue: most answers that wait.
        window: seconds that the first answer of a batch waits for others.
    """

    def __init__(self, vlm: VLM, *, batch: int, queue: int, window: float) -> None:
        self.vlm = vlm
        self.batch, self.queue, self.window = batch, queue, window
        self.on_batch: Callable[[int], None] = lambda size: None
        self.running = 0
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="airvlm-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all jobs, or none: QueueFull."""
        with self._changed:
            if len(self._waiting) + len(jobs) > self.queue:
                self._waiting = deque(job for job in self._waiting if not job.cancelled.is_set())
            if self._closing or len(self._waiting) + len(jobs) > self.queue:
                raise QueueFull
            self._waiting.extend(jobs)
            self._changed.notify_all()

    def close(self, timeout: float) -> None:
        """Finish what waits and runs, then stop; after `timeout` seconds, drop what is left."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        with self._changed:
            for job in self._waiting:
                job.cancelled.set()

    # -- the model's thread

    def _work(self) -> None:
        while (jobs := self._next()) is not None:
            self.running = len(jobs)
            try:
                self._answer(jobs)
            finally:
                self.running = 0

    def _next(self) -> list[Job] | None:
        """The oldest job and those that may run with it; None at the end."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            until = time.monotonic() + self.window
            while len(self._waiting) < self.batch and not self._closing:
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            group = self._waiting[0].group
            chosen = [job for job in self._waiting if job.group == group][: self.batch]
            for job in chosen:
                self._waiting.remove(job)
        return chosen

    def _answer(self, jobs: list[Job]) -> None:
        """Answer all jobs together or, if that fails, each alone, so that one bad request does not harm others."""
        jobs = [job for job in jobs if not job.cancelled.is_set()]  # no prefill for a client that has left
        if not jobs:
            return
        self.on_batch(len(jobs))
        try:
            for job in jobs:
                job.start()
            self._generate(jobs)
        except Exception as error:  # sent to the client; the next batch must run
            if len(jobs) == 1:
                jobs[0].send(Failed(error))
                return
            for job in jobs:
                self._answer([job])

    def _generate(self, jobs: list[Job]) -> None:
        progress = _Progress(jobs, self.vlm.end_ids)
        options: dict[str, Any] = {
            "max_new_tokens": max(job.max_tokens for job in jobs),
            "stopping_criteria": StoppingCriteriaList([progress]),
        }
        if any(job.top_logprobs is not None for job in jobs):
            options["logits_processor"] = LogitsProcessorList([progress.logprobs])
        if (sampling := jobs[0].sampling) is not None:
            options |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
        answers = self.vlm.answer_rows([job.row for job in jobs], jobs[0].method, allow_text_only=True, **options)
        for job, answer in zip(jobs, answers, strict=True):
            job.finish(answer.report)


class _Logprobs(LogitsProcessor):
    """Keeps the log-probabilities of the current step."""

    def __init__(self) -> None:
        self.current: Tensor | None = None  # (B, V)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.current = scores.float().log_softmax(-1)
        return scores

    def of(self, row: int, token: int, top: int) -> TokenLogprob | None:
        if self.current is None:
            return None
        logprobs = self.current[row]
        values, tokens = logprobs.topk(min(top, len(logprobs)))
        return TokenLogprob(token, float(logprobs[token]), tuple(zip(tokens.tolist(), values.tolist())))


class _Progress(StoppingCriteria):
    """Follows every row token by token, and ends those that are done or cancelled."""

    def __init__(self, jobs: Sequence[Job], end_ids: Sequence[int]) -> None:
        self.jobs = jobs
        self.end_ids = set(end_ids)
        self.logprobs = _Logprobs()

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        for row, (job, token) in enumerate(zip(self.jobs, input_ids[:, -1].tolist(), strict=True)):
            if job.cancelled.is_set():
                job.finish_reason = "cancelled"
            elif job.finish_reason is not None:
                continue
            elif token in self.end_ids:
                job.finish_reason = "stop"
            else:
                top = job.top_logprobs
                job.add(token, None if top is None else self.logprobs.of(row, token, top))
        done = [job.finish_reason is not None for job in self.jobs]
        return torch.tensor(done, dtype=torch.bool, device=input_ids.device)
