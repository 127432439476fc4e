"""A language model as a judge: one question at an OpenAI-compatible endpoint, one recorded verdict.

Endpoint, model and key come from the environment (AIRVLM_JUDGE_URL, AIRVLM_JUDGE_MODEL, AIRVLM_JUDGE_KEY).
Every verdict is kept, word for word, in an append-only file, so that a stopped run goes on where it was and
every score can be computed again. A verdict that could not be had, or could not be read, is missing: it is
never turned into a number. This file knows nothing of benchmarks: what to ask and how to read the reply is
the tasks' business.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from airvlm.storage.cache import cache_folder
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

LARGEST_REPLY = 4_000_000  # bytes; a judge says a paragraph, so more is a wrong endpoint
LONGEST_WAIT = 60.0  # seconds, whatever a Retry-After header asks for


class NoJudge(ValueError):
    """A judged benchmark was to be scored and no judge is configured."""


class JudgeRefused(OSError):
    """The endpoint refuses every question (wrong key, model or address): no use in going on."""


class _Passing(Exception):
    """A fault that may pass: a rate limit, a server error, a timeout, a reply that is not JSON."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait  # seconds the server asked for


class _Declined(Exception):
    """The endpoint declined this one question for good (HTTP 400, 413, 422: its content, its length)."""


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
                f"the judge's address must begin with http:// or https://, not {self.url!r}; set "
                f"AIRVLM_JUDGE_URL"
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
                    known = self._said(
                        question, temperature, {"key": key, "prompt": digest, "reread": reread}
                    )
                except (_Passing, _Declined) as fault:
                    return Verdict(None, raw, self.model, served, digest, str(fault))
            raw, served = known["raw"], known.get("served_by")
            value = question.read(raw)
            if (
                not on_file and self.verdicts
            ):  # what cannot be read is kept too, and asked for again another time
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

    def _said(
        self, question: JudgeQuestion[Any], temperature: float, record: dict[str, Any]
    ) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": list(question.messages),
            "temperature": temperature,
            "max_tokens": question.max_tokens,
        }
        reply, raw = self._insist(body)
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

    def _insist(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Post until there is a whole reply; after ``attempts`` the last passing fault is final."""
        for attempt in range(self.attempts):
            try:
                return _whole(self._post(body))
            except _Passing as fault:
                if attempt + 1 == self.attempts:
                    raise
                back_off = self.pause * 2**attempt * random.uniform(0.75, 1.25)
                time.sleep(min(LONGEST_WAIT, back_off if fault.wait is None else max(fault.wait, 0.0)))
        raise _Passing("attempts must be at least 1")

    def _post(self, body: Mapping[str, Any]) -> Any:
        openai = _openai()
        try:
            reply = self._client().chat.completions.with_raw_response.create(**body)
            content = reply.http_response.content
            if len(content) > LARGEST_REPLY:
                raise ValueError(f"a reply of {len(content)} bytes")
            return json.loads(content)
        except openai.APIStatusError as refusal:
            code = refusal.status_code
            message = self._clean(
                f"the judge at {self.url} answered {code}: {refusal.response.text[:300].strip()}"
            )
            if code in (408, 409, 425, 429) or code >= 500:
                raise _Passing(message, _seconds(refusal.response.headers.get("Retry-After"))) from None
            if code in (400, 413, 422):
                raise _Declined(message) from None
            raise JudgeRefused(
                f"{message}; check AIRVLM_JUDGE_URL, AIRVLM_JUDGE_MODEL and AIRVLM_JUDGE_KEY"
            ) from None
        except (openai.OpenAIError, OSError, ValueError) as fault:  # no connection, a timeout, a broken reply
            raise _Passing(self._clean(f"no usable reply of the judge at {self.url}: {fault}")) from None

    def _client(self) -> Any:
        """A client that neither tries again (we count and wait) nor follows a redirect, which would carry the key."""
        return _client(self.url, self.key or "none", self.timeout)

    def _clean(self, message: str) -> str:
        """A message without the key, should the endpoint have repeated it."""
        return message.replace(self.key, "…") if self.key else message


def _openai() -> Any:
    try:
        return import_module("openai")
    except ImportError:
        raise NoJudge("asking a judge needs the openai client: pip install 'airvlm[judge]'") from None


@lru_cache(maxsize=4)
def _client(url: str, key: str, timeout: float) -> Any:
    openai = _openai()
    http = openai.DefaultHttpxClient(follow_redirects=False)
    return openai.OpenAI(base_url=url, api_key=key, timeout=timeout, max_retries=0, http_client=http)


def _whole(reply: Any) -> tuple[dict[str, Any], str]:
    """A reply and the words in it; half a reply may be whole when it is asked for again."""
    try:
        raw = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise _Passing(f"the judge's reply has no message: {str(reply)[:200]}") from None
    if not isinstance(raw, str) or not raw.strip():
        raise _Passing("the judge's reply is empty")
    return reply, raw


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _seconds(header: str | None) -> float | None:
    try:
        return float(header) if header else None
    except ValueError:  # an HTTP date: the usual back-off is near enough
        return None


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
