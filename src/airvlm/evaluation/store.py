"""The answer store: one append-only file of JSON lines, safe to kill and safe to share.

A record is one answer of one method to one item, with everything that could have changed it; its key is a
hash of exactly those things, so that a run resumes by asking which keys are missing. The store knows nothing
about tasks, scores or models.

A key is written once, whoever answers it; how the file survives kills, full disks and other writers is told in
airvlm.storage.jsonl.
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

__all__ = ["FILE", "Json", "Query", "Record", "Store", "StoreError", "digest"]

FILE = "answers.jsonl"
Json = dict[str, Any]


def digest(content: Any) -> str:
    """A hash of any JSON value that does not depend on the order of its fields."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# field -> its name in files and keys, where it is another: a new name would be another key for every answer kept
_WRITTEN = {"image": "picture"}


@dataclass(frozen=True)
class Query:
    """What is asked of whom: every field can change the answer, and together they are its key."""

    task: str
    item: str  # the item's id within the task
    image: str  # hash of the image's content, "" without one
    prompt: str
    fingerprint: str  # of the model's configuration and weights
    method: Json | None  # the method's configuration; None is plain greedy decoding
    generation: Json  # token cap and all decoding settings, and what was done to the image
    versions: Json  # of the libraries that computed it

    def to_json(self) -> Json:
        return {_WRITTEN.get(f.name, f.name): getattr(self, f.name) for f in dataclasses.fields(self)}

    @functools.cached_property  # asked for at every step of a run
    def key(self) -> str:
        return digest(self.to_json())[:32]


@dataclass(frozen=True)
class Record:
    """One line of the store: a question, and its answer or the error in place of one."""

    question: Query
    text: str | None = None  # None when it failed: an error is never an empty answer
    tokens: int = 0
    finished: bool = False  # ended by the end token, not by the cap
    seconds: float = 0.0  # this answer's share of its batch
    report: Json | None = None  # what the method did
    error: str | None = None
    extra: Json = field(default_factory=dict)  # model name, device: worth knowing, not part of the key

    @property
    def key(self) -> str:
        return self.question.key

    def to_line(self) -> bytes:
        content = {"key": self.key, **self.question.to_json()}
        content |= {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "question"}
        return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes, shared: dict[str, Any] | None = None) -> Record:
        """shared: parts that records before it had, which it takes from there and adds to."""
        content = json.loads(line)
        if shared is not None:
            content = _with_shared(content, shared)
        question = Query(**{name: content[written] for name, written in _QUERY})
        return cls(question=question, **{name: content[name] for name in _ANSWER if name in content})


# field -> its name in files
_QUERY = [(f.name, _WRITTEN.get(f.name, f.name)) for f in dataclasses.fields(Query)]
_ANSWER = [f.name for f in dataclasses.fields(Record) if f.name != "question"]


def _with_shared(content: Json, shared: dict[str, Any]) -> Json:
    """The same record, in a tenth of the memory: what others say too, such as an image's crops, is held once."""

    def once(part: Any) -> Any:
        if isinstance(part, str):
            return sys.intern(part)
        return shared.setdefault(repr(part), part) if isinstance(part, dict | list) else part

    report = content.get("report")
    if isinstance(report, dict):
        content["report"] = {name: once(part) for name, part in report.items()}
    return {name: part if part is content.get("report") else once(part) for name, part in content.items()}


class Store:
    """The records of one folder; any number of processes may have it open."""

    def __init__(self, folder: str | os.PathLike[str], *, readonly: bool = False) -> None:
        self.folder = Path(folder)
        self._records: dict[str, Record] = {}
        self._shared: dict[str, Any] = {}  # parts of records
        self._lines = JsonLines(self.folder / FILE, self._take, others="answers*.jsonl")
        self._readonly = readonly
        if readonly and not self._lines.exists():
            raise StoreError(f"{self.folder} holds no answers: expected {self.folder / FILE}")
        if readonly:
            self._lines.refresh()
        else:
            try:
                with self._lines.locked():  # a resumed run with nothing left to write still repairs the file
                    pass
            except StoreError as error:
                raise StoreError(f"{error} (another folder with --out)") from error
        self._lines.refresh_others()

    # -- reading

    @property
    def broken(self) -> int:
        """Complete lines that are no records (a damaged file): their items count as unanswered."""
        return self._lines.broken

    def __contains__(self, key: str) -> bool:
        """Whether the key has an answer; an error does not count, so that the next run tries again."""
        record = self._records.get(key)
        return record is not None and record.error is None

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def get(self, key: str) -> Record | None:
        return self._records.get(key)

    def refresh(self) -> None:
        """Read what other processes appended since the last look."""
        self._lines.refresh()

    def _take(self, line: bytes) -> None:
        record = Record.from_line(line, self._shared)
        if record.key not in self or record.error is None:  # an answer outlives an error, never the reverse
            self._records[record.key] = record

    # -- writing

    def extend(self, records: Iterable[Record]) -> int:
        """Append the records that the store lacks, in one write; returns how many were new."""
        if self._readonly:
            raise StoreError(f"{self.folder} was opened for reading only")
        with self._lines.locked():
            lines: dict[str, bytes] = {}
            for record in records:
                held = self._records.get(record.key)
                if held is None or (held.error is not None and held.error != record.error):
                    lines[record.key] = record.to_line()
            self._lines.append(lines.values())
        return len(lines)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
