"""ActiveContexts: the sessions that are open on a model.

They belong to one thread, nested as deeply as you like, and other threads are refused. While one is open, the model's
`generate` is replaced, so that each session sees a call before it runs.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from airvlm.runtime.intervention import DISABLED
from airvlm.runtime.locks import ModelInUseError

if TYPE_CHECKING:
    from airvlm.runtime.session import Session

__all__ = ["ActiveContexts"]

_LOCK = threading.Lock()
_OPEN: dict[int, ActiveContexts] = {}  # by the id of a model that has a session open


class ActiveContexts:
    """The sessions that are open on one model, and its `generate` while they are."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        self.owner = threading.current_thread()
        self.open: list[Session] = []  # outermost first
        self.calling: threading.Thread | None = None  # the thread inside generate
        self._depth = 0  # of nested generate calls
        self._instance_generate = model.__dict__.get("generate")  # what somebody else put on the instance before
        self._original: Callable[..., Any] | None = getattr(model, "generate", None)
        self._stoppers: list[Any] = []

    @classmethod
    def enter(cls, model: nn.Module, session: Session) -> ActiveContexts:
        """Open a session. Refused while another thread has one open, or while a call under one is running."""
        with _LOCK:
            contexts = _OPEN.get(id(model))
            if contexts is None:
                contexts = cls(model)
            elif contexts.owner is not threading.current_thread():
                raise ModelInUseError(
                    f"{session.name}: thread {contexts.owner.name} has {contexts.names} active on this model. Use VLM, "
                    "which runs one call after the other, or give each thread its own model"
                )
            elif contexts.calling is not None:
                raise ModelInUseError(
                    f"{session.name}: a generate call under {contexts.names} is still running on this model (a stream "
                    "that is being read?). Let it finish first"
                )
            _OPEN[id(model)] = contexts
            contexts.open.append(session)
            contexts._replace_generate()
        return contexts

    @classmethod
    def of(cls, model: nn.Module) -> ActiveContexts | None:
        """The sessions that are open on this model, in any thread; None if there are none."""
        return _OPEN.get(id(model))

    def leave(self, session: Session) -> str | None:
        """Close a session, in any order. Returns a message if that stopped a call that was still running."""
        with _LOCK:
            last = self.open[-1] is session
            self.open.remove(session)
            if self.open:
                self._replace_generate()
            else:
                _OPEN.pop(id(self.model), None)
                self.model.__dict__.pop("__deepcopy__", None)
                if self._instance_generate is None:
                    self.model.__dict__.pop("generate", None)
                else:
                    self.model.__dict__["generate"] = self._instance_generate
            if self.calling is not None:
                self._stop_call(session.name, self.calling)
                return (
                    f"the block of {session.name} ended while generate was running in thread {self.calling.name}. That "
                    "call was stopped, because the rest would have run without the method. Wait for it inside the block"
                )
        if not last:
            warnings.warn(
                f"the block of {session.name} ended before blocks that were opened after it; until now all were active",
                RuntimeWarning,
                stacklevel=3,
            )
        return None

    @property
    def names(self) -> str:
        """The open methods, outermost first."""
        return "+".join(session.name for session in self.open)

    def describe_conflict(self) -> str:
        """Why a forward pass of this thread is refused, which neither opened the sessions nor runs the current call."""
        return (
            f"the model is called in thread {threading.current_thread().name} while thread "
            f"{(self.calling or self.owner).name} has {self.names} active on it, and would get that method and its "
            "images. Use VLM, which runs one call after the other, or give each thread its own model"
        )

    # -- generate

    def _replace_generate(self) -> None:
        """Put a `generate` on the instance that runs under the sessions open now."""
        self.model.__dict__["__deepcopy__"] = self._refuse_copy
        if self._original is None:
            return
        sessions = tuple(self.open)

        def generate(*args: Any, **kwargs: Any) -> Any:
            # The usual way to stream is Thread(target=model.generate), with model.generate looked up inside the block.
            handed_over = getattr(threading.current_thread(), "_target", None) is generate
            return self.generate(sessions, args, kwargs, handed_over=handed_over)

        generate.__signature__ = inspect.signature(self._original)  # type: ignore[attr-defined]  # transformers reads it
        self.model.__dict__["generate"] = generate

    def _refuse_copy(self, memo: Any) -> Any:
        raise ModelInUseError(
            f"a copy of the model that is made inside a block of {self.names} would keep its hooks: copy it before or "
            "after the block"
        )

    def generate(
        self, sessions: tuple[Session, ...], args: tuple[Any, ...], kwargs: dict[str, Any], *, handed_over: bool
    ) -> Any:
        """One generate call under the open sessions.

        Args:
            sessions: those that must still be open.
            args: positional arguments of the call.
            kwargs: keyword arguments of the call.
            handed_over: the call may come from another thread than the sessions' own.
        """
        assert self._original is not None
        if DISABLED.get():
            return self._original(*args, **kwargs)
        self._begin_call(sessions, handed_over)
        try:
            parameters = inspect.signature(self._original).parameters.values()
            names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
            arguments = dict(zip(names, args, strict=False)) | kwargs
            active = list(self.open)
            for session in reversed(active):
                arguments = session.begin_call(arguments)
            out = self._original(**arguments)
            for session in active:
                out = session.intervention.finish_call(out)
            return out
        finally:
            self._end_call()

    def _begin_call(self, sessions: tuple[Session, ...], handed_over: bool) -> None:
        me = threading.current_thread()
        with _LOCK:
            ended = [session.name for session in sessions if session not in self.open]
            if ended:
                raise ModelInUseError(
                    f"this generate was looked up inside a block of {'+'.join(ended)} that has ended, and would run "
                    "without the method. Look up model.generate again, or call it inside the block"
                )
            foreign = me is not self.owner and not handed_over and self.calling is not me
            if self.calling not in (None, me) or foreign:
                raise ModelInUseError(
                    f"generate is called in thread {me.name} while thread {(self.calling or self.owner).name} has "
                    f"{self.names} active on the model, and would get that method and its images. Use VLM, which runs "
                    "one call after the other; for a call that belongs to the block use run.generate"
                )
            self.calling = me
            self._depth += 1

    def _end_call(self) -> None:
        with _LOCK:
            self._depth -= 1
            if not self._depth:
                self.calling = None
                for handle in self._stoppers:
                    handle.remove()
                self._stoppers.clear()

    def _stop_call(self, name: str, thread: threading.Thread) -> None:
        """Make the running call raise at its next pass: it must not go on without its method."""

        def stop(*_: Any) -> None:
            if threading.current_thread() is thread and not DISABLED.get():
                raise ModelInUseError(f"the block of {name} ended while this call was running")

        self._stoppers.append(self.model.register_forward_pre_hook(stop, prepend=True))
