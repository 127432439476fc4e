"""Words to their base forms, in the two ways in which published CHAIR figures were made, and a plain third one.

Knows nothing about objects or metrics.

`pattern`: every token is taken for a plural and loses its ending by rule, as the Pattern library does it. It turns
"bus" into "bu" and "ties" into "ty", so that these are not counted, and "men" into "man".
`wordnet`: tokens are tagged, and lemmatised according to their tag. It leaves "men" alone and turns the verb form
"seated" into "seat", so that a chair is counted.
`exact`: nouns lose their plural ending and nothing else happens; no published figure uses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from .lemmas import lemmas, noun_lemma

__all__ = ["Words", "base_forms", "singular"]

Words = Literal["pattern", "wordnet", "exact"]
# Where `exact` is right and a lemmatiser's choice is not.
_EXACT = {"vases": "vase", "men": "man", "geese": "goose"}

# Left alone, and so is every word that is the tail of one of them ("ass" of "glass" is not: only whole tails count).
_UNCHANGED = """bison bream breeches britches carp chassis clippers cod contretemps corps debris diabetes djinn eland
    elk flounder gallows graffiti headquarters herpes high-jinks homework innings jackanapes mackerel measles mews
    mumps news pincers pliers proceedings rabies salmon scissors series shears species swine trout tuna whiting
    wildebeest advice bread butter cannabis cheese electricity equipment fruit furniture garbage gravel happiness
    information ketchup knowledge love luggage mathematics mayonnaise meat mustard news progress research rice sand
    software understanding water""".split()
_IE = """alergie auntie beanie birdie bogie bombie collie cookie cutie doggie eyrie freebie goonie groupie hankie
    hippie hoagie hottie indie junkie laddie laramie lingerie meanie newbie nightie oldie pixie quickie reverie rookie
    softie sortie stoolie sweetie techie toughie valkyrie veggie weenie yuppie zombie""".split()
_IRREGULAR = {  # tails, so that "women" becomes "woman" as well
    "men": "man", "people": "person", "children": "child", "geese": "goose", "feet": "foot", "teeth": "tooth",
    "oxen": "ox", "leaves": "leaf", "loaves": "loaf", "axes": "axe", "moves": "move", "sexes": "sex", "kine": "cow",
    "our": "my", "beeves": "beef", "brethren": "brother", "monies": "money", "opera": "opus", "corpora": "corpus",
    "genera": "genus", "turves": "turf", "helves": "helve", "octopodes": "octopus", "mongooses": "mongoose",
}  # fmt: skip
_ENDINGS = [
    (re.compile(pattern), ending)
    for pattern, ending in [
        (r"(?<=.)ae$", "a"),
        (r"(?<=.)itis$", "itis"),
        (r"(?<=.)eaux$", "eau"),
        (r"(?<=quiz)zes$", ""),
        (r"(?<=matr)ices$", "ix"),
        (r"(?:(?<=ap)|(?<=vert)|(?<=ind))ices$", "ex"),
        (r"(?:(?<=alias)|(?<=status))es$", ""),
        (r"(?<=[octopvir|])i$", "us"),
        (r"(?:(?<=cris)|(?<=ax)|(?<=test))es$", "is"),
        (r"(?<=shoe)s$", ""),
        (r"(?<=o)es$", ""),
        (r"(?<=bus)es$", ""),
        (r"(?<=[ml])ice$", "ouse"),
        (r"(?:(?<=x)|(?<=ch)|(?<=ss)|(?<=sh))es$", ""),
        (r"(?<=movie)s$", ""),
        (r"(?<=.ombie)s$", ""),
        (r"series$", "series"),
        (r"(?:(?<=[^aeiouy])|(?<=qu))ies$", "y"),
        (r"(?<=[aeo]l)ves$", "f"),
        (r"(?<=[^d]ea)ves$", "f"),
        (r"(?<=ar)ves$", "f"),
        (r"(?<=erve)s$", ""),
        (r"(?<=[nlw]i)ves$", "fe"),
        (r"(?<=[lr])ves$", "f"),
        (r"(?<=[aeo]ve)s$", ""),
        (r"(?:(?<=sive)|(?<=tive)|(?<=hive))s$", ""),
        (r"(?<=[^f])ves$", "fe"),
        (r"(?:(?<=analy)|(?<=ba)|(?<=diagno)|(?<=parenthe)|(?<=progno)|(?<=synop)|(?<=the))ses$", "sis"),
        (r"(?<=.op)ses$", "sis"),
        (r"(?<=.y)ses$", "sis"),
        (r"(?:(?<=[hdronbp])|(?<=cl))oses$", "ose"),
        (r"(?<=.o)ses$", "sis"),
        (r"(?<=[ti])a$", "um"),
        (r"(?<=new)s$", "s"),
        (r"s$", ""),
    ]
]


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
    if any(kept.endswith(word) for kept in _UNCHANGED):
        return word
    if any(word.endswith(kept + "s") for kept in _IE):
        return word
    for plural, one in _IRREGULAR.items():
        if word.endswith(plural):
            return word[: -len(plural)] + one
    for pattern, ending in _ENDINGS:
        if pattern.search(word):
            return pattern.sub(ending, word)
    return word
