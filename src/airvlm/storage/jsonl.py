"""An append-only file of JSON lines, safe to kill and safe to share: answers and verdicts are kept in such files.

Every write happens under a lock beside the file, as whole lines, after reading what other processes appended. A line
torn by a killed writer is cut off by the next one. A full disk leaves the file as it was. On a file system without
locks a process writes a file of its own beside it, and all of them are read. Knows nothing of what a line says: it is
handed to `take`, which refuses it by raising ValueError, KeyError or TypeError.

    lines = JsonLines(path, take)
    with lines.locked():                  # take has by now seen every line of every other process
        lines.append([b'{"key": 1}'])     # all of them or none
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from filelock import FileLock

__all__ = ["JsonLines", "StoreError", "locked"]

REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreError(OSError):
    """A file of records cannot be read or written; what it holds is intact."""


def locked(path: Path) -> FileLock:
    """The lock that stands for a file: `<name>.lock` beside it, let go by the system when its holder dies."""
    # a soft lock, which filelock would fall back to, outlives a killed holder and stops everyone after it
    return FileLock(path.with_name(path.name + ".lock"), poll_interval=0.01, fallback_to_soft=False)


class JsonLines:
    """The lines of one file; any number of processes and threads may have it open."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        take: Callable[[bytes], None],
        *,
        others: str | None = None,  # pattern of the files beside it that are read too
        mode: int = 0o666,  # of the file when it is made, less the umask
    ) -> None:
        self.path = Path(path)
        self.count = 0  # lines that were taken
        self.broken = 0  # complete lines that were refused (a damaged file)
        self._take = take
        self._others = others or f"{self.path.stem}.*{self.path.suffix}"
        self._mode = mode
        self._offset = 0  # bytes of our file already read; always at the start of a line
        self._descriptor: int | None = None
        self._lock: FileLock | None = None
        self._mutex = threading.RLock()

    # -- reading

    def exists(self) -> bool:
        return self.path.exists() or any(True for _ in self._beside())

    def refresh(self) -> None:
        """Take the whole lines that were appended since the last look; a torn last line is left."""
        with self._mutex:
            try:
                with self.path.open("rb") as file:
                    if os.fstat(file.fileno()).st_size < self._offset:  # someone edited the file: start over
                        self._offset = 0
                    file.seek(self._offset)
                    self._offset += self._take_all(file)
            except FileNotFoundError:
                return

    def refresh_others(self) -> None:
        """Take the files of processes that could not share ours, or that were copied in by hand."""
        for path in self._beside():
            with path.open("rb") as file:
                self._take_all(file)

    def _beside(self) -> list[Path]:
        return [path for path in sorted(self.path.parent.glob(self._others)) if path != self.path]

    def _take_all(self, lines: Iterable[bytes]) -> int:
        """How many bytes they have; one by one, since a store may hold a million."""
        whole = 0
        for line in lines:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            if not line.strip():
                continue
            try:
                self._take(line)
                self.count += 1
            except (ValueError, KeyError, TypeError, RecursionError):
                self.broken += 1
        return whole

    # -- writing

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes meanwhile; everything they wrote has been taken, and a torn line is cut off."""
        with self._mutex:
            if self._descriptor is None:
                self._open()
            with self._lock if self._lock is not None else contextlib.nullcontext():
                self.refresh()
                assert self._descriptor is not None
                if os.fstat(self._descriptor).st_size > self._offset:  # its writer is dead: we hold the lock
                    os.ftruncate(self._descriptor, self._offset)
                yield

    def append(self, lines: Iterable[bytes]) -> None:
        """Write all of the lines or none of them, inside `locked`, and take them."""
        assert self._descriptor is not None, "append stands inside `with locked()`"
        content = b"".join(line.rstrip(b"\n") + b"\n" for line in lines)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._offset)
            full = error.errno in FULL
            reason = "the disk is full" if full else error.strerror
            raise StoreError(
                f"cannot write {self.path}: {reason}. The {self.count} records before it are safe; "
                f"{'free some space' if full else 'set it right'} and run the same command again to go on."
            ) from error
        self.refresh()

    def close(self) -> None:
        with self._mutex:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = self._lock = None

    def _open(self) -> None:
        """Open for appending; in a file of our own where the file system has no locks."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._appending(self.path)
            lock = locked(self.path)
            try:
                with lock:
                    self._lock = lock
            except (OSError, NotImplementedError) as error:
                if getattr(error, "errno", None) in REFUSED:
                    raise
                os.close(self._descriptor)
                own = f"{self.path.stem}.{socket.gethostname()}.{os.getpid()}{self.path.suffix}"
                self.refresh()  # what the others wrote before
                self.path, self._offset = self.path.with_name(own), 0
                self._descriptor = self._appending(self.path)
        except OSError as error:
            self._descriptor = None
            raise StoreError(
                f"cannot write {self.path}: {error.strerror or error}; choose another place for it"
            ) from error

    def _appending(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, self._mode)
