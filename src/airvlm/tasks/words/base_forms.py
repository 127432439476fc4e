"""Words to base forms: the two ways that published CHAIR figures use, rules that imitate one of them, and a plain way.

`pattern`: every token is taken for a plural and loses its ending by rule, as in the Pattern library. "bus" becomes "bu"
and "ties" becomes "ty", so they are not counted; "men" becomes "man".
`wordnet`: tokens are tagged and lemmatized by their part of speech with NLTK (tagger.py). "men" stays as it is, and the
verb form "seated" becomes "seat", which counts as a chair.
`wordnet-rules`: rules that imitate `wordnet` without NLTK. They cover the words that can become the name of an object:
which of them are also verbs, their irregular forms, and when a form in -ing or -ed is a verb. How far they are from
NLTK is measured in tests/tasks/test_official.py.
`exact`: nouns lose their plural ending and nothing else changes; no published figure uses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from airvlm.tasks.words.tagger import load_tagger
from airvlm.tasks.words.tokens import tokenize

__all__ = ["Words", "find_base_forms", "find_nouns", "lemmatize", "lemmatize_noun", "singularize"]

Words = Literal["pattern", "wordnet", "wordnet-rules", "exact"]
# Where `exact` is right and a lemmatizer's choice is not.
_EXACT = {"vases": "vase", "men": "man", "geese": "goose"}


def find_base_forms(text: str, words: Words) -> list[str]:
    """The base form of each token of a lower-cased text."""
    if words == "wordnet":
        return load_tagger().lemmatize(text)
    tokens = tokenize(text)
    if words == "pattern":
        return [singularize(token) for token in tokens]
    if words == "wordnet-rules":
        return lemmatize(tokens)
    if words == "exact":
        return [_EXACT.get(token) or lemmatize_noun(token) for token in tokens]
    raise ValueError(f"unknown word extractor {words!r}. Known: pattern, wordnet, exact")


# -- pattern

# Words that are kept. So is every word that one of them ends with: "debris" keeps "is", "scissors" keeps "s".
_KEPT = """bison bread butter cheese christmas corps debris fruit furniture happiness homework information innings
    luggage meat news rice salmon sand scissors series species trout water wildebeest""".split()
_KEPT_WITH_S = "auntie beanie birdie collie cookie doggie hippie hoagie rookie sweetie veggie zombie".split()
_IRREGULAR = {  # endings, so that "women" becomes "woman" as well
    "men": "man", "people": "person", "children": "child", "geese": "goose", "feet": "foot", "teeth": "tooth",
    "oxen": "ox", "leaves": "leaf", "loaves": "loaf", "axes": "axe", "moves": "move", "our": "my",
}  # fmt: skip
# (ending as a pattern, number of letters to drop, what to append); the first that fits is applied.
_ENDINGS: list[tuple[str, int, str]] = [
    (r"shoes", 1, ""),
    (r"oes|buses|(?:x|ch|ss|sh)es", 2, ""),
    (r"[ml]ice", 3, "ouse"),  # "mice", but also "slice" and "police"
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


@lru_cache(maxsize=1 << 16)
def singularize(word: str) -> str:
    """A word without its plural ending by the first rule that fits, whether it is a plural or not."""
    if word.endswith("'"):
        return singularize(word[:-1]) + "'s"
    if any(kept.endswith(word) for kept in _KEPT) or any(word.endswith(f"{kept}s") for kept in _KEPT_WITH_S):
        return word
    for plural, one in _IRREGULAR.items():
        if word.endswith(plural):
            return word[: -len(plural)] + one
    for pattern, drop, put in _COMPILED:
        if pattern.search(word):
            return word[:-drop] + put
    return word


# -- wordnet by rules

# Names of objects (or halves of their names) that are verbs as well, so that "seated" becomes "seat".
_VERBS = frozenset(
    """baby father mother man officer groom doctor kid cop guy soldier people bicycle bike cab taxi motorcycle
    motorbike plane jet bus train truck boat ship canoe kayak ferry barge yacht motorboat bench duck crow parrot
    raven quail goose swan bird cat kitten dog hound pup horse foal pony lamb ram cow bull buffalo bear backpack
    purse tie bow ski snowboard ball kite skateboard surfboard bottle cup fork knife spoon bowl sandwich sub cake
    chair seat stool couch bed table monitor mouse phone telephone microwave sink book clock toilet racket fowl bat
    glove light sign meter plant plate track park pot stop suit""".split()
)
_VERB_FORMS = {"stove": "stave", "born": "bear", "borne": "bear", "sank": "sink", "sunk": "sink", "tying": "tie"}
# WordNet has two candidates for "vases", and its lemmatizer takes the shorter one. "men" and "people" are entries of
# their own there. The tagger takes "geese" for an adjective because of its ending.
_IRREGULAR_NOUNS = {
    "women": "woman", "children": "child", "grandchildren": "grandchild", "oxen": "ox", "mice": "mouse",
    "knives": "knife", "pocketknives": "pocketknife", "calves": "calf", "thieves": "thief", "leaves": "leaf",
    "vases": "vas", "men": "men", "glasses": "glass", "buses": "bus", "buss": "bus", "minibuses": "minibus",
    "tvs": "tv", "suvs": "suv",
    "feet": "foot", "teeth": "tooth", "wolves": "wolf", "shelves": "shelf", "buffaloes": "buffalo",
}  # fmt: skip
_UNCHANGED = frozenset(
    """bus airbus minibus glass tennis scissors this his its is was has as us yes less across perhaps always towards
    besides afterwards sometimes plus versus various gas grass glass moss boss cross dress chess mess class brass
    bass canvas christmas lens series species news sunglasses jeans pants shorts clothes headquarters""".split()
)
_PLURAL_ADDS_S = frozenset(  # even if the plural then ends in -ies, -is or -us
    """tie necktie magpie collie doggie cookie pie movie hoodie brownie smoothie veggie zombie ski taxi corgi
    zebu broccoli kiwi bikini zucchini""".split()
)
# WordNet does not have these words, so their plurals stay plurals and are not counted.
_NOT_IN_WORDNET = frozenset(
    "smartphones macbooks netbooks pitbulls longboards shortboards skimboards wakeboards teddybears hairdryers".split()
)
_PLURAL_ENDINGS = (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("zes", "z"), ("sses", "ss"), ("s", ""))
_BE = frozenset("is are was were be been being 's 're".split())
# After these a form in -ing is a noun or an adjective ("a skiing trip"); after other words it is a verb.
_BEFORE_NOUNS = frozenset(
    """a an the this that these those my your his her its our their some any each another no one two three four five
    several many few own other various ample additional extended popular lively comfortable local
    large small big great good new old young fun public main water time red blue green pink purple black white
    yellow orange brown gray grey""".split()
)
_ADJECTIVES = ("al", "ful", "ous", "ive", "able", "ible", "ic", "ish", "less")
_NOUNS_IN_ING = frozenset("seating bedding parking bowling grooming training".split())
_PREPOSITIONS = frozenset("of for in from about with".split())
_DETERMINERS = frozenset("a an the this that these those his her its their two three four several many".split())
_CLAUSE = frozenset(". , ; :".split())


def lemmatize(tokens: Sequence[str]) -> list[str]:
    """The lemma of each token of a lower-cased text."""
    found = []
    for i, token in enumerate(tokens):
        before = tokens[i - 1] if i else "."
        after = tokens[i + 1] if i + 1 < len(tokens) else "."
        if token == "geese" or token in _NOT_IN_WORDNET:
            found.append(token)
        elif _is_verb(token, before, after):
            found.append(lemmatize_verb(token))
        else:
            found.append(lemmatize_noun(token))
    return found


def _is_verb(token: str, before: str, after: str) -> bool:
    if token in _VERB_FORMS and token != "stove":
        return True
    if token.endswith("ing"):
        if token == "parking" and after == "meters":  # "row of parking meters", but not "the parking meters"
            return before not in _DETERMINERS
        if before in _BE:
            return True
        if token == "seating" and before in _PREPOSITIONS:  # "plenty of seating options"
            return after.endswith("s")
        if token == "seating" and before == "outdoor":
            return True
        if token in _NOUNS_IN_ING:
            return False
        if before in _PREPOSITIONS and after == "and":
            return False
        return before not in _BEFORE_NOUNS and not before.endswith(_ADJECTIVES)
    if token == "stove":  # between commas the tagger takes it for the past tense of "stave"
        return before == "," and after == ","
    if token.endswith("ed"):
        # in "a potted plant" it is an adjective; in "the bed, potted plant" and "Potted plants" the tagger says verb
        return token != "potted" or before in _CLAUSE
    return False


@lru_cache(maxsize=1 << 14)
def lemmatize_verb(word: str) -> str:
    """The infinitive of a verb form if it is also the name of an object; otherwise the form itself."""
    if word in _VERB_FORMS:
        return _VERB_FORMS[word]
    for ending in ("ing", "ed"):
        if word.endswith(ending):
            stem = word[: -len(ending)]
            doubled = stem[:-1] if len(stem) > 3 and stem[-1] == stem[-2] else stem
            return next((verb for verb in (stem, stem + "e", doubled) if verb in _VERBS), word)
    return lemmatize_noun(word)


@lru_cache(maxsize=1 << 14)
def lemmatize_noun(word: str) -> str:
    """The singular of a noun; words that only look like plurals are kept."""
    if word in _IRREGULAR_NOUNS:
        return _IRREGULAR_NOUNS[word]
    if word[:-1] in _PLURAL_ADDS_S and word[-1] == "s":
        return word[:-1]
    if word.endswith(("sss", "iss")):  # a plural -s after a word that already ends in -s
        return word[:-1]
    if word in _UNCHANGED or word.endswith(("ss", "us", "is", "'s")) or len(word) < 4:
        return word
    if word.endswith("men") and word != "specimen" and len(word) > 5:
        return word[:-3] + "man"
    for plural, one in _PLURAL_ENDINGS:
        if word.endswith(plural):
            return word[: -len(plural)] + one
    return word


_VERBS_AFTER_TO = frozenset(
    """board book watch drink fish train sink light support brush paddle skate ski cook file lock plug tap tape track
    wire ring ship rock pack note switch lounge water duck fence sign""".split()
)
_NOT_INFINITIVE = frozenset("next close adjacent addition due similar attached closer".split())
_NOUNS_LIKE_VERBS = frozenset("ring string building ceiling railing evening morning clothing".split())


def find_nouns(tokens: Sequence[str]) -> list[str]:
    """The lemmas of the tokens used as nouns; case is kept, so "Sky" at the start of a sentence is not "sky"."""
    return [lemmatize_noun(token) for i, token in enumerate(tokens) if _is_noun(tokens, i)]


def _is_noun(tokens: Sequence[str], i: int) -> bool:
    token = tokens[i]
    before = tokens[i - 1] if i else "."
    earlier = tokens[i - 2] if i > 1 else "."
    if token == "hot":
        return False
    if token == "can":  # "can be seen"
        return before in _DETERMINERS
    if token.endswith("ing") and token not in _NOUNS_LIKE_VERBS:  # "a painting", but "is painting"
        return before in _BEFORE_NOUNS
    if before == "to" and token in _VERBS_AFTER_TO:  # "preparing to board", but "next to water"
        return earlier in _NOT_INFINITIVE
    return not (token.endswith("s") and before in {"he", "she", "it", "who"})  # "as she skates"
