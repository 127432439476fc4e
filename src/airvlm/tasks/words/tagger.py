"""NLTK's tokenizer, tagger and WordNet lemmatizer, which CHAIR's `wordnet` variants and AMBER were published with.

NLTK and its data are optional. `load_tagger` raises an error with the command that installs what is missing; the rules
of `base_forms.py` are used instead only where a task has `approximate=True` (`--approximate`).

Published figures come from NLTK 3.8. Later releases hold the same models as plain text instead of pickles, and changed
the word tokenizer and the lemmatizer slightly; these changes are undone here, so tokens and lemmas equal those of 3.8.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, metadata, util
from typing import Any

__all__ = ["APPROXIMATE", "DOWNLOAD", "Tagger", "TaggerMissing", "describe_tagger", "find_tagger", "load_tagger"]

INSTALL = "pip install 'airvlm[nltk]'"
DOWNLOAD = "python -m nltk.downloader averaged_perceptron_tagger_eng punkt_tab wordnet"
APPROXIMATE = "rules (approximate)"
POS = {"J": "a", "V": "v", "N": "n", "R": "r"}  # first letter of a tag -> WordNet's part of speech
# NLTK 3.8's rule: an apostrophe before a single letter, unless the two are a clitic.
_LONE_LETTER = re.compile(r"(?i)(')(?!re|ve|ll|[mtsdn])(\w)\b")
# Patterns of the word tokenizer that NLTK 3.8 does not have.
_LATER_RULES = {r"[\u2012-\u2015]", r"\s+"}


class TaggerMissing(ImportError):
    """NLTK or its data are not installed; the message is one line with the command that installs them."""


@dataclass(frozen=True)
class Tagger:
    """NLTK's models, used as NLTK 3.8 used them."""

    version: str
    split_sentences: Callable[[str], list[str]]
    word_tokenizer: Any
    tag: Callable[[list[str]], list[tuple[str, str]]]
    wordnet: Any  # NLTK's reader of WordNet

    def tokenize(self, text: str) -> list[str]:
        """The words of all sentences of a text."""
        return [word for sentence in self.split_sentences(text) for word in self.word_tokenizer.tokenize(sentence)]

    def lemmatize(self, text: str) -> list[str]:
        """Each word of a text in the base form that its part of speech has."""
        return [self.find_lemma(word, POS.get(tag[:1], "n")) for word, tag in self.tag(self.tokenize(text))]

    def find_nouns(self, text: str) -> list[str]:
        """The lemmas of the words that are tagged as nouns."""
        return [self.find_lemma(word, "n") for word, tag in self.tag(self.tokenize(text)) if tag.startswith("NN")]

    def find_lemma(self, word: str, pos: str) -> str:
        """The shortest base form that WordNet has; the word itself if it has none."""
        forms = [word]
        found = self.wordnet._morphy(word, pos)
        substitutions = self.wordnet.MORPHOLOGICAL_SUBSTITUTIONS[pos]
        if not found and word not in self.wordnet._exception_map[pos]:
            forms = [word[: -len(old)] + new for old, new in substitutions if word.endswith(old)]
        # NLTK 3.8 removes endings until WordNet has what is left
        while not found and forms:
            forms = [form[: -len(old)] + new for form in forms for old, new in substitutions if form.endswith(old)]
            known = self.wordnet._lemma_pos_offset_map
            found = [form for form in forms if form in known and pos in known[form]]
        return str(min(found, key=len)) if found else word


@lru_cache(maxsize=1)
def _load() -> Tagger | str:
    """The tagger, or why there is none; cached, because searching for NLTK's data is slow."""
    if util.find_spec("nltk") is None:
        return f"NLTK is not installed. Run: {INSTALL} && {DOWNLOAD}"
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
        return f"NLTK's data are not installed ({reason[:160]}). Run: {DOWNLOAD} (or set NLTK_DATA to their folder)"
    words: Any = tokenize.NLTKWordTokenizer()
    words.STARTING_QUOTES = [*words.STARTING_QUOTES[:-1], (_LONE_LETTER, r"\1 \2")]
    words.PUNCTUATION = [rule for rule in words.PUNCTUATION if rule[0].pattern not in _LATER_RULES]
    words.ENDING_QUOTES = [rule for rule in words.ENDING_QUOTES if rule[0].pattern not in _LATER_RULES]
    return Tagger(metadata.version("nltk"), sentences.tokenize, words, tagger.tag, wordnet)


def load_tagger() -> Tagger:
    """NLTK's tagger.

    Raises:
        TaggerMissing: NLTK or its data are not installed; the message has the command that installs them.
    """
    found = _load()
    if isinstance(found, str):
        raise TaggerMissing(f"this score needs NLTK's tagger. {found}. Or go on with approximate rules: --approximate")
    return found


def find_tagger() -> Tagger | None:
    """NLTK's tagger, or None where it is not installed."""
    found = _load()
    return found if isinstance(found, Tagger) else None


def describe_tagger(approximate: bool) -> str:
    """What a task's settings say about the tagger."""
    if approximate:
        return APPROXIMATE
    tagger = find_tagger()
    return "nltk (not installed)" if tagger is None else f"nltk {tagger.version}"
