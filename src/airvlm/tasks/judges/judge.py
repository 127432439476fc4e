"""A language model as a judge: one question at an OpenAI-compatible endpoint, one recorded verdict.

Endpoint, model and key come from the environment (AIRVLM_JUDGE_URL, AIRVLM_JUDGE_MODEL, AIRVLM_JUDGE_KEY).
Every verdict is kept, word for word, in an append-only file, so that a stopped run goes on where it was and
every score can be computed again. A verdict that could not be had, or could not be read, is missing: it is
never turned into a number. How the endpoint is talked to is endpoint.py; what to ask and how to read the reply
is the tasks' business: this file knows nothing of benchmarks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from airvlm.storage.cache import cache_folder
from airvlm.tasks.judges.endpoint import Declined, Endpoint, JudgeRefused, NoJudge, Passing
from airvlm.tasks.judges.verdicts import VerdictFile

__all__ = [
    "SPENT",
    "Judge",
    "JudgeQuestion",
    "JudgeRefused",
    "NoJudge",
    "Verdict",
    "pairwise",
    "prompt_hash",
    "say",
]

T = TypeVar("T")
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Verdict(Generic[T]):
    """What a judge said to one question. ``value`` is None when nothing readable was said: that is *missing*."""

    value: T | None
    raw: str | None  # the judge's words; of several unreadable tries, the last
    model: str  # the model asked for
    served_by: str | None  # the model that the endpoint says answered
    prompt_hash: str
    error: str | None = None  # why value is None


@dataclass(frozen=True)
class JudgeQuestion(Generic[T]):
    """One question to a judge and the function that reads its reply (None: unreadable)."""

    messages: Messages
    read: Callable[[str], T | None]
    temperature: float = 0.0
    max_tokens: int = 1024
    warming: float = 0.0  # added to the temperature at each new try after an unreadable verdict


def say(user: str, system: str | None = None, image: str | None = None) -> list[dict[str, Any]]:
    """Chat messages: an optional system line, the user's text, and an image given as a data URL."""
    content: Any = user
    if image is not None:
        content = [{"type": "text", "text": user}, {"type": "image_url", "image_url": {"url": image}}]
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": content}]


def prompt_hash(messages: Messages) -> str:
    """SHA-256 of the messages as canonical JSON: two prompts are the same if and only if this is."""
    return hashlib.sha256(json.dumps(list(messages), sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@dataclass
class Spending:
    """What judges cost in this process: requests that were answered, and the tokens that the endpoint counted."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    from_file: int = 0  # questions whose verdict was on file
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def to_json(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}


SPENT = Spending()


@dataclass(frozen=True)
class Judge:
    """One endpoint and model. Hold one for a whole scoring: it shares the file of verdicts between threads."""

    url: str  # base address, e.g. https://api.openai.com/v1
    model: str  # e.g. gpt-4-0613
    key: str | None = field(default=None, repr=False, compare=False)  # never recorded
    verdicts: VerdictFile | None = None  # None: nothing is kept (and nothing resumes)
    timeout: float = 120.0  # seconds for one reply
    attempts: int = 6  # tries against faults that pass
    rereads: int = 3  # tries against verdicts that cannot be read
    pause: float = 1.0  # seconds before the second try; doubles with each
    workers: int = 4  # questions under way at once

    def __post_init__(self) -> None:
        if not re.match(r"https?://", self.url):
            raise NoJudge(
                f"the judge's address must begin with http:// or https://, not {self.url!r}; set AIRVLM_JUDGE_URL"
            )

    @classmethod
    def from_environment(cls, verdicts: str | Path | None = None) -> Judge:
        """The judge that AIRVLM_JUDGE_* describe; verdicts go to AIRVLM_JUDGE_CACHE or the user's cache folder."""
        url, model = os.environ.get("AIRVLM_JUDGE_URL"), os.environ.get("AIRVLM_JUDGE_MODEL")
        if not url or not model:
            raise NoJudge(
                "this benchmark is scored by a judge and none is configured: set AIRVLM_JUDGE_URL "
                "(an OpenAI-compatible "
                "address such as https://api.openai.com/v1), AIRVLM_JUDGE_MODEL and, if it wants "
                "one, AIRVLM_JUDGE_KEY"
            )
        path = Path(verdicts or os.environ.get("AIRVLM_JUDGE_CACHE") or cache_folder() / "verdicts.jsonl")
        return cls(url.rstrip("/"), model, os.environ.get("AIRVLM_JUDGE_KEY") or None, VerdictFile(path))

    def ask(self, question: JudgeQuestion[T]) -> Verdict[T]:
        """The verdict on one question, from the file if it is there; asked again while it cannot be read."""
        digest, error, raw, served = prompt_hash(question.messages), "never asked", None, None
        for reread in range(self.rereads):
            temperature = question.temperature + reread * question.warming
            key = self._key(digest, temperature, question.max_tokens, reread)
            known = self.verdicts.get(key) if self.verdicts else None
            on_file = known is not None
            if known is None:
                try:
                    known = self._said(question, temperature, {"key": key, "prompt": digest, "reread": reread})
                except (Passing, Declined) as fault:
                    return Verdict(None, raw, self.model, served, digest, str(fault))
            raw, served = known["raw"], known.get("served_by")
            value = question.read(raw)
            if not on_file and self.verdicts:  # what cannot be read is kept too, and asked for again another time
                self.verdicts.append(known if value is not None else {**known, "key": f"unreadable {key}"})
            if value is not None:
                SPENT.add(from_file=int(on_file))
                return Verdict(value, raw, self.model, served, digest)
            error = "the verdict could not be read"
        return Verdict(None, raw, self.model, served, digest, error)

    def ask_all(self, questions: Iterable[JudgeQuestion[T]]) -> list[Verdict[T]]:
        """Verdicts in the order of the questions, a few under way at once."""
        with ThreadPoolExecutor(max_workers=self.workers) as pool:
            tasks = [pool.submit(self.ask, question) for question in questions]
            try:
                return [task.result() for task in tasks]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _key(self, digest: str, temperature: float, max_tokens: int, reread: int) -> str:
        return prompt_hash(
            [{"prompt": digest, "model": self.model, "t": temperature, "n": max_tokens, "reread": reread}]
        )

    def _said(self, question: JudgeQuestion[Any], temperature: float, record: dict[str, Any]) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": list(question.messages),
            "temperature": temperature,
            "max_tokens": question.max_tokens,
        }
        endpoint = Endpoint(self.url, self.key, self.timeout, self.attempts, self.pause)
        reply, raw = endpoint.complete(body)
        told = reply.get("usage")
        usage: dict[str, Any] = told if isinstance(told, dict) else {}
        tokens = {name: _count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")}
        SPENT.add(requests=1, **tokens)
        return record | {
            "model": self.model,
            "served_by": reply.get("model"),
            "temperature": temperature,
            "max_tokens": question.max_tokens,
            "raw": raw,
            "time": time.time(),
            **tokens,
        }


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def pairwise(
    judge: Judge,
    pairs: Sequence[tuple[str, str]],
    ask: Callable[[int, str, str], JudgeQuestion[tuple[float, ...]]],
) -> list[tuple[tuple[float, ...], tuple[float, ...]] | None]:
    """Scores of two answers to each item, judged in both orders and averaged, because judges favour a place.

    ``ask(i, first, second)`` poses item i; its verdict has the scores of both in turn (a1, a2, b1, b2, …).
    Returns (scores of the first answer, scores of the second), or None where either order has no verdict.
    """
    questions = [ask(i, *order) for i, (a, b) in enumerate(pairs) for order in ((a, b), (b, a))]
    verdicts = judge.ask_all(questions)
    scores: list[tuple[tuple[float, ...], tuple[float, ...]] | None] = []
    for forth, back in zip(verdicts[::2], verdicts[1::2], strict=True):
        if forth.value is None or back.value is None:
            scores.append(None)
            continue
        ours = tuple((f + b) / 2 for f, b in zip(forth.value[::2], back.value[1::2], strict=True))
        theirs = tuple((f + b) / 2 for f, b in zip(forth.value[1::2], back.value[::2], strict=True))
        scores.append((ours, theirs))
    return scores
