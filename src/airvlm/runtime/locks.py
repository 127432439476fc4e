"""ModelLock: callers of one model wait for each other, first come, first served.

A lock may be released by another thread than the one that took it (a text stream).
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager
from types import TracebackType
from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["LockTicket", "ModelInUseError", "ModelLock", "lock_of"]

_LOCK = threading.Lock()
_LOCKS: WeakKeyDictionary[nn.Module, ModelLock] = WeakKeyDictionary()  # removed with its model


class ModelInUseError(RuntimeError):
    """A model is used while another thread, or a call that is still running, has it."""


class LockTicket(AbstractContextManager["LockTicket"]):
    """One caller's place in the queue of a ModelLock, from joining it to releasing the model."""

    def __init__(self, lock: ModelLock) -> None:
        self.thread = threading.current_thread()  # in which the model runs
        self.ready = threading.Event()
        self._lock = lock

    def release(self) -> None:
        """Let the next caller in. Releasing twice is harmless."""
        queue = self._lock._queue
        with self._lock._lock:
            if self in queue:
                queue.remove(self)
                if queue:
                    queue[0].ready.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class ModelLock:
    """A fair lock: first come, first served."""

    def __init__(self) -> None:
        self._queue: deque[LockTicket] = deque()  # the first one has the model
        self._lock = threading.Lock()

    def acquire(self) -> LockTicket:
        """Wait for the model. Raises in the thread that has it already, which would wait for itself."""
        ticket = LockTicket(self)
        with self._lock:
            if self._queue and self._queue[0].thread is ticket.thread:
                raise ModelInUseError(
                    "this model was called from inside a call on it (from a logits processor?). "
                    "Let that call finish first, or use a second model"
                )
            self._queue.append(ticket)
            if self._queue[0] is ticket:
                ticket.ready.set()
        try:
            ticket.ready.wait()
        except BaseException:  # interrupted while waiting: leave the queue
            ticket.release()
            raise
        return ticket

    @property
    def is_mine(self) -> bool:
        """Whether the current thread has the model."""
        with self._lock:
            return bool(self._queue) and self._queue[0].thread is threading.current_thread()

    @property
    def waiting(self) -> int:
        """Calls that have the model or wait for it."""
        return len(self._queue)


def lock_of(model: nn.Module) -> ModelLock:
    """The lock of this model (`ModelParts.model`: without torch.compile's and PEFT's wrappers)."""
    with _LOCK:
        if model not in _LOCKS:
            _LOCKS[model] = ModelLock()
        return _LOCKS[model]
