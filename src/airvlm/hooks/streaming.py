"""Text as it is generated: `generate` runs in a thread of its own, its words are handed over one by one.

Knows nothing of pictures or methods. A reader who stops early stops the generation; an error in the thread is raised
in the reader.
"""

import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer

__all__ = ["stream_text"]

Result = TypeVar("Result")


class _Stop(StoppingCriteria):
    """Ends all rows once the reader has gone."""

    def __init__(self) -> None:
        self.gone = threading.Event()

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Any:
        return torch.full((len(input_ids),), self.gone.is_set(), dtype=torch.bool, device=input_ids.device)


def stream_text(generate: Callable[..., Result], processor: Any) -> Generator[str, None, Result]:
    """The pieces of text that `generate(streamer=..., stopping_criteria=...)` produces; returns what it returns."""
    streamer = TextIteratorStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
    stop = _Stop()
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(generate(streamer=streamer, stopping_criteria=StoppingCriteriaList([stop])))
        except BaseException as error:  # raised again where the pieces are read
            errors.append(error)
        finally:
            streamer.end()

    thread = threading.Thread(target=work, name="airvlm-stream", daemon=True)
    thread.start()
    try:
        for piece in streamer:
            if piece:
                yield piece
    finally:
        stop.gone.set()
        thread.join()
    if errors:
        raise errors[0]
    return results[0]
