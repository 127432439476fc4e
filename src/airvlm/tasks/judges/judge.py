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
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from airvlm.tasks.judges.verdicts import VerdictFile

__all__ = ["Judge", "JudgeRefused", "NoJudge", "Question", "Verdict", "pairwise", "prompt_hash", "say"]

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
class Question(Generic[T]):
    """One question to a judge and the function that reads its reply (None: unreadable)."""

    messages: Messages
    read: Callable[[str], T | None]
    temperature: float = 0.0
    max_tokens: int = 1024
    warming: float = 0.0  # added to the temperature at each new try after an unreadable verdict


def say(user: str, system: str | None = None, picture: str | None = None) -> list[dict[str, Any]]:
    """Chat messages: an optional system line, the user's text, and a picture given as a data URL."""
    content: Any = user
    if picture is not None:
        content = [{"type": "text", "text": user}, {"type": "image_url", "image_url": {"url": picture}}]
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": content}]


def prompt_hash(messages: Messages) -> str:
    """SHA-256 of the messages as canonical JSON: two prompts are the same if and only if this is."""
    return hashlib.sha256(json.dumps(list(messages), sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


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
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airvlm" / "verdicts.jsonl"
        path = Path(verdicts or os.environ.get("AIRVLM_JUDGE_CACHE") or cache)
        return cls(url.rstrip("/"), model, os.environ.get("AIRVLM_JUDGE_KEY") or None, VerdictFile(path))

    def ask(self, question: Question[T]) -> Verdict[T]:
        """The verdict on one question, from the file if it is there; asked again while it cannot be read."""
        digest, error, raw, served = prompt_hash(question.messages), "never asked", None, None
        for reread in range(self.rereads):
            temperature = question.temperature + reread * question.warming
            key = self._key(digest, temperature, question.max_tokens, reread)
            known = self.verdicts.get(key) if self.verdicts else None
            if known is None:
                try:
                    known = self._said(
                        question, temperature, {"key": key, "prompt": digest, "reread": reread}
                    )
                except (_Passing, _Declined) as fault:
                    return Verdict(None, raw, self.model, served, digest, str(fault))
            raw, served = known["raw"], known.get("served_by")
            value = question.read(raw)
            if value is not None:
                return Verdict(value, raw, self.model, served, digest)
            error = "the verdict could not be read"
        return Verdict(None, raw, self.model, served, digest, error)

    def ask_all(self, questions: Iterable[Question[T]]) -> list[Verdict[T]]:
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

    def _said(self, question: Question[Any], temperature: float, record: dict[str, Any]) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": list(question.messages),
            "temperature": temperature,
            "max_tokens": question.max_tokens,
        }
        reply = self._insist(body)
        try:
            raw = reply["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise _Passing(f"the judge's reply has no message: {str(reply)[:200]}") from None
        record |= {
            "model": self.model,
            "served_by": reply.get("model"),
            "temperature": temperature,
            "max_tokens": question.max_tokens,
            "raw": raw if isinstance(raw, str) else "",
            "time": time.time(),
        }
        if self.verdicts:
            self.verdicts.append(record)
        return record

    def _insist(self, body: Mapping[str, Any]) -> Any:
        """Post until it succeeds; after ``attempts`` the last passing fault is final."""
        for attempt in range(self.attempts):
            try:
                return self._post(body)
            except _Passing as fault:
                if attempt + 1 == self.attempts:
                    raise
                back_off = self.pause * 2**attempt * random.uniform(0.75, 1.25)
                time.sleep(min(LONGEST_WAIT, back_off if fault.wait is None else max(fault.wait, 0.0)))
        raise _Passing("attempts must be at least 1")

    def _post(self, body: Mapping[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.key}"} if self.key else {}
        )
        request = urllib.request.Request(
            f"{self.url}/chat/completions", json.dumps(body).encode(), headers, method="POST"
        )
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.timeout) as response:
                return json.loads(response.read(LARGEST_REPLY))
        except urllib.error.HTTPError as refusal:
            said = refusal.read(300).decode(errors="replace").strip()
            message = f"the judge at {self.url} answered {refusal.code}: {said}"
            if refusal.code in (408, 409, 425, 429) or refusal.code >= 500:
                raise _Passing(message, _seconds(refusal.headers.get("Retry-After"))) from None
            if refusal.code in (400, 413, 422):
                raise _Declined(message) from None
            raise JudgeRefused(
                f"{message}; check AIRVLM_JUDGE_URL, AIRVLM_JUDGE_MODEL and AIRVLM_JUDGE_KEY"
            ) from None
        except (OSError, ValueError) as fault:  # no connection, a timeout, a broken reply, not JSON
            raise _Passing(f"no usable reply of the judge at {self.url}: {fault}") from None


def _seconds(header: str | None) -> float | None:
    try:
        return float(header) if header else None
    except ValueError:  # an HTTP date: the usual back-off is near enough
        return None


def pairwise(
    judge: Judge,
    pairs: Sequence[tuple[str, str]],
    ask: Callable[[int, str, str], Question[tuple[float, ...]]],
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
