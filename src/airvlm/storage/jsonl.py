"""An append-only file of JSON lines that any number of processes may write.

A write happens under a lock beside the file, as whole lines, after everything that others appended was read. A line
that a killed writer left incomplete is cut off by the next one, and a full disk leaves the file as it was. On a file
system without locks each process writes a file of its own beside it, and all of them are read.

    lines = JsonLines(path, take)
    with lines.lock():                  # `take` has seen every line of every other process
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

__all__ = ["JsonLines", "StoreError", "lock_file"]

NOT_ABOUT_LOCKS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreError(OSError):
    """A file of records cannot be read or written; what it holds is intact."""


def lock_file(path: Path) -> FileLock:
    """The lock of a file: `<name>.lock` beside it, released by the system if its holder dies."""
    # a soft lock, filelock's fallback, would outlive a killed holder
    return FileLock(path.with_name(path.name + ".lock"), poll_interval=0.01, fallback_to_soft=False)


class JsonLines:
    """The lines of one file. Safe for threads.

    Args:
        path: the file.
        take: gets every complete line; refuses one by raising ValueError, KeyError or TypeError.
        others: pattern of files beside it that are read as well.
        mode: permissions of a new file, less the umask.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        take: Callable[[bytes], None],
        *,
        others: str | None = None,
        mode: int = 0o666,
    ) -> None:
        self.path = Path(path)
        self.count = 0  # lines that were taken
        self.broken = 0  # complete lines that were refused (a damaged file)
        self._take = take
        self._others = others or f"{self.path.stem}.*{self.path.suffix}"
        self._mode = mode
        self._offset = 0  # bytes of the file that were read; always at the start of a line
        self._descriptor: int | None = None
        self._lock: FileLock | None = None
        self._mutex = threading.RLock()

    def exists(self) -> bool:
        return self.path.exists() or bool(self._beside())

    def refresh(self) -> None:
        """Take the complete lines that were appended since the last call."""
        with self._mutex, contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._offset:  # someone edited the file: start over
                self._offset = 0
            file.seek(self._offset)
            self._offset += self._take_all(file)

    def refresh_others(self) -> None:
        """Take the files of processes that could not lock this one, or that were copied here."""
        for path in self._beside():
            with path.open("rb") as file:
                self._take_all(file)

    def _beside(self) -> list[Path]:
        return [path for path in sorted(self.path.parent.glob(self._others)) if path != self.path]

    def _take_all(self, lines: Iterable[bytes]) -> int:
        """Take all complete lines; the number of their bytes."""
        size = 0
        for line in lines:
            if not line.endswith(b"\n"):
                break
            size += len(line)
            if not line.strip():
                continue
            try:
                self._take(line)
                self.count += 1
            except (ValueError, KeyError, TypeError, RecursionError):
                self.broken += 1
        return size

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else writes inside the block; everything they wrote was taken, and a torn line is cut off."""
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
        """Write all of the lines or none, and take them. Only inside `lock`."""
        assert self._descriptor is not None, "append must be called inside `with lock()`"
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
            raise StoreError(
                f"cannot write {self.path}: {'the disk is full' if full else error.strerror}. The {self.count} records "
                f"before it are safe; {'free some space' if full else 'fix this'} and rerun the command to resume."
            ) from error
        self.refresh()

    def close(self) -> None:
        with self._mutex:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = self._lock = None

    def _open(self) -> None:
        """Open for appending; a file of this process's own where the file system has no locks."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._open_file()
            lock = lock_file(self.path)
            try:
                with lock:
                    self._lock = lock
            except (OSError, NotImplementedError) as error:
                if getattr(error, "errno", None) in NOT_ABOUT_LOCKS:
                    raise
                os.close(self._descriptor)
                self.refresh()  # what others wrote before
                own = f"{self.path.stem}.{socket.gethostname()}.{os.getpid()}{self.path.suffix}"
                self.path, self._offset = self.path.with_name(own), 0
                self._descriptor = self._open_file()
        except OSError as error:
            self._descriptor = None
            raise StoreError(f"cannot write {self.path}: {error.strerror or error}; choose another folder") from error

    def _open_file(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, self._mode)
