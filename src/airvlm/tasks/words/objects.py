"""Objects that a text names: the 80 COCO categories, the words that count for each (objects.toml), and their search.

Words are brought to a base form first (base_forms.py); that is where published CHAIR figures differ.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from airvlm.tasks.words.base_forms import Words, find_base_forms
from airvlm.tasks.words.tokens import tokenize

__all__ = [
    "CATEGORIES",
    "CATEGORY_OF",
    "Mark",
    "Mention",
    "count_tokens",
    "find_category",
    "find_mentions",
    "mark_mentions",
    "merge_compounds",
]

_CONTENT = tomllib.loads((Path(__file__).parent / "objects.toml").read_text(encoding="utf-8"))
CATEGORIES: tuple[str, ...] = tuple(_CONTENT["categories"])
CATEGORY_OF: dict[str, str] = {
    word.replace("_", " "): category
    for category, words in _CONTENT["categories"].items()
    for word in (category.replace(" ", "_"), *words.split())
}
# pairs of words that are looked up as one -> what they become
COMPOUNDS: dict[str, str] = {
    **{pair: pair for pair in _CONTENT["pairs"]["same"]},
    **{f"{age} {animal}": animal for animal in _CONTENT["pairs"]["animals"].split() for age in ("baby", "adult")},
    **_CONTENT["pairs"]["other"],
}


@dataclass(frozen=True)
class Mention:
    """A word of a text that names an object."""

    word: str  # base form
    category: str
    token: int  # index of its first token in the text


def merge_compounds(words: Iterable[str]) -> list[tuple[str, int]]:
    """Join pairs of words greedily from the left; each word comes with the index of its first token."""
    words = list(words)
    merged, i = [], 0
    while i < len(words):
        pair = COMPOUNDS.get(" ".join(words[i : i + 2])) if i + 1 < len(words) else None
        merged.append((pair or words[i], i))
        i += 2 if pair else 1
    return merged


def find_mentions(text: str, words: Words = "pattern") -> list[Mention]:
    """The objects that a text names, in order and with repetitions.

    Args:
        text: a description of an image.
        words: how words are brought to their base form, see base_forms.py.
    """
    return list(_search(text, words)[0])


def count_tokens(text: str, words: Words = "pattern") -> int:
    """The number of tokens of a text after pairs are joined: CHAIR's Len."""
    return _search(text, words)[1]


@lru_cache(maxsize=4096)
def _search(text: str, words: Words) -> tuple[tuple[Mention, ...], int]:
    merged = merge_compounds(find_base_forms(text.lower(), words))
    size = len(merged)
    seats = {"toilet", "seat"} <= {word for word, _ in merged}
    found = [
        Mention(word, CATEGORY_OF[word], at)
        for word, at in merged
        # the seat of a toilet is not a chair
        if word in CATEGORY_OF and not (seats and word == "seat")
    ]
    return tuple(found), size


def find_category(name: str) -> str | None:
    """The category of a single object name, e.g. from an annotation file."""
    return CATEGORY_OF.get(name.strip().lower())


# First words of pairs that count as their second word.
_OPENERS = ("baby", "adult", "passenger", "bow")


@dataclass(frozen=True)
class Mark:
    """A part of a text, from `start` to `end`, that names an object."""

    start: int
    end: int
    category: str
    present: bool  # whether the image shows one


def mark_mentions(text: str, mentions: Sequence[Mention], truth: Collection[str]) -> list[Mark]:
    """Where in a text its mentions are, in order; one that cannot be located is left out.

    Args:
        text: the text that was searched.
        mentions: what `find_mentions` found in it.
        truth: the categories that the image shows.
    """
    tokens, lowered = tokenize(text.lower()), text.lower()
    places: list[tuple[int, int] | None] = []
    end = 0
    for token in tokens:
        start = lowered.find(token, end)
        places.append((start, start + len(token)) if start >= 0 else None)
        end = start + len(token) if start >= 0 else end
    marks = []
    for mention in mentions:
        is_pair = " " in mention.word or tokens[mention.token] in _OPENERS
        first, last = places[mention.token], places[min(mention.token + is_pair, len(places) - 1)]
        if first is not None and last is not None:
            marks.append(Mark(first[0], last[1], mention.category, mention.category in truth))
    return marks
