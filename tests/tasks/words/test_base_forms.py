"""Base forms: Pattern's rules, and the rules that imitate a tagger."""

from __future__ import annotations

import pytest

from airvlm.tasks.words.base_forms import Words, find_base_forms, find_nouns, lemmatize, lemmatize_noun, singularize
from airvlm.tasks.words.tokens import tokenize


@pytest.mark.parametrize(
    ("word", "base"),
    [("bus", "bu"), ("buses", "bus"), ("ties", "ty"), ("men", "man"), ("women", "woman"), ("slice", "slouse"),
     ("people", "person"), ("scissors", "scissors"), ("cookies", "cookies"), ("knives", "knife"), ("'", "'s")],
)  # fmt: skip
def test_pattern_takes_every_word_for_a_plural(word: str, base: str) -> None:
    assert singularize(word) == base


@pytest.mark.parametrize(
    ("text", "lemmas"),
    [
        ("geese and smartphones near a dog", "geese and smartphones near a dog"),  # not in WordNet, or tagged otherwise
        ("two hairdryers , three macbooks", "two hairdryers , three macbooks"),
        ("people seated on buses", "people seat on bus"),
        ("he is skiing", "he is ski"),
        ("a skiing trip", "a skiing trip"),
        ("men and women", "men and woman"),
        ("a potted plant", "a potted plant"),
        (". potted plants", ". pot plant"),
        ("knives , vases , glasses", "knife , vas , glass"),
        ("a row of parking meters", "a row of park meter"),
        ("the parking meters", "the parking meter"),
        ("plenty of seating options", "plenty of seat option"),
        ("plenty of seating inside", "plenty of seating inside"),
        ("", ""),
    ],
)
def test_every_token_has_a_lemma_in_its_place(text: str, lemmas: str) -> None:
    assert lemmatize(text.split()) == lemmas.split()


def test_verbs_are_not_nouns() -> None:
    text = "The dog can be seen as she skates to board a bus next to water, hot air balloons, a painting"
    nouns = find_nouns(tokenize(text))
    assert {"dog", "bus", "water", "balloon", "painting"} <= set(nouns)
    assert not {"can", "skate", "board", "hot"} & set(nouns)


@pytest.mark.parametrize(("word", "base"), [("firemen", "fireman"), ("specimen", "specimen"), ("omen", "omen")])
def test_men_are_a_plural(word: str, base: str) -> None:
    assert lemmatize_noun(word) == base


@pytest.mark.parametrize(
    ("words", "forms"),
    [
        ("exact", "three vase on bus and goose"),
        ("wordnet-rules", "three vas on bus and geese"),
        ("pattern", "three vase on bus and goose"),
    ],
)
def test_base_forms_follow_the_extractor(words: Words, forms: str) -> None:
    assert find_base_forms("three vases on buses and geese", words) == forms.split()
