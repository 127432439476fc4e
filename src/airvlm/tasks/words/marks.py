"""Where in a description the objects stand that CHAIR counts, so that they can be marked for people.

Knows the words of a text and the task's own reading of them; nothing about how marks look.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from airvlm.tasks.words.objects import Mention
from airvlm.tasks.words.tokens import tokenize

__all__ = ["Mark", "marks"]

OPENERS = ("baby", "adult", "passenger", "bow")  # first words of pairs that count as their second


@dataclass(frozen=True)
class Mark:
    """A stretch of a text that names an object."""

    start: int
    end: int
    category: str
    present: bool  # whether the image shows one


def marks(text: str, mentions: Sequence[Mention], truth: Collection[str]) -> list[Mark]:
    """The mentions' places in the text, in order; one that cannot be found again is left out."""
    tokens = tokenize(text.lower())
    places, at = [], 0
    for token in tokens:
        found = text.lower().find(token, at)
        places.append((found, found + len(token)) if found >= 0 else None)
        at = found + len(token) if found >= 0 else at
    marked = []
    for mention in mentions:
        last = mention.token + (" " in mention.word or tokens[mention.token] in OPENERS)
        first, end = places[mention.token], places[min(last, len(places) - 1)]
        if first is not None and end is not None:
            marked.append(Mark(first[0], end[1], mention.category, mention.category in truth))
    return marked
