"""An OpenAI-compatible endpoint: one request, tried again while its fault may pass, and what the reply says.

Knows nothing of verdicts or of what is asked.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

__all__ = ["Declined", "Endpoint", "JudgeRefused", "NoJudge", "Passing"]

LARGEST_REPLY = 4_000_000  # bytes; a judge says a paragraph, so more is a wrong endpoint
LONGEST_WAIT = 60.0  # seconds, whatever a Retry-After header asks for


class NoJudge(ValueError):
    """A judged benchmark was to be scored and no judge is configured."""


class JudgeRefused(OSError):
    """The endpoint refuses every question (wrong key, model or address): no use in going on."""


class Passing(Exception):
    """A fault that may pass: a rate limit, a server error, a timeout, a reply that is not JSON."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait  # seconds the server asked for


class Declined(Exception):
    """The endpoint declined this one question for good (HTTP 400, 413, 422: its content, its length)."""


@dataclass(frozen=True)
class Endpoint:
    """Where a judge is asked, and how patiently."""

    url: str
    key: str | None = field(repr=False)
    timeout: float  # seconds for one reply
    attempts: int  # tries against faults that pass
    pause: float  # seconds before the second try; doubles with each

    def complete(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Post until there is a whole reply; after ``attempts`` the last passing fault is final."""
        for attempt in range(self.attempts):
            try:
                return _whole(self._post(body))
            except Passing as fault:
                if attempt + 1 == self.attempts:
                    raise
                back_off = self.pause * 2**attempt * random.uniform(0.75, 1.25)
                time.sleep(min(LONGEST_WAIT, back_off if fault.wait is None else max(fault.wait, 0.0)))
        raise Passing("attempts must be at least 1")

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
            message = self._clean(f"the judge at {self.url} answered {code}: {refusal.response.text[:300].strip()}")
            if code in (408, 409, 425, 429) or code >= 500:
                raise Passing(message, _seconds(refusal.response.headers.get("Retry-After"))) from None
            if code in (400, 413, 422):
                raise Declined(message) from None
            raise JudgeRefused(f"{message}; check AIRVLM_JUDGE_URL, AIRVLM_JUDGE_MODEL and AIRVLM_JUDGE_KEY") from None
        except (openai.OpenAIError, OSError, ValueError) as fault:  # no connection, a timeout, a broken reply
            raise Passing(self._clean(f"no usable reply of the judge at {self.url}: {fault}")) from None

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
        raise Passing(f"the judge's reply has no message: {str(reply)[:200]}") from None
    if not isinstance(raw, str) or not raw.strip():
        raise Passing("the judge's reply is empty")
    return reply, raw


def _seconds(header: str | None) -> float | None:
    try:
        return float(header) if header else None
    except ValueError:  # an HTTP date: the usual back-off is near enough
        return None
