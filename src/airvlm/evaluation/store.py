"""The answer store: one append-only file of JSON lines per folder.

A record is one answer of one method to one item, with everything that could have changed it. Its key is a hash of
exactly those things, so that a run resumes by asking which keys are missing. A key is written once, whoever answers it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airvlm.storage.jsonl import JsonLines, StoreError

__all__ = ["FILE", "Json", "Record", "RecordKey", "Store", "StoreError", "digest"]

FILE = "answers.jsonl"
Json = dict[str, Any]


def digest(content: Any) -> str:
    """A hash of any JSON value, whatever the order of its fields."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class RecordKey:
    """Everything that can change an answer."""

    task: str
    item: str  # the item's id within the task
    image: str  # hash of the image's content; "" without one
    prompt: str
    fingerprint: str  # of the model's configuration and weights
    method: Json | None  # the method's JSON; None is vanilla
    generation: Json  # token cap, decoding, and noise on the image
    versions: Json  # of the libraries that computed it

    @functools.cached_property
    def digest(self) -> str:
        return digest({name: getattr(self, name) for name in _KEY})[:32]


@dataclass(frozen=True)
class Record:
    """One line of the store: an answer, or the error in place of one."""

    key: RecordKey
    text: str | None = None  # None if it failed: an error is never an empty answer
    tokens: int = 0
    finished: bool = False  # ended by the end token, not by the token cap
    seconds: float = 0.0  # this answer's share of its batch
    report: Json | None = None  # what the method did
    error: str | None = None
    extra: Json = field(default_factory=dict)  # model name, device, the task's settings: not part of the key

    def to_line(self) -> bytes:
        content = {"key": self.key.digest, **{name: getattr(self.key, name) for name in _KEY}}
        content |= {name: getattr(self, name) for name in _ANSWER}
        return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes, shared: dict[str, Any] | None = None) -> Record:
        """A record from its line.

        Args:
            line: what `to_line` wrote.
            shared: parts of earlier records, which are reused and added to.
        """
        content = json.loads(line)
        if shared is not None:
            content = _share_parts(content, shared)
        key = RecordKey(**{name: content[name] for name in _KEY})
        return cls(key, **{name: content[name] for name in _ANSWER if name in content})


_KEY = [f.name for f in dataclasses.fields(RecordKey)]
_ANSWER = [f.name for f in dataclasses.fields(Record) if f.name != "key"]


def _share_parts(content: Json, shared: dict[str, Any]) -> Json:
    """The same record in a tenth of the memory: parts that records have in common, such as crops, are held once."""

    def share(part: Any) -> Any:
        if isinstance(part, str):
            return sys.intern(part)
        return shared.setdefault(repr(part), part) if isinstance(part, dict | list) else part

    report = content.get("report")
    if isinstance(report, dict):
        content["report"] = {name: share(part) for name, part in report.items()}
    return {name: part if part is content.get("report") else share(part) for name, part in content.items()}


class Store:
    """The records of one folder; any number of processes may have it open.

    Args:
        folder: where `answers.jsonl` is or will be.
        readonly: the folder must have answers, and nothing is written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, readonly: bool = False) -> None:
        self.folder = Path(folder)
        self._records: dict[str, Record] = {}
        self._shared: dict[str, Any] = {}  # parts that records have in common
        self._lines = JsonLines(self.folder / FILE, self._take, others="answers*.jsonl")
        self._readonly = readonly
        if readonly and not self._lines.exists():
            raise StoreError(f"{self.folder} has no answers: {FILE} is missing")
        if readonly:
            self._lines.refresh()
        else:
            try:
                with self._lines.locked():  # repairs a torn line even if nothing is left to write
                    pass
            except StoreError as error:
                raise StoreError(f"{error} (--output)") from error
        self._lines.refresh_others()

    @property
    def broken(self) -> int:
        """Complete lines that are not records (a damaged file); their items count as unanswered."""
        return self._lines.broken

    def __contains__(self, key: str) -> bool:
        """Whether a key's digest has an answer. An error does not count, so that the next run tries again."""
        record = self._records.get(key)
        return record is not None and record.error is None

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def get(self, key: str) -> Record | None:
        return self._records.get(key)

    def refresh(self) -> None:
        """Read what other processes appended since the last call."""
        self._lines.refresh()

    def _take(self, line: bytes) -> None:
        record = Record.from_line(line, self._shared)
        if record.key.digest not in self or record.error is None:  # an answer replaces an error, never the reverse
            self._records[record.key.digest] = record

    def extend(self, records: Iterable[Record]) -> int:
        """Append the records that the store does not have, in one write; returns their number."""
        if self._readonly:
            raise StoreError(f"{self.folder} was opened for reading only")
        with self._lines.locked():
            lines: dict[str, bytes] = {}
            for record in records:
                held = self._records.get(record.key.digest)
                if held is None or (held.error is not None and held.error != record.error):
                    lines[record.key.digest] = record.to_line()
            self._lines.append(lines.values())
        return len(lines)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
