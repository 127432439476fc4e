"""An answer's text while it is generated, and texts that end it.

A stream generates in a thread of its own, which never waits for the reader. A reader that stops early, or drops the
stream, stops the generation; an error in the thread is raised in the reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer

from airvlm.runtime.locks import LockTicket

__all__ = ["PartialText", "StopTexts", "cut_text", "stream_text"]

Result = TypeVar("Result")
UNFINISHED = "\ufffd"  # a character whose last bytes are still to come


class _Stop(StoppingCriteria):
    """Stops all rows when the reader is gone."""

    def __init__(self) -> None:
        self.gone = threading.Event()

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Any:
        return torch.full((len(input_ids),), self.gone.is_set(), dtype=torch.bool, device=input_ids.device)


class StopTexts(StoppingCriteria):
    """Stops a row when its answer contains one of `stops`, whatever tokens spell it."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], prompt: int) -> None:
        self.tokenizer, self.stops, self.prompt = tokenizer, stops, prompt  # prompt: tokens before the answer

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Any:
        texts = [self.tokenizer.decode(row[self.prompt :], skip_special_tokens=True) for row in input_ids]
        ended = [cut_text(text, self.stops)[1] for text in texts]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)


def stream_text(
    generate: Callable[..., Result], processor: Any, ticket: LockTicket, stops: Sequence[str] = ()
) -> Generator[str, None, Result]:
    """The pieces of text that `generate(streamer=..., stopping_criteria=...)` produces; returns what it returns.

    Args:
        generate: runs the model.
        processor: the model's processor.
        ticket: of the model's lock; released when the generation ends, whether or not its text has been read.
        stops: texts that end the answer, and are not passed on.
    """
    streamer = TextIteratorStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
    stop = _Stop()
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        ticket.thread = threading.current_thread()
        try:
            results.append(generate(streamer=streamer, stopping_criteria=StoppingCriteriaList([stop])))
        except BaseException as error:  # raised again where the pieces are read
            errors.append(error)
        finally:
            ticket.release()
            streamer.end()

    thread = threading.Thread(target=work, name="airvlm-stream", daemon=True)
    try:
        thread.start()
    except BaseException:
        ticket.release()
        raise
    try:
        yield from _strip_ends(_cut_at_stops(streamer, stops))
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


def _cut_at_stops(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """The pieces up to the first stop; text that may begin one is held back until it is clear."""
    held, ended = "", False
    for piece in pieces:  # to their end, so that the generation is over
        if ended:
            continue
        held, ended = cut_text(held + piece, stops)
        ready = len(held) if ended else len(held) - _stop_overlap(held, stops)
        if ready:
            yield held[:ready]
        held = held[ready:]
    if held:
        yield held


def _strip_ends(pieces: Iterable[str]) -> Iterator[str]:
    """The pieces without white space at the beginning and at the end, as the whole answer has none."""
    held, begun = "", False
    for piece in pieces:
        text = held + piece if begun else (held + piece).lstrip()
        ready = text.rstrip()
        held = text[len(ready) :]
        if ready:
            begun = True
            yield ready


def _stop_overlap(text: str, stops: Iterable[str]) -> int:
    """How many characters at the end of the text could be the beginning of a stop string."""
    lengths = (k for stop in stops for k in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:k]))
    return max(lengths, default=0)


class PartialText:
    """The text of an answer while its tokens arrive one by one. Its pieces add up to the whole.

    Args:
        tokenizer: decodes the tokens.
        stops: texts that end the answer, and are not part of it.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.stops = tuple(stops)
        self.tokens: list[int] = []
        self._shown = 0  # characters handed out

    def add(self, token: int) -> bool:
        """Take the next token; True if the answer now contains a stop string."""
        self.tokens.append(token)
        return bool(self.stops) and cut_text(self._decode(), self.stops)[1]

    def next_piece(self) -> str:
        """What can be shown since the last piece: nothing that a later token could take back."""
        text, ended = cut_text(self._decode(), self.stops)
        if not ended:
            text = text.rstrip(UNFINISHED).rstrip()
            text = text[: len(text) - _stop_overlap(text, self.stops)]
        return self._show(text.rstrip())

    def last_piece(self) -> str:
        """What is left to show of an answer that has ended."""
        return self._show(self.whole())

    def whole(self) -> str:
        """The text so far, up to the first stop string."""
        return cut_text(self._decode(), self.stops)[0].rstrip()

    def _decode(self) -> str:
        return str(self.tokenizer.decode(self.tokens, skip_special_tokens=True)).lstrip()

    def _show(self, text: str) -> str:
        piece = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return piece
