"""The answer store: one append-only file of JSON lines, safe to kill and safe to share.

A record is one answer of one method to one item, with everything that could have changed it; its key is a
hash of exactly those things, so that a run resumes by asking which keys are missing. The store knows nothing
about tasks, scores or models.

Every write happens under the file's lock, as whole lines, after reading what other processes appended: a key
is written once, whoever answers it. A line torn by a killed writer is cut off by the next one. A full disk
leaves the file as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

FILE = "answers.jsonl"
Json = dict[str, Any]


class StoreError(OSError):
    """The answer file cannot be written; what it holds is intact."""


def digest(content: Any) -> str:
    """A hash of any JSON value that does not depend on the order of its fields."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Question:
    """What is asked of whom: every field can change the answer, and together they are its key."""

    task: str
    item: str  # the item's id within the task
    picture: str  # hash of the picture's content; "" without a picture
    prompt: str
    fingerprint: str  # of the model's configuration and weights
    method: Json | None  # the method's configuration; None is plain greedy decoding
    generation: Json  # token cap and all decoding settings, and what was done to the picture
    versions: Json  # of the libraries that computed it

    def to_json(self) -> Json:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @functools.cached_property  # asked for at every step of a run
    def key(self) -> str:
        return digest(self.to_json())[:32]


@dataclass(frozen=True)
class Record:
    """One line of the store: a question, and its answer or the error in place of one."""

    question: Question
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
    def from_line(cls, line: bytes) -> Record:
        content = json.loads(line)
        question = Question(**{f.name: content[f.name] for f in dataclasses.fields(Question)})
        answer = {f.name: content[f.name] for f in dataclasses.fields(cls) if f.name in content}
        return cls(question=question, **answer)


class Store:
    """The records of one folder; any number of processes may have it open."""

    def __init__(self, folder: str | os.PathLike[str], *, readonly: bool = False) -> None:
        self.folder = Path(folder)
        self.broken = (
            0  # complete lines that are no records (a damaged file): their items count as unanswered
        )
        self._records: dict[str, Record] = {}
        self._offset = 0  # bytes of our file already read; always at the start of a line
        self._file: BinaryIO | None = None
        if not readonly:
            self._file = self._open(self.folder / FILE)
        elif not any(self.folder.glob("answers*.jsonl")):
            raise StoreError(f"{self.folder} holds no answers: expected {self.folder / FILE}")
        self._read_others()
        if self._file is None:
            self.refresh()
        else:
            with self._locked(self._file):  # a resumed run with nothing left to write still mends the file
                self._repair()

    # -- reading

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
        """Read the whole lines that other processes appended since the last look."""
        path = Path(self._file.name) if self._file else self.folder / FILE
        if not path.exists():
            return
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._offset:  # someone edited the file: start over
                self._offset = 0
            file.seek(self._offset)
            self._offset += self._take(file.read())

    def _take(self, content: bytes) -> int:
        """Take the whole lines in `content`; returns how many bytes they are (a torn last line is left)."""
        whole = content.rfind(b"\n") + 1
        for line in content[:whole].splitlines():
            if not line.strip():
                continue
            try:
                record = Record.from_line(line)
            except (ValueError, KeyError, TypeError):
                self.broken += 1
                continue
            if (
                record.key not in self or record.error is None
            ):  # an answer outlives an error, never the reverse
                self._records[record.key] = record
        return whole

    def _read_others(self) -> None:
        """Files of machines that could not share ours, or copied in by hand: `answers.<anything>.jsonl`."""
        own = self._file.name if self._file else str(self.folder / FILE)
        for path in sorted(self.folder.glob("answers*.jsonl")):
            if str(path) != own:
                self._take(path.read_bytes())

    # -- writing

    def extend(self, records: Iterable[Record]) -> int:
        """Append the records that the store lacks, in one write; returns how many were new."""
        if self._file is None:
            raise StoreError(f"{self.folder} was opened for reading only")
        with self._locked(self._file):
            self._repair()
            lines: dict[str, bytes] = {}
            for record in records:
                held = self._records.get(record.key)
                if held is None or (held.error is not None and held.error != record.error):
                    lines[record.key] = record.to_line()
            self._append(b"".join(lines.values()))
            self.refresh()
        return len(lines)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, path: Path) -> BinaryIO:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = path.open("ab", buffering=0)
        except OSError as error:
            raise StoreError(
                f"cannot write {path}: {error.strerror}; choose another folder with --out"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
        except BlockingIOError:
            pass  # another process is writing: locks work
        except OSError:  # a file system without locks: a file of our own needs none
            file.close()
            return path.with_name(f"answers.{socket.gethostname()}.{os.getpid()}.jsonl").open(
                "ab", buffering=0
            )
        return file

    @contextlib.contextmanager
    def _locked(self, file: BinaryIO) -> Iterator[None]:
        with contextlib.suppress(OSError):  # no locks here: the file is ours alone, see _open
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)

    def _repair(self) -> None:
        """Cut off a torn last line. We hold the lock, so its writer is dead and its items are pending."""
        assert self._file is not None
        self.refresh()
        if os.fstat(self._file.fileno()).st_size > self._offset:
            os.ftruncate(self._file.fileno(), self._offset)

    def _append(self, content: bytes) -> None:
        """Write all of `content` or none of it."""
        assert self._file is not None
        descriptor = self._file.fileno()
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._offset)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk is full" if full else error.strerror
            raise StoreError(
                f"cannot write {self._file.name}: {reason}. The {len(self)} answers before it are safe; "
                f"{'free some space' if full else 'mend it'} and run the same command again to go on."
            ) from error
