"""The answer store: one append-only file of JSON lines per folder.

A record is one answer of one method to one item, with everything that could have changed it. Its key is a hash of
exactly those things, so that a run resumes by asking which keys are missing. A key is written once, by the first
process that answers it. A record with a trace also holds the answers to other keys (other biases, shorter caps),
which are found like any other.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airvlm.evaluation.traces import TraceRequest, derive_answer, split_bias, trace_covers
from airvlm.storage.jsonl import JsonLines, StoreError

__all__ = ["FILE", "Json", "Record", "RecordKey", "Store", "StoreError", "digest"]

FILE = "answers.jsonl"
CAP = "max_new_tokens"
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

    def __hash__(self) -> int:
        return hash(self.digest)

    @functools.cached_property
    def split(self) -> tuple[str, str, float, int | None]:
        """What a trace may vary, and the rest: (digest of the rest, control, bias, token cap)."""
        base, control, bias = split_bias(self.method)
        generation = {name: value for name, value in self.generation.items() if name != CAP}
        rest = {name: getattr(self, name) for name in _KEY} | {"method": base, "generation": generation}
        return digest(rest)[:32], control, bias, self.generation.get(CAP)


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
    trace: Json | None = None  # answers under other biases and caps, see traces.py
    source: str = ""  # of an answer that was read from a trace: the digest of its record's key; never written

    def to_line(self) -> bytes:
        content = {"key": self.key.digest, **{name: getattr(self.key, name) for name in _KEY}}
        content |= {name: getattr(self, name) for name in _ANSWER if name != "trace" or self.trace is not None}
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
            trace = content.pop("trace", None)  # each has its own
            content = {**_share_parts(content, shared), "trace": trace}
        key = RecordKey(**{name: content[name] for name in _KEY})
        return cls(key, **{name: content[name] for name in _ANSWER if name in content})

    def derive(self, key: RecordKey) -> Record | None:
        """The answer to another key, if this record's trace holds it; the keys differ in a bias or a cap only."""
        _, control, bias, cap = key.split
        found = None if self.trace is None else derive_answer(self.trace, control, bias, cap)
        if found is None:
            return None
        report: Json | None = self.report
        if bias:
            last = {"name": control, "fired": True}
            parts = (
                [] if report is None else report.get("parts") or [{"name": (self.key.method or {})["name"], **report}]
            )
            report = {"fired": True, **({"parts": [*parts, last]} if parts else {})}
        text, tokens, finished = found.text, found.tokens, found.finished
        own = replace(self, key=key, text=text, tokens=tokens, finished=finished, report=report)
        return replace(own, trace=None, source=self.key.digest)


_KEY = [f.name for f in dataclasses.fields(RecordKey)]
_ANSWER = [f.name for f in dataclasses.fields(Record) if f.name not in ("key", "source")]


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


def _holds_more(record: Record, held: Record | None) -> bool:
    """Whether a record has a trace that holds what the stored one does not."""
    if record.error is not None or record.trace is None or held is None or held.trace == record.trace:
        return False
    if held.trace is None or "refused" in held.trace:
        return True
    if record.trace.get("control") == held.trace["control"] == "eos-bias":
        return bool(record.trace["low"] < held.trace["low"])
    return "refused" not in record.trace


class Store:
    """The records of one folder; any number of processes may have it open.

    Args:
        folder: where `answers.jsonl` is or will be.
        readonly: the folder must have answers, and nothing is written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, readonly: bool = False) -> None:
        self.folder = Path(folder)
        self._records: dict[str, Record] = {}
        self._traced: dict[str, dict[str, Record]] = {}  # digest of what a trace does not vary -> records with traces
        self._failed: set[str] = set()  # likewise, of records with errors
        self._shared: dict[str, Any] = {}  # parts that records have in common
        self._lines = JsonLines(self.folder / FILE, self._take, others="answers*.jsonl")
        self._readonly = readonly
        if readonly and not self._lines.exists():
            raise StoreError(f"{self.folder} has no answers: {FILE} is missing")
        if readonly:
            self._lines.refresh()
        else:
            try:
                with self._lines.lock():  # repairs a torn line even if nothing is left to write
                    pass
            except StoreError as error:
                raise StoreError(f"{error} (--output)") from error
        self._lines.refresh_others()

    @property
    def broken(self) -> int:
        """Complete lines that are not records (a damaged file); their items count as unanswered."""
        return self._lines.broken

    def __contains__(self, key: RecordKey | str) -> bool:
        """Whether a key, or a key's digest, has an answer; only a key finds those in traces.

        An error does not count, so that the next run tries again.
        """
        record = self._records.get(key) if isinstance(key, str) else self.find(key)
        return record is not None and record.error is None

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def get(self, key: str) -> Record | None:
        return self._records.get(key)

    def find(self, key: RecordKey) -> Record | None:
        """A key's own record, or its answer in a trace."""
        held = self._records.get(key.digest)
        if held is None or held.error is not None:
            traced = self._traced.get(key.split[0], {}).values()
            held = next((found for record in traced if (found := record.derive(key))), held)
        return held

    def is_failed(self, key: RecordKey) -> bool:
        """Whether the run whose trace would hold this key's answer ended in an error."""
        return key.split[0] in self._failed

    def covers(self, key: RecordKey, request: TraceRequest) -> bool:
        """Whether a record's trace holds what is asked of it, or was refused."""
        traced = self._traced.get(key.split[0], {}).values()
        return any(trace_covers(record.trace, request, key.split[3]) for record in traced)

    def refresh(self) -> None:
        """Read what other processes appended since the last call."""
        self._lines.refresh()

    def _take(self, line: bytes) -> None:
        record = Record.from_line(line, self._shared)
        if record.key.digest not in self or record.error is None:  # an answer replaces an error, never the reverse
            self._records[record.key.digest] = record
            base, control, _, _ = record.key.split
            if not control:
                (self._failed.add if record.error is not None else self._failed.discard)(base)
            if record.trace is not None and record.error is None:
                self._traced.setdefault(base, {})[record.key.digest] = record

    def extend(self, records: Iterable[Record]) -> int:
        """Append the records that the store does not have, in one write; returns their number."""
        if self._readonly:
            raise StoreError(f"{self.folder} was opened for reading only")
        with self._lines.lock():
            lines: dict[str, bytes] = {}
            for record in records:
                held = self._records.get(record.key.digest)
                new = held is None or (held.error is not None and held.error != record.error)
                if new or _holds_more(record, held):
                    lines[record.key.digest] = record.to_line()
            self._lines.append(lines.values())
        return len(lines)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
