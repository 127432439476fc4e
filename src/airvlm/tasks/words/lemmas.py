"""Base forms by part of speech, in the manner of a tagger followed by WordNet's lemmatiser.

Knows nothing about objects beyond their names. NLTK's tagger and WordNet itself are large downloads; the words that
can become the name of an object are few, so that it takes only their own forms: which of them are verbs too, their
irregular forms, and rules for when a form in -ing or -ed stands as a verb. Forms of all other words are left as
they are, except for a plural -s. What the rules miss against the real tagger is stated in docs/evaluation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

__all__ = ["lemmas", "noun_lemma", "nouns", "verb_lemma"]

# Names of objects (or halves of their names) that are verbs as well, so that "seated" becomes "seat".
_VERBS = frozenset(
    """baby father mother man officer groom doctor kid cop guy soldier people bicycle bike cab taxi motorcycle
    motorbike plane jet bus train truck boat ship canoe kayak ferry barge yacht motorboat bench duck crow parrot
    raven quail goose swan bird cat kitten dog hound pup horse foal pony lamb ram cow bull buffalo bear backpack
    purse tie bow ski snowboard ball kite skateboard surfboard bottle cup fork knife spoon bowl sandwich sub cake
    chair seat stool couch bed table monitor mouse phone telephone microwave sink book clock toilet racket fowl bat
    glove light sign meter plant plate track park pot stop suit""".split()
)
_VERB_FORMS = {
    "stove": "stave",
    "born": "bear",
    "borne": "bear",
    "sank": "sink",
    "sunk": "sink",
    "tying": "tie",
}
# "vases" has two candidates in WordNet, and the lemmatiser takes the shorter one. "men" and "people" are words of
# their own there, and "ese" makes an adjective of "geese" for the tagger.
_NOUNS = {
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
_IN_I = frozenset(  # words whose plural only adds an -s, whatever it then looks like
    """tie necktie magpie collie doggie cookie pie movie hoodie brownie smoothie veggie zombie ski taxi corgi
    zebu broccoli kiwi bikini zucchini""".split()
)
# Plurals of words that WordNet does not have stay plurals, and so are not counted.
_NOT_IN_WORDNET = frozenset(
    "smartphones macbooks netbooks pitbulls longboards shortboards skimboards wakeboards teddybears hairdryers".split()
)
_ENDINGS = (
    ("ies", "y"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("xes", "x"),
    ("zes", "z"),
    ("sses", "ss"),
    ("s", ""),
)
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


def lemmas(tokens: Sequence[str]) -> list[str]:
    """The lemma of each token of a lower-cased text."""
    found = []
    for i, token in enumerate(tokens):
        before = tokens[i - 1] if i else "."
        after = tokens[i + 1] if i + 1 < len(tokens) else "."
        if token == "geese" or token in _NOT_IN_WORDNET:
            found.append(token)
        elif _is_verb(token, before, after):
            found.append(verb_lemma(token))
        else:
            found.append(noun_lemma(token))
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
    if token == "stove":  # between commas it passes for the past tense of "stave"
        return before == "," and after == ","
    if token.endswith("ed"):
        # "a potted plant" is an adjective, "the bed, potted plant" and "Potted plants" are taken for verbs
        return token != "potted" or before in _CLAUSE
    return False


@lru_cache(maxsize=1 << 14)
def verb_lemma(word: str) -> str:
    """The verb that a form belongs to, where that verb is also the name of an object; else the form itself."""
    if word in _VERB_FORMS:
        return _VERB_FORMS[word]
    for ending in ("ing", "ed"):
        if word.endswith(ending):
            stem = word[: -len(ending)]
            doubled = stem[:-1] if len(stem) > 3 and stem[-1] == stem[-2] else stem
            return next((verb for verb in (stem, stem + "e", doubled) if verb in _VERBS), word)
    return noun_lemma(word)


@lru_cache(maxsize=1 << 14)
def noun_lemma(word: str) -> str:
    """A noun in the singular; words that only look like plurals stay as they are."""
    if word in _NOUNS:
        return _NOUNS[word]
    if word[:-1] in _IN_I and word[-1] == "s":
        return word[:-1]
    if word.endswith(("sss", "iss")):  # a plural -s on a word that has one already
        return word[:-1]
    if word in _UNCHANGED or word.endswith(("ss", "us", "is", "'s")) or len(word) < 4:
        return word
    if word.endswith("men") and word != "specimen" and len(word) > 5:
        return word[:-3] + "man"
    for plural, one in _ENDINGS:
        if word.endswith(plural):
            return word[: -len(plural)] + one
    return word


# Never nouns in descriptions.
_NEVER_NOUNS = frozenset(["hot"])
_VERBS_AFTER_TO = frozenset(
    """board book watch drink fish train sink light support brush paddle skate ski cook file lock plug tap tape track
    wire ring ship rock pack note switch lounge water duck fence sign""".split()
)
_NOT_INFINITIVE = frozenset("next close adjacent addition due similar attached closer".split())
_NOUNS_LIKE_VERBS = frozenset("ring string building ceiling railing evening morning clothing".split())


def nouns(tokens: Sequence[str]) -> list[str]:
    """The lemmas of the tokens that stand as nouns; case is kept, so that "Sky" at a sentence's start is not "sky"."""
    return [noun_lemma(token) for i, token in enumerate(tokens) if _is_noun(tokens, i)]


def _is_noun(tokens: Sequence[str], i: int) -> bool:
    token = tokens[i]
    before = tokens[i - 1] if i else "."
    earlier = tokens[i - 2] if i > 1 else "."
    if token in _NEVER_NOUNS:
        return False
    if token == "can":  # "can be seen"
        return before in _DETERMINERS
    if token.endswith("ing") and token not in _NOUNS_LIKE_VERBS:  # "a painting", but "is painting"
        return before in _BEFORE_NOUNS
    if before == "to" and token in _VERBS_AFTER_TO:  # "preparing to board", but "next to water"
        return earlier in _NOT_INFINITIVE
    return not (token.endswith("s") and before in {"he", "she", "it", "who"})  # "as she skates"
