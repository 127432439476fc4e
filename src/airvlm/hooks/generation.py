"""Who may use a model, and when: turns, for callers who wait, and blocks, for callers who would get in the way.

Turns are given in the order in which they were asked for, whatever thread they come from, and may be given back by
another one (streams.py). A model has the blocks of one thread at a time, nested as deeply as one likes; while any is
open its `generate` is ours, and each method sees the call before it runs. Knows threads, and nothing of hooks or of
what a method does.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary

from torch import nn

from airvlm.hooks.intervention import Call, is_aside

__all__ = ["BlockRefused", "Blocks", "ModelBusy", "OpenBlock", "Turn", "Turns", "turns_of"]

_LOCK = threading.Lock()
_TURNS: WeakKeyDictionary[nn.Module, Turns] = WeakKeyDictionary()  # gone with its model
_OPEN: dict[int, Blocks] = {}  # by the id of a model that has a block open


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


def turns_of(model: nn.Module) -> Turns:
    """The queue of this model (the one inside torch.compile's and PEFT's wrappers: Anatomy.model)."""
    with _LOCK:
        if model not in _TURNS:
            _TURNS[model] = Turns()
        return _TURNS[model]


# -- blocks


class BlockRefused(RuntimeError):
    """A model is used while another thread's block, or a call under way, has it."""


class OpenBlock(Protocol):
    """A method at work on a model."""

    @property
    def name(self) -> str: ...

    def begin_call(self, arguments: dict[str, Any]) -> Call: ...

    def end_call(self) -> None: ...


class Blocks:
    """The blocks that are open on one model, and its `generate` while they are."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        self.owner = threading.current_thread()
        self.open: list[OpenBlock] = []  # outermost first
        self.calling: threading.Thread | None = None  # the thread inside generate
        self._depth = 0  # of generate calls within one another
        self._own = model.__dict__.get("generate")  # what somebody else put on the instance before
        self._original: Callable[..., Any] | None = getattr(model, "generate", None)
        self._tripwires: list[Any] = []

    @classmethod
    def enter(cls, model: nn.Module, block: OpenBlock) -> Blocks:
        """Open a block. Refused while another thread has one open, or a call under one is still running."""
        with _LOCK:
            blocks = _OPEN.get(id(model))
            if blocks is None:
                blocks = cls(model)
            elif blocks.owner is not threading.current_thread():
                raise BlockRefused(
                    f"{block.name}: thread {blocks.owner.name} has a block of {blocks.names} open on this model. Use "
                    "VLM, which takes one call after the other, or give each thread a model of its own"
                )
            elif blocks.calling is not None:
                raise BlockRefused(
                    f"{block.name}: a generate call under {blocks.names} is still running on this model (a stream that "
                    "is being read?). Let it end first"
                )
            _OPEN[id(model)] = blocks
            blocks.open.append(block)
            blocks._shadow()
        return blocks

    def leave(self, block: OpenBlock) -> str | None:
        """Close a block, in whatever order. Which call was stopped by that, in words, where one was running."""
        with _LOCK:
            last = self.open[-1] is block
            self.open.remove(block)
            if self.open:
                self._shadow()
            else:
                _OPEN.pop(id(self.model), None)
                if self._own is None:
                    self.model.__dict__.pop("generate", None)
                else:
                    self.model.__dict__["generate"] = self._own
            if self.calling is not None:
                self._trip(block.name, self.calling)
                return (
                    f"the block of {block.name} was left while generate ran in thread {self.calling.name}, which was "
                    "stopped: the rest would have been without the method. Wait for it inside the block"
                )
        if not last:
            warnings.warn(
                f"the block of {block.name} was left before blocks that were opened after it: until now all of them "
                "acted at once",
                RuntimeWarning,
                stacklevel=3,
            )
        return None

    @property
    def names(self) -> str:
        return "+".join(block.name for block in self.open)

    def check_thread(self) -> None:
        """A forward pass is about to run: it must belong to the block, or to the call under way."""
        allowed = self.calling or self.owner
        if threading.current_thread() is not allowed:
            raise BlockRefused(
                f"the model is called in thread {threading.current_thread().name} while thread {allowed.name} has a "
                f"block of {self.names} open on it: it would have got that block's method and images. Use VLM, which "
                "takes one call after the other, or a model of its own"
            )

    # -- generate

    def _shadow(self) -> None:
        """Put a `generate` on the instance that belongs to the blocks open now."""
        if self._original is None:
            return
        signature = inspect.signature(self._original)
        blocks = tuple(self.open)

        def generate(*args: Any, **kwargs: Any) -> Any:
            # The usual way to stream is Thread(target=model.generate), taken inside the block.
            handed = getattr(threading.current_thread(), "_target", None) is generate
            return self.generate(blocks, args, kwargs, handed=handed)

        generate.__signature__ = signature  # type: ignore[attr-defined]  # transformers reads it
        self.model.__dict__["generate"] = generate

    def generate(
        self, blocks: tuple[OpenBlock, ...], args: tuple[Any, ...], kwargs: dict[str, Any], *, handed: bool
    ) -> Any:
        """One call under the blocks open now. `handed`: a thread that is not the owner's may make it."""
        assert self._original is not None
        if is_aside():
            return self._original(*args, **kwargs)
        me = threading.current_thread()
        with _LOCK:
            ended = [block.name for block in blocks if block not in self.open]
            if ended:
                raise BlockRefused(
                    f"this generate was taken inside a block of {'+'.join(ended)}, which has ended: it would run "
                    "without the method. Take model.generate again, or call it inside the block"
                )
            if self.calling not in (None, me) or (
                me is not self.owner and not handed and self.calling is not me
            ):
                raise BlockRefused(
                    f"generate is called in thread {me.name} while thread {(self.calling or self.owner).name} has a "
                    f"block of {self.names} open on the model: it would have got that block's method and images. Use "
                    "VLM, which takes one call after the other; a call that belongs to the block is run.generate"
                )
            self.calling = me
            self._depth += 1
            acting = list(reversed(self.open))
        try:
            names = [
                p.name
                for p in inspect.signature(self._original).parameters.values()
                if p.kind is p.POSITIONAL_OR_KEYWORD
            ]
            arguments = dict(zip(names, args, strict=False)) | kwargs
            begun: list[OpenBlock] = []
            try:
                for block in acting:
                    arguments = block.begin_call(arguments).arguments
                    begun.append(block)
                return self._original(**arguments)
            finally:
                for block in reversed(begun):
                    block.end_call()
        finally:
            with _LOCK:
                self._depth -= 1
                if not self._depth:
                    self.calling = None
                    for wire in self._tripwires:
                        wire.remove()
                    self._tripwires.clear()

    def _trip(self, name: str, thread: threading.Thread) -> None:
        """Stop the call under way at its next pass: without its block it would go on as if it had none."""

        def stop(*_: Any) -> None:
            if threading.current_thread() is thread and not is_aside():
                raise BlockRefused(f"the block of {name} was left while this call was running")

        self._tripwires.append(self.model.register_forward_pre_hook(stop, prepend=True))
