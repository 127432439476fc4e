"""Penn Treebank tokens of a text, as CHAIR's and AMBER's official scripts count them.

The official scripts call NLTK's `word_tokenize`, which needs a downloaded model to find the ends of sentences; these
rules give the same tokens on descriptions of images.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["tokenize"]

# A period after one of these does not end a sentence and stays with the word.
_ABBREVIATIONS = frozenset(
    """a.m ave bros calif capt corp d.c dr e.g feb fla gov i.e inc jan jr ltd messrs mr mrs ms n.y nov oct p.m ph.d prof
    rev sen sept sr st tex u.k u.n u.s va vs""".split()
)
_CLOSERS = "\"')]}>”’»"
# Longest first: ellipses, dashes, clitics, marks that are always tokens of their own, and words.
_PIECE = re.compile(
    r"""\.{2,}|--+|``|''
    |n't\b(?!\w)
    |'(?:s|m|d|ll|re|ve)(?!\w)
    |[;@\#$%&?!*()\[\]{}<>"“”‘’„`«»]
    |[:,](?!\d)
    |(?:(?!n't\b)(?!--)(?!\.{2,})(?!'(?:s|m|d|ll|re|ve)(?!\w))(?!'$)(?!'[\s,.;:!?])(?![:,](?!\d))
        [^\s;@\#$%&?!*()\[\]{}<>"“”‘’„`«»])+
    |.""",
    re.VERBOSE | re.IGNORECASE,
)
_SPLIT_WORDS = {  # words that the treebank splits in two
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "wanna": ("wan", "na"),
    "gimme": ("gim", "me"),
    "lemme": ("lem", "me"),
}


def tokenize(text: str) -> list[str]:
    """The tokens of a text; punctuation marks and clitics ('s, n't) are tokens of their own."""
    chunks = text.split()
    tokens: list[str] = []
    for i, chunk in enumerate(chunks):
        following = chunks[i + 1] if i + 1 < len(chunks) else None
        body, closers = _strip_closers(chunk)
        stop = ""
        if body.endswith(".") and not body.endswith("..") and _ends_sentence(body[:-1], following):
            body, stop = body[:-1], "."
        tokens.extend(_split_chunk(body))
        tokens.extend([stop] if stop else [])
        tokens.extend(closers)
    return tokens


@lru_cache(maxsize=1 << 14)  # descriptions repeat themselves
def _split_chunk(body: str) -> tuple[str, ...]:
    return tuple(word for piece in _PIECE.findall(body) for word in _split_word(piece))


def _strip_closers(chunk: str) -> tuple[str, str]:
    body = chunk.rstrip(_CLOSERS)
    if not body.endswith("."):  # quotes after other characters are split by _PIECE
        return chunk, ""
    return body, chunk[len(body) :]


def _ends_sentence(word: str, following: str | None) -> bool:
    """Whether the period after a word ends a sentence; at the end of the text it always does."""
    if following is None or not word:
        return True
    plain = word.lower().lstrip("(\"'[")
    if plain in _ABBREVIATIONS:
        return False
    numbered = re.fullmatch(r"\d+|[^\W\d]", plain) is not None  # "1. a man", "j. smith"
    return not (numbered and following[:1].islower())


def _split_word(piece: str) -> tuple[str, ...]:
    halves = _SPLIT_WORDS.get(piece.lower())
    if halves is None:
        return (piece,)
    return piece[: len(halves[0])], piece[len(halves[0]) :]
