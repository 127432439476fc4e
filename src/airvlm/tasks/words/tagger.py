"""The tagger and the lemmatiser that published figures were made with: NLTK's, where it and its data are installed.

Knows nothing about objects or metrics. Official figures come from NLTK 3.8: its sentence splitter (punkt), its word
tokeniser, its averaged perceptron tagger and WordNet 3.0. Later releases hold the same models as plain text instead
of pickles, which is what is read here, and changed the tokeniser and the lemmatiser a little: those changes are taken
back, so that the tokens and lemmas are 3.8's. NLTK looks for its data in NLTK_DATA and its usual places.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, metadata, util
from typing import Any, Literal

__all__ = ["APPROXIMATE", "DOWNLOAD", "Tagger", "TaggerChoice", "TaggerMissing", "find_tagger", "how_tagged"]

TaggerChoice = Literal["auto", "nltk", "rules"]
DATA = ("averaged_perceptron_tagger_eng", "punkt_tab", "wordnet")
DOWNLOAD = f"python -m nltk.downloader {' '.join(DATA)}"
APPROXIMATE = "rules, approximate"
POS = {"J": "a", "V": "v", "N": "n", "R": "r"}  # first letter of a tag -> WordNet's part of speech
# An apostrophe before a lone letter, unless the two are a clitic; NLTK 3.8's rule.
_LONE_LETTER = re.compile(r"(?i)(')(?!re|ve|ll|[mtsdn])(\w)\b")
_LATER_RULES = {r"[\u2012-\u2015]", r"\s+"}  # patterns of the word tokeniser that 3.8 does not have


class TaggerMissing(ImportError):
    """NLTK or its data are not installed; the message is one line that says how to get them."""


@dataclass(frozen=True)
class Tagger:
    """NLTK's models, and what it takes to use them as NLTK 3.8 did."""

    version: str
    split: Callable[[str], list[str]]  # a text's sentences
    words: Any  # a sentence's words
    tag: Callable[[list[str]], list[tuple[str, str]]]
    wordnet: Any  # NLTK's reader of WordNet

    def tokens(self, text: str) -> list[str]:
        """The words of all sentences of a text."""
        return [word for sentence in self.split(text) for word in self.words.tokenize(sentence)]

    def lemmas(self, text: str) -> list[str]:
        """Each word of a text in the base form that its part of speech has."""
        return [self.lemma(word, POS.get(tag[:1], "n")) for word, tag in self.tag(self.tokens(text))]

    def nouns(self, text: str) -> list[str]:
        """The lemmas of the words that are tagged as nouns."""
        return [self.lemma(word, "n") for word, tag in self.tag(self.tokens(text)) if tag.startswith("NN")]

    def lemma(self, word: str, pos: str) -> str:
        """The shortest base form that WordNet knows; the word itself, where it knows none."""
        forms = [word]
        found = self.wordnet._morphy(word, pos)
        substitutions = self.wordnet.MORPHOLOGICAL_SUBSTITUTIONS[pos]
        if not found and word not in self.wordnet._exception_map[pos]:
            forms = [word[: -len(old)] + new for old, new in substitutions if word.endswith(old)]
        while not found and forms:  # 3.8 goes on taking endings off until WordNet knows the rest
            forms = [form[: -len(old)] + new for form in forms for old, new in substitutions if form.endswith(old)]
            known = self.wordnet._lemma_pos_offset_map
            found = [form for form in forms if form in known and pos in known[form]]
        return str(min(found, key=len)) if found else word


def _load() -> Tagger:
    found = _looked_for()
    if isinstance(found, TaggerMissing):
        raise TaggerMissing(*found.args)  # a fresh one: one raised again would keep every place it passed
    return found


@lru_cache(maxsize=1)
def _looked_for() -> Tagger | TaggerMissing:
    """The tagger, or why there is none: looking for NLTK's data again for every text took most of a score's time."""
    if util.find_spec("nltk") is None:
        return TaggerMissing(f"NLTK is not installed: pip install 'airvlm[nltk]', then {DOWNLOAD}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenize, tag = import_module("nltk.tokenize"), import_module("nltk.tag.perceptron")
            wordnet = import_module("nltk.corpus").wordnet
            wordnet.ensure_loaded()
            sentences = tokenize.PunktTokenizer("english")
            tagger = tag.PerceptronTagger()
    except (LookupError, AttributeError, OSError) as error:
        reason = str(error).strip(" *\n").split("\n")[0].strip()
        return TaggerMissing(
            f"NLTK is installed and its data are not ({reason[:160]}): {DOWNLOAD}, or set NLTK_DATA to where they are"
        )
    words: Any = tokenize.NLTKWordTokenizer()  # with the rules of NLTK 3.8
    words.STARTING_QUOTES = [*words.STARTING_QUOTES[:-1], (_LONE_LETTER, r"\1 \2")]
    words.PUNCTUATION = [rule for rule in words.PUNCTUATION if rule[0].pattern not in _LATER_RULES]
    words.ENDING_QUOTES = [rule for rule in words.ENDING_QUOTES if rule[0].pattern not in _LATER_RULES]
    return Tagger(metadata.version("nltk"), sentences.tokenize, words, tagger.tag, wordnet)


def find_tagger(choice: TaggerChoice = "auto") -> Tagger | None:
    """The tagger; None where the rules serve instead. `nltk` insists on it."""
    if choice not in ("auto", "nltk", "rules"):
        raise ValueError(f"no tagger {choice!r}; there are auto, nltk and rules")
    if choice == "rules":
        return None
    try:
        return _load()
    except TaggerMissing:
        if choice == "nltk":
            raise
        return None


def how_tagged(choice: TaggerChoice) -> str:
    """What a record says of the tagger that was used."""
    tagger = find_tagger(choice)
    return APPROXIMATE if tagger is None else f"nltk {tagger.version}"


def why_rules(choice: TaggerChoice) -> str:
    """Why the rules serve, and how to get the tagger, in one line."""
    if choice == "rules":
        return "chosen by tagger=rules"
    try:
        _load()
    except TaggerMissing as error:
        return str(error)
    return ""
