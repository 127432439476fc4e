"""A language model as a judge: questions to an OpenAI-compatible endpoint, and recorded verdicts.

Endpoint, model and key come from the environment (AIRVLM_JUDGE_URL, AIRVLM_JUDGE_MODEL, AIRVLM_JUDGE_KEY). Every
verdict is stored word for word in an append-only file, so an interrupted run resumes and every score can be computed
again. A verdict that cannot be obtained or read is missing; it is never turned into a number.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from airvlm.storage.cache import cache_folder
from airvlm.storage.jsonl import JsonLines

__all__ = [
    "SPENT",
    "Judge",
    "JudgeQuestion",
    "JudgeRefused",
    "NoJudge",
    "Verdict",
    "VerdictFile",
    "ask_in_both_orders",
    "hash_messages",
    "make_messages",
]

T = TypeVar("T")
Messages = Sequence[Mapping[str, Any]]
MAX_REPLY = 4_000_000  # bytes; a judge writes a paragraph, so more means a wrong endpoint
MAX_WAIT = 60.0  # seconds, whatever a Retry-After header asks for


class NoJudge(ValueError):
    """A judged benchmark is to be scored and no judge is configured."""


class JudgeRefused(OSError):
    """The endpoint refuses every question (wrong key, model or address), so scoring stops."""


class _TemporaryFault(Exception):
    """A fault that is worth another try: a rate limit, a server error, a timeout, a reply that is not JSON."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait  # seconds that the server asked for


class _Declined(Exception):
    """The endpoint declined one question for good (HTTP 400, 413, 422: its content or its length)."""


@dataclass(frozen=True)
class Verdict(Generic[T]):
    """What a judge answered to one question; `value` is None if there was no readable answer."""

    value: T | None
    raw: str | None  # the judge's words; of several unreadable answers, the last
    model: str  # the model that was asked for
    served_by: str | None  # the model that answered, as the endpoint says
    prompt_hash: str
    error: str | None = None  # why `value` is None

    def to_json(self) -> dict[str, Any]:
        """What a score's details say about the verdict."""
        judge = self.served_by or self.model
        return {
            "verdict": self.raw,
            "judge": judge,
            "prompt": self.prompt_hash,
            "error": self.error,
            "value": self.value,
        }


@dataclass(frozen=True)
class JudgeQuestion(Generic[T]):
    """One question to a judge and the function that parses the reply (None: unreadable)."""

    messages: Messages
    parse: Callable[[str], T | None]
    temperature: float = 0.0
    max_tokens: int = 1024
    warming: float = 0.0  # added to the temperature at each new try after an unreadable reply


def make_messages(user: str, system: str | None = None, image: str | None = None) -> list[dict[str, Any]]:
    """Chat messages with an optional system message and an optional image, given as a data URL."""
    content: Any = user
    if image is not None:
        content = [{"type": "text", "text": user}, {"type": "image_url", "image_url": {"url": image}}]
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": content}]


def hash_messages(messages: Messages) -> str:
    """SHA-256 of the messages as canonical JSON."""
    return hashlib.sha256(json.dumps(list(messages), sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@dataclass
class Spending:
    """What judges cost in this process: answered requests, and the tokens that the endpoint counted."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    from_file: int = 0  # questions whose verdict was stored
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def to_json(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}


SPENT = Spending()


class VerdictFile:
    """Stored verdicts by key, in JSON lines that several processes may append to.

    The first record of a key counts, so a resumed run repeats itself.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._records: dict[str, dict[str, Any]] = {}
        self._mutex = threading.RLock()
        # readable by the user alone: verdicts may quote what was judged
        self._lines = JsonLines(self.path, self._add_line, mode=0o600)

    def get(self, key: str) -> dict[str, Any] | None:
        with self._mutex:
            if key not in self._records:
                self._lines.refresh()
            return self._records.get(key)

    def append(self, record: Mapping[str, Any]) -> None:
        with self._mutex, self._lines.lock():
            # another process may have asked the same in the meantime
            if str(record["key"]) not in self._records:
                self._lines.append([json.dumps(dict(record), ensure_ascii=True).encode()])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._mutex:
            self._lines.refresh()
            return iter(list(self._records.values()))

    def _add_line(self, line: bytes) -> None:
        record = json.loads(line)
        self._records.setdefault(str(record["key"]), record)


@dataclass(frozen=True)
class Judge:
    """An endpoint and a model. Use one object for a whole scoring: threads share its file of verdicts."""

    url: str  # base address, e.g. https://api.openai.com/v1
    model: str  # e.g. gpt-4-0613
    key: str | None = field(default=None, repr=False, compare=False)  # never recorded
    verdicts: VerdictFile | None = None  # None: nothing is stored, and nothing resumes
    timeout: float = 120.0  # seconds for one reply
    attempts: int = 6  # tries against temporary faults
    rereads: int = 3  # tries against unreadable replies
    pause: float = 1.0  # seconds before the second try; doubles with each try
    workers: int = 4  # questions asked at the same time

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
                "this benchmark is scored by a judge and none is configured: set AIRVLM_JUDGE_URL (an address that is "
                "compatible with OpenAI's, such as https://api.openai.com/v1), AIRVLM_JUDGE_MODEL and, if needed, "
                "AIRVLM_JUDGE_KEY"
            )
        path = Path(verdicts or os.environ.get("AIRVLM_JUDGE_CACHE") or cache_folder() / "verdicts.jsonl")
        return cls(url.rstrip("/"), model, os.environ.get("AIRVLM_JUDGE_KEY") or None, VerdictFile(path))

    def ask(self, question: JudgeQuestion[T]) -> Verdict[T]:
        """The verdict on one question, stored or asked for; an unreadable reply is asked for again."""
        digest, raw, served = hash_messages(question.messages), None, None
        for reread in range(self.rereads):
            temperature = question.temperature + reread * question.warming
            key = self._make_key(digest, temperature, question.max_tokens, reread)
            stored = self.verdicts.get(key) if self.verdicts else None
            try:
                record = stored or self._request(
                    question, temperature, {"key": key, "prompt": digest, "reread": reread}
                )
            except (_TemporaryFault, _Declined) as fault:
                return Verdict(None, raw, self.model, served, digest, str(fault))
            raw, served = record["raw"], record.get("served_by")
            value = question.parse(raw)
            # unreadable replies are stored too, under another key, so they are asked for again another time
            if stored is None and self.verdicts:
                self.verdicts.append(record if value is not None else {**record, "key": f"unreadable {key}"})
            if value is not None:
                SPENT.add(from_file=int(stored is not None))
                return Verdict(value, raw, self.model, served, digest)
        return Verdict(None, raw, self.model, served, digest, "the verdict could not be read")

    def ask_all(self, questions: Iterable[JudgeQuestion[T]]) -> list[Verdict[T]]:
        """Verdicts in the order of the questions, several asked at the same time."""
        with ThreadPoolExecutor(max_workers=self.workers) as pool:
            tasks = [pool.submit(self.ask, question) for question in questions]
            try:
                return [task.result() for task in tasks]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _make_key(self, digest: str, temperature: float, max_tokens: int, reread: int) -> str:
        return hash_messages(
            [{"prompt": digest, "model": self.model, "t": temperature, "n": max_tokens, "reread": reread}]
        )

    def _request(self, question: JudgeQuestion[Any], temperature: float, record: dict[str, Any]) -> dict[str, Any]:
        """Ask the endpoint; a temporary fault is tried again, and after `attempts` it is raised."""
        settings = {"model": self.model, "temperature": temperature, "max_tokens": question.max_tokens}
        for attempt in range(1, max(1, self.attempts) + 1):
            try:
                reply = self._post({**settings, "messages": list(question.messages)})
                raw = _get_content(reply)
                break
            except _TemporaryFault as fault:
                if attempt >= self.attempts:
                    raise
                back_off = self.pause * 2 ** (attempt - 1) * random.uniform(0.75, 1.25)
                time.sleep(min(MAX_WAIT, back_off if fault.wait is None else max(fault.wait, 0.0)))
        usage = reply.get("usage") if isinstance(reply.get("usage"), dict) else {}
        tokens = {name: _get_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")}
        SPENT.add(requests=1, **tokens)
        return record | settings | {"served_by": reply.get("model"), "raw": raw, "time": time.time(), **tokens}

    def _post(self, body: Mapping[str, Any]) -> Any:
        openai = _import_openai()
        try:
            client = _make_client(self.url, self.key or "none", self.timeout)
            reply = client.chat.completions.with_raw_response.create(**body)
            content = reply.http_response.content
            if len(content) > MAX_REPLY:
                raise ValueError(f"a reply of {len(content)} bytes")
            return json.loads(content)
        except openai.APIStatusError as refusal:
            code = refusal.status_code
            message = self._hide_key(f"the judge at {self.url} answered {code}: {refusal.response.text[:300].strip()}")
            if code in (408, 409, 425, 429) or code >= 500:
                raise _TemporaryFault(message, _parse_seconds(refusal.response.headers.get("Retry-After"))) from None
            if code in (400, 413, 422):
                raise _Declined(message) from None
            raise JudgeRefused(f"{message}; check AIRVLM_JUDGE_URL, AIRVLM_JUDGE_MODEL and AIRVLM_JUDGE_KEY") from None
        except (openai.OpenAIError, OSError, ValueError) as fault:  # no connection, a timeout, a broken reply
            raise _TemporaryFault(self._hide_key(f"no usable reply from the judge at {self.url}: {fault}")) from None

    def _hide_key(self, message: str) -> str:
        """A message without the key, in case the endpoint repeats it."""
        return message.replace(self.key, "...") if self.key else message


def _import_openai() -> Any:
    try:
        return import_module("openai")
    except ImportError:
        raise NoJudge("asking a judge needs the openai client: pip install 'airvlm[judge]'") from None


@lru_cache(maxsize=4)
def _make_client(url: str, key: str, timeout: float) -> Any:
    """A client that does not retry (we do) and does not follow redirects, which would send the key elsewhere."""
    openai = _import_openai()
    http = openai.DefaultHttpxClient(follow_redirects=False)
    return openai.OpenAI(base_url=url, api_key=key, timeout=timeout, max_retries=0, http_client=http)


def _get_content(reply: Any) -> str:
    """The text of a reply; an incomplete reply may be complete when it is asked for again."""
    try:
        raw = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise _TemporaryFault(f"the judge's reply has no message: {str(reply)[:200]}") from None
    if not isinstance(raw, str) or not raw.strip():
        raise _TemporaryFault("the judge's reply is empty")
    return raw


def _parse_seconds(header: str | None) -> float | None:
    try:
        return float(header) if header else None
    except ValueError:  # an HTTP date: the usual waiting time is close enough
        return None


def _get_count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def ask_in_both_orders(
    judge: Judge, pairs: Sequence[tuple[str, str]], ask: Callable[[int, str, str], JudgeQuestion[tuple[float, ...]]]
) -> list[tuple[tuple[float, ...], tuple[float, ...]] | None]:
    """Scores of two answers per item, judged in both orders and averaged, because judges prefer a position.

    Args:
        judge: the judge.
        pairs: the two answers to each item.
        ask: (item number, first answer, second answer) -> question, whose verdict has the scores of both in turn
            (a1, a2, b1, b2, ...).

    Returns:
        (scores of the first answer, scores of the second) per item; None if either order has no verdict.
    """
    questions = [ask(i, *order) for i, (a, b) in enumerate(pairs) for order in ((a, b), (b, a))]
    verdicts = judge.ask_all(questions)
    scores: list[tuple[tuple[float, ...], tuple[float, ...]] | None] = []
    for forward, backward in zip(verdicts[::2], verdicts[1::2], strict=True):
        if forward.value is None or backward.value is None:
            scores.append(None)
            continue
        first = tuple((f + b) / 2 for f, b in zip(forward.value[::2], backward.value[1::2], strict=True))
        second = tuple((f + b) / 2 for f, b in zip(forward.value[1::2], backward.value[::2], strict=True))
        scores.append((first, second))
    return scores
