"""An answer's text as its tokens come: what may be shown already, where a stop string ends it.

What is shown in pieces adds up to what is returned whole. Knows nothing of models or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["GrowingText"]

UNFINISHED = "\ufffd"  # a character whose last bytes are still to come


class GrowingText:
    """Tokens of one answer, read as text."""

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.stops = tuple(stops)
        self.tokens: list[int] = []
        self._shown = 0  # characters handed out

    def add(self, token: int) -> bool:
        """Takes a token; True when a stop string has been said."""
        self.tokens.append(token)
        return bool(self.stops) and self._cut(self._text()) is not None

    def fresh(self) -> str:
        """What can be shown since the last time: nothing that a later token could take back."""
        text = self._text()
        cut = self._cut(text)
        if cut is not None:
            return self._show(text[:cut].rstrip())
        text = text.rstrip(UNFINISHED).rstrip()
        held = max((self._overlap(text, stop) for stop in self.stops), default=0)
        return self._show(text[: len(text) - held].rstrip())

    def rest(self) -> str:
        """What is left to show of an answer that has ended."""
        return self._show(self.whole())

    def whole(self) -> str:
        text = self._text()
        cut = self._cut(text)
        return (text if cut is None else text[:cut]).rstrip()

    def _text(self) -> str:
        return str(self.tokenizer.decode(self.tokens, skip_special_tokens=True)).lstrip()

    def _cut(self, text: str) -> int | None:
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        return min(found, default=None)

    def _show(self, text: str) -> str:
        piece = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return piece

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """How much of the text's end could be the stop string's beginning."""
        return next((k for k in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:k])), 0)
