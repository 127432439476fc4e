"""The queue in front of the model: answers that wait run together where their methods and settings agree.

One thread owns the model. A batch equals its rows run alone, so an answer does not depend on what else runs. Greedy
answers under methods that act in the prefill alone also join a batch that is being decoded (decoding.py).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from airvlm import VLM, Method
from airvlm.serve.decoding import CannotJoin, DecodingBatch, decodes_as_vanilla, rows_can_join
from airvlm.serve.jobs import Failed, Job, TokenLogprob

__all__ = ["QueueFull", "Scheduler"]

KNOWN = 256  # methods whose kind is remembered
PATIENCE = 8  # steps that a few new answers wait for more of them before they join a batch


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
        self._decoding = DecodingBatch(vlm)
        self._can_join = rows_can_join(vlm)
        self._vanilla: dict[Method | None, bool] = {}  # methods that are decoded as the model without one
        self._postponed = 0  # steps that the oldest job has let pass
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
            self.running = len(jobs) + len(self._decoding)
            try:
                if jobs:
                    self._run(jobs, joins=self._joins(jobs[0]))
                else:
                    self._step()
            finally:
                self.running = len(self._decoding)

    def _next(self) -> list[Job] | None:
        """The oldest job and those that may run with it; none if those under way go on first; None at the end."""
        with self._changed:
            while not self._waiting and not self._decoding:
                if self._closing:
                    return None
                self._changed.wait()
            if not self._waiting:
                return []
            until = time.monotonic() + self.window
            while not self._decoding and len(self._waiting) < self.batch and not self._closing:
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            if not self._waiting:  # all have left meanwhile
                return []
            first = self._waiting[0]
        joins = self._joins(first)  # not inside the lock, for which clients wait
        with self._changed:
            chosen = [job for job in self._waiting if job.group == first.group]
            chosen = chosen[: self.batch - len(self._decoding) if joins else self.batch]
            if self._decoding and joins and not self._worth_joining(len(chosen)):
                self._postponed += 1
                return []
            self._postponed = 0
            for job in chosen:
                self._waiting.remove(job)
        return chosen

    def _joins(self, job: Job) -> bool:
        """Whether a job can be decoded with others that began before it."""
        if not self._can_join or job.sampling is not None or job.top_logprobs is not None:
            return False
        if job.method is not None and job.method.needs_images and not job.row.images:
            return False  # answered without its method, and told so
        if job.method not in self._vanilla:
            if len(self._vanilla) >= KNOWN:  # requests choose options
                self._vanilla.clear()
            try:
                self._vanilla[job.method] = decodes_as_vanilla(job.method, self.vlm)
            except Exception:  # the method does not suit the model: the client is told when the job runs
                self._vanilla[job.method] = False
        return self._vanilla[job.method]

    def _worth_joining(self, jobs: int) -> bool:
        """Whether to prefill so many jobs now. All others wait meanwhile, and few at a time cost more each."""
        enough = jobs >= max(1, self.batch // 4) or 3 * jobs >= len(self._decoding)
        return jobs > 0 and (enough or self._postponed >= PATIENCE)

    def _run(self, jobs: list[Job], *, joins: bool) -> None:
        """Answer all jobs together or, if that fails, each alone, so that one bad request does not harm others.

        Args:
            jobs: may run together.
            joins: only prefill them now, and decode them with the answers under way.
        """
        jobs = [job for job in jobs if not job.cancelled.is_set()]  # no prefill for a client that has left
        if not jobs:
            return
        self.on_batch(len(jobs))
        try:
            for job in jobs:
                job.start()
            if joins:
                self._decoding.join(jobs)
            else:
                self._generate(jobs)
        except CannotJoin:
            self._can_join = False
            self._run(jobs, joins=False)
        except Exception as error:  # sent to the client; the next batch must run
            if len(jobs) == 1 and not joins:
                jobs[0].send(Failed(error))
                return
            for job in jobs:
                self._run([job], joins=joins and len(jobs) > 1)

    def _step(self) -> None:
        if not self._decoding:
            return  # who waited has left
        try:
            self._decoding.step()
        except Exception:  # of memory, say
            for job in self._decoding.clear():
                if job.finish_reason is None:
                    self._run([job], joins=False)

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
            top = job.top_logprobs
            wanted = top is not None and job.finish_reason is None
            job.take(token, self.end_ids, self.logprobs.of(row, token, top or 0) if wanted else None)
        done = [job.finish_reason is not None for job in self.jobs]
        return torch.tensor(done, dtype=torch.bool, device=input_ids.device)
