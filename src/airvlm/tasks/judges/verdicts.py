"""The file that keeps every verdict of a judge: append-only JSON lines, safe to be killed at and to be shared.

How it survives kills, full disks and other writers is told in airvlm.storage.jsonl. Knows nothing of judges or
benchmarks: records are dictionaries with a "key".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airvlm.storage.jsonl import JsonLines

__all__ = ["VerdictFile"]


class VerdictFile:
    """Records by key. The first record of a key is the one that counts, so that a resumed run repeats itself."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._records: dict[str, dict[str, Any]] = {}
        self._mutex = threading.RLock()
        self._lines = JsonLines(self.path, self._take, mode=0o600)  # verdicts may quote what was judged

    def get(self, key: str) -> dict[str, Any] | None:
        with self._mutex:
            if key not in self._records:
                self._lines.refresh()
            return self._records.get(key)

    def append(self, record: Mapping[str, Any]) -> None:
        with self._mutex, self._lines.locked():
            if str(record["key"]) not in self._records:  # another process may have asked the same meanwhile
                self._lines.append([json.dumps(dict(record), ensure_ascii=True).encode()])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._mutex:
            self._lines.refresh()
            return iter(list(self._records.values()))

    def _take(self, line: bytes) -> None:
        record = json.loads(line)
        self._records.setdefault(str(record["key"]), record)
