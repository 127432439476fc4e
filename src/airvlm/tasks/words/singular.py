"""Words to their base forms, in the two ways in which published CHAIR figures were made, and a plain third one.

Knows nothing about objects or metrics.

`pattern`: every token is taken for a plural and loses its ending by rule, as the Pattern library does it. It turns
"bus" into "bu" and "ties" into "ty", so that these are not counted, and "men" into "man".
`wordnet`: tokens are tagged, and lemmatised according to their tag. It leaves "men" alone and turns the verb form
"seated" into "seat", so that a chair is counted.
`tagged`: the same with NLTK's own tagger and WordNet (tagger.py), which is what `wordnet` becomes where they are
installed; it needs the whole text, so that `objects.py` asks for it.
`exact`: nouns lose their plural ending and nothing else happens; no published figure uses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from airvlm.tasks.words.lemmas import lemmas, noun_lemma

__all__ = ["Words", "base_forms", "singular"]

Words = Literal["pattern", "wordnet", "exact", "tagged"]
# Where `exact` is right and a lemmatiser's choice is not.
_EXACT = {"vases": "vase", "men": "man", "geese": "goose"}

# Words that stay as they are. So does every word that one of them ends with: "debris" keeps "is", "scissors" keeps "s".
_KEPT = """bison bread butter cheese christmas corps debris fruit furniture happiness homework information innings
    luggage meat news rice salmon sand scissors series species trout water wildebeest""".split()
_KEPT_IN_IES = "auntie beanie birdie collie cookie doggie hippie hoagie rookie sweetie veggie zombie".split()
_IRREGULAR = {  # endings, so that "women" becomes "woman" as well
    "men": "man", "people": "person", "children": "child", "geese": "goose", "feet": "foot", "teeth": "tooth",
    "oxen": "ox", "leaves": "leaf", "loaves": "loaf", "axes": "axe", "moves": "move", "our": "my",
}  # fmt: skip
# What a word must end with, how much of that is dropped, and what is put in its place; the first that fits counts.
_ENDINGS: list[tuple[str, int, str]] = [
    (r"shoes", 1, ""),
    (r"oes|buses|(?:x|ch|ss|sh)es", 2, ""),
    (r"[ml]ice", 3, "ouse"),  # of "mice", and alas of "slice" and "police"
    (r"movies", 1, ""),
    (r"(?:[^aeiouy]|qu)ies", 3, "y"),
    (r"(?:[aeo]l|[^d]ea|ar)ves", 3, "f"),
    (r"erves", 1, ""),
    (r"[nlw]ives", 3, "fe"),
    (r"[lr]ves", 3, "f"),
    (r"[aeo]ves|(?:si|ti|hi)ves", 1, ""),
    (r"[^f]ves", 3, "fe"),
    (r"bases", 2, "is"),
    (r"[ti]a", 1, "um"),
    (r"s", 1, ""),
]
_COMPILED = [(re.compile(f"(?:{pattern})$"), drop, put) for pattern, drop, put in _ENDINGS]


def base_forms(tokens: Sequence[str], words: Words) -> list[str]:
    """The base form of each token of a lower-cased text."""
    if words == "pattern":
        return [singular(token) for token in tokens]
    if words == "wordnet":
        return lemmas(tokens)
    if words == "exact":
        return [_EXACT.get(token) or noun_lemma(token) for token in tokens]
    raise ValueError(f"no way {words!r} to find base forms; there are pattern, wordnet and exact")


@lru_cache(maxsize=1 << 16)
def singular(word: str) -> str:
    """A word without its plural ending, by the first rule that fits, whether it is a plural or not."""
    if word.endswith("'"):
        return singular(word[:-1]) + "'s"
    if any(kept.endswith(word) for kept in _KEPT) or any(word.endswith(f"{kept}s") for kept in _KEPT_IN_IES):
        return word
    for plural, one in _IRREGULAR.items():
        if word.endswith(plural):
            return word[: -len(plural)] + one
    for pattern, drop, put in _COMPILED:
        if pattern.search(word):
            return word[:-drop] + put
    return word
