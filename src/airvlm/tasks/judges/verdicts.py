"""The file that keeps every verdict of a judge: append-only JSON lines, safe to be killed at and to be
shared.

A line is written in one go under a lock; a line that a crash tore is skipped when read and closed off
before the next is written. Knows nothing of judges or benchmarks: records are dictionaries with a "key".
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["VerdictFile"]


class VerdictFile:
    """Records by key. The first record of a key is the one that counts, so that a resumed run repeats itself."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._read_to = 0  # bytes of the file already known
        self._records: dict[str, dict[str, Any]] = {}

    def get(self, key: str) -> dict[str, Any] | None:
        with self._lock:
            if key not in self._records:
                self._catch_up()
            return self._records.get(key)

    def append(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(dict(record), ensure_ascii=False).encode() + b"\n"
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                data = (b"\n" if torn else b"") + line
                if os.write(descriptor, data) != len(data):
                    raise OSError(f"{self.path} could not be written in full: is the disk full?")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._records.setdefault(str(record["key"]), dict(record))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._lock:
            self._catch_up()
            return iter(list(self._records.values()))

    def _catch_up(self) -> None:
        """Read what this or another process appended since; stops before a line still being written."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for line in whole.splitlines():
            try:
                record = json.loads(line)
                self._records.setdefault(str(record["key"]), record)
            except (ValueError, KeyError, TypeError):
                continue  # torn by a crash: the question is simply asked again
