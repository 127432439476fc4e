"""The queue before the model: answers that wait are given together where method and settings agree.

One thread owns the model. A batch equals its rows, so that an answer does not depend on what else runs; a row that was
called off stops at the next token. Knows nothing of the web.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from airvlm import VLM
from airvlm.report import Report
from airvlm.serve.jobs import Failed, Job, TokenChance

__all__ = ["QueueFull", "Scheduler"]


class QueueFull(Exception):
    """More answers wait than the server promised to hold."""


class Scheduler:
    """Jobs in, batches through the model."""

    def __init__(
        self,
        vlm: VLM,
        *,
        batch: int,
        queue: int,
        window: float,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.vlm = vlm
        self.batch, self.limit, self.window = batch, queue, window
        self.on_batch = on_batch
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
        """All of them wait, or none: QueueFull."""
        with self._changed:
            if self._closing or len(self._waiting) + len(jobs) > self.limit:
                raise QueueFull
            self._waiting.extend(jobs)
            self._changed.notify_all()

    def close(self, timeout: float | None = None) -> None:
        """Finish what waits and runs, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)

    # -- the model's thread

    def _work(self) -> None:
        while (jobs := self._next()) is not None:
            self.running = len(jobs)
            try:
                self._answer(jobs)
            finally:
                self.running = 0

    def _next(self) -> list[Job] | None:
        """The oldest job and what may run with it; None at the end."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            patience = time.monotonic() + self.window
            while len(self._waiting) < self.batch and not self._closing:
                left = patience - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            group = self._waiting[0].group
            chosen = [job for job in self._waiting if job.group == group][: self.batch]
            for job in chosen:
                self._waiting.remove(job)
        return [job for job in chosen if not job.cancelled.is_set()]

    def _answer(self, jobs: list[Job]) -> None:
        """Answers to all, or, where that fails, to each alone, so that one that cannot be given harms no other."""
        if not jobs:
            return
        self.on_batch(len(jobs))
        try:
            for job in jobs:
                job.begin()
            self._generate(jobs)
        except Exception as error:  # told to the client; the next batch must run
            if len(jobs) == 1:
                jobs[0].send(Failed(error))
                return
            for job in jobs:
                self._answer([job])

    def _generate(self, jobs: list[Job]) -> None:
        method = jobs[0].method
        rows = [job.row for job in jobs]
        blind = method is not None and method.needs_images and not rows[0].images
        progress = _Progress(jobs, self.vlm.end_ids, self.vlm.processor.tokenizer.pad_token_id)
        options: dict[str, Any] = {
            "max_new_tokens": max(job.max_tokens for job in jobs),
            "stopping_criteria": StoppingCriteriaList([progress]),
        }
        if any(job.top_logprobs is not None for job in jobs):
            progress.chances = _Chances()
            options["logits_processor"] = LogitsProcessorList([progress.chances])
        if (sampling := jobs[0].sampling) is not None:
            options |= {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p}
            torch.manual_seed(sampling.seed)
        answers = self.vlm.answer_rows(rows, None if blind else method, **options)
        for job, answer, prompt_tokens in zip(jobs, answers, progress.prompts, strict=True):
            report = answer.report
            if blind and method is not None:
                report = Report(method.to_json(), fired=False, reason="this request has no image")
            job.end(prompt_tokens, report)


class _Chances(LogitsProcessor):
    """Keeps the log-probabilities of the step under way."""

    def __init__(self) -> None:
        self.now: Tensor | None = None  # (B, V)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.now = scores.float().log_softmax(-1)
        return scores


class _Progress(StoppingCriteria):
    """Follows every row token by token, and ends those that are done."""

    def __init__(self, jobs: Sequence[Job], ends: Sequence[int], pad: int | None) -> None:
        self.jobs = jobs
        self.ends = set(ends)
        self.pad = pad
        self.prompts: list[int] = []  # tokens of each row's prompt, its padding not counted
        self.chances: _Chances | None = None

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        if not self.prompts:
            prompt = input_ids[:, :-1]
            padding = prompt.eq(-1 if self.pad is None else self.pad).long().cumprod(-1).sum(-1)  # they pad on the left
            self.prompts = (prompt.shape[1] - padding).tolist()
        for i, (job, token) in enumerate(zip(self.jobs, input_ids[:, -1].tolist(), strict=True)):
            if job.cancelled.is_set():
                job.reason = "cancelled"
            elif job.reason is None:
                ends = token in self.ends
                job.take(token, ends, None if ends else self._chance(i, job, token))
        done = [job.reason is not None for job in self.jobs]
        return torch.tensor(done, dtype=torch.bool, device=input_ids.device)

    def _chance(self, i: int, job: Job, token: int) -> TokenChance | None:
        if job.top_logprobs is None or self.chances is None or self.chances.now is None:
            return None
        row = self.chances.now[i]
        chance = TokenChance(token, float(row[token]))
        if job.top_logprobs:
            values, tokens = row.topk(min(job.top_logprobs, len(row)))
            chance = replace(chance, top=tuple(zip(tokens.tolist(), values.tolist())))
        return chance
