"""Turns and streams: a model serves one call at a time, and its text may be read as it is generated.

Calls are served in the order in which they were asked for, whatever thread they come from. A turn may be given back by
another thread than the one that took it: a stream generates in a thread of its own, which never waits for the reader. A
reader who stops early, or drops the stream, stops the generation; an error in the thread is raised in the reader. Knows
nothing of images or methods.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer

__all__ = ["ModelBusy", "StopTexts", "Turn", "Turns", "cut_text", "stream_text", "turns_of"]

Result = TypeVar("Result")


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


# -- streams


class _Stop(StoppingCriteria):
    """Ends all rows once the reader has gone."""

    def __init__(self) -> None:
        self.gone = threading.Event()

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Any:
        return torch.full((len(input_ids),), self.gone.is_set(), dtype=torch.bool, device=input_ids.device)


class StopTexts(StoppingCriteria):
    """Ends a row once its answer holds one of `stops`; by the text itself, whatever tokens it is written in."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], prompt: int) -> None:
        self.tokenizer, self.stops, self.prompt = tokenizer, stops, prompt  # prompt: tokens before the answer

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Any:
        texts = [self.tokenizer.decode(row[self.prompt :], skip_special_tokens=True) for row in input_ids]
        ended = [cut_text(text, self.stops)[1] for text in texts]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)


def stream_text(
    generate: Callable[..., Result], processor: Any, turn: Turn, stops: Sequence[str] = ()
) -> Generator[str, None, Result]:
    """The pieces of text that `generate(streamer=..., stopping_criteria=...)` produces; returns what it returns.

    turn: the model's, which ends with the generation, whether or not its text has been read by then.
    stops: texts that end the answer, and are not handed over.
    """
    streamer = TextIteratorStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
    stop = _Stop()
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        turn.thread = threading.current_thread()
        try:
            results.append(generate(streamer=streamer, stopping_criteria=StoppingCriteriaList([stop])))
        except BaseException as error:  # raised again where the pieces are read
            errors.append(error)
        finally:
            turn.end()
            streamer.end()

    thread = threading.Thread(target=work, name="airvlm-stream", daemon=True)
    try:
        thread.start()
    except BaseException:
        turn.end()
        raise
    try:
        yield from _without_stops(streamer, stops)
    finally:
        stop.gone.set()
        if thread is not threading.current_thread():  # where the garbage collector may close a dropped stream
            thread.join()
    if errors:
        raise errors[0]
    return results[0]


def cut_text(text: str, stops: Iterable[str]) -> tuple[str, bool]:
    """The text before the first of `stops`, and whether there was one."""
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    return (text[: min(found)], True) if found else (text, False)


def _without_stops(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """The pieces up to the first stop; what may be the beginning of one is held back until it is clear."""
    back = max(map(len, stops), default=1) - 1
    held, ended = "", False
    for piece in pieces:  # to their end, so that the generation is over
        if ended:
            continue
        held, ended = cut_text(held + piece, stops)
        ready = len(held) if ended else max(0, len(held) - back)
        if ready:
            yield held[:ready]
        held = held[ready:]
    if held:
        yield held
