"""Turns: a model serves one call at a time.

Calls are served in the order in which they were asked for, whatever thread they come from. A turn may be given back by
another thread than the one that took it (streams.py). Knows nothing of images or methods.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["ModelBusy", "Turn", "Turns", "turns_of"]


class ModelBusy(RuntimeError):
    """A model was called from inside a call on it: waiting would never end."""


class Turn:
    """One caller's turn, from its place in the queue to its end."""

    def __init__(self, turns: Turns) -> None:
        self.thread = threading.current_thread()  # in which the model runs
        self.ready = threading.Event()
        self._turns = turns

    def end(self) -> None:
        """Let the next one; ending twice changes nothing."""
        self._turns._leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Turns:
    """A fair lock: first come, first served."""

    def __init__(self) -> None:
        self._queue: deque[Turn] = deque()  # the first one has the model
        self._lock = threading.Lock()

    def take(self) -> Turn:
        """Wait for the model. Raises ModelBusy in the thread that has it, which would wait for itself."""
        turn = Turn(self)
        with self._lock:
            if self._queue and self._queue[0].thread is turn.thread:
                raise ModelBusy(
                    "this model was called from inside a call on it (a logits processor, a stopping criterion?): "
                    "let that call end first, or use a second model"
                )
            self._queue.append(turn)
            if self._queue[0] is turn:
                turn.ready.set()
        try:
            turn.ready.wait()
        except BaseException:  # interrupted while waiting: nobody may wait for this turn
            turn.end()
            raise
        return turn

    def _leave(self, turn: Turn) -> None:
        with self._lock:
            if turn in self._queue:
                self._queue.remove(turn)
                if self._queue:
                    self._queue[0].ready.set()

    @property
    def waiting(self) -> int:
        """Calls that have the model or wait for it."""
        return len(self._queue)


_TURNS: WeakKeyDictionary[nn.Module, Turns] = WeakKeyDictionary()  # gone with its model
_LOCK = threading.Lock()


def turns_of(model: nn.Module) -> Turns:
    """The queue of this model (the one inside torch.compile's and PEFT's wrappers: Anatomy.model)."""
    with _LOCK:
        if model not in _TURNS:
            _TURNS[model] = Turns()
        return _TURNS[model]
