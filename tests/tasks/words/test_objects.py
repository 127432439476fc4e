"""Objects in texts: official objects on edge sentences, the table of words, and where mentions are."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from airvlm.tasks.words.base_forms import Words, find_base_forms
from airvlm.tasks.words.objects import (
    CATEGORIES,
    CATEGORY_OF,
    COMPOUNDS,
    find_category,
    find_mentions,
    mark_mentions,
    merge_compounds,
)
from tests.golden import golden

OFFICIAL = {"pattern": "maxlinn_pattern", "wordnet-rules": "opera_wordnet"}


def test_there_are_80_categories_and_each_names_itself() -> None:
    assert len(CATEGORIES) == 80
    assert all(find_category(category) == category for category in CATEGORIES)


@pytest.mark.parametrize("never", ["motor bike", "cheesecake", "iphone", "stove top oven", "home plate", "train track"])
def test_words_that_the_official_scripts_never_match_are_not_objects(never: str) -> None:
    assert never not in CATEGORY_OF


def test_compounds_lead_to_objects_or_suppress_them() -> None:
    ends = {end for end in COMPOUNDS.values() if end not in CATEGORY_OF}
    assert ends == {"motor bike", "home plate", "train track", "animal", "cub"}


@pytest.mark.parametrize("words", list(OFFICIAL))
def test_edge_sentences_give_the_official_objects(words: Words) -> None:
    cases = json.loads(golden("chair", "caption_to_words.json").read_text())
    for case in cases:
        found = find_mentions(case["caption"], words)
        official = case[OFFICIAL[words]]
        assert [mention.category for mention in found] == official["node_words"], case["caption"]
        if "toilet" not in case["caption"]:  # there the official indices slip by one
            assert [mention.token for mention in found] == official["idxs"], case["caption"]


def test_edge_sentences_give_the_official_base_forms_under_pattern() -> None:
    for case in json.loads(golden("chair", "caption_to_words.json").read_text()):
        merged = merge_compounds(find_base_forms(case["caption"].lower(), "pattern"))
        assert [word for word, _ in merged] == case["maxlinn_pattern"]["double_words"]


@pytest.mark.parametrize(
    ("text", "pattern", "wordnet", "exact"),
    [
        ("a bus", [], ["bus"], ["bus"]),
        ("three men", ["person"], [], ["person"]),
        ("two vases", ["vase"], [], ["vase"]),
        ("ties", [], ["tie"], ["tie"]),
        ("they are seated", [], ["chair"], []),
        ("he is skiing", [], ["skis"], []),
        ("a skiing trip", [], [], []),
        ("a baby was born", ["person"], ["person", "bear"], ["person"]),
        ("some smartphones", ["cell phone"], [], ["cell phone"]),
    ],
)
def test_extractors_differ_on_known_words(text: str, pattern: list[str], wordnet: list[str], exact: list[str]) -> None:
    expected = {"pattern": pattern, "wordnet-rules": wordnet, "exact": exact}
    found = {words: [m.category for m in find_mentions(text, words)] for words in expected}  # type: ignore[arg-type]
    assert found == expected


def test_exact_finds_every_word_in_singular_and_plural() -> None:
    for word, category in CATEGORY_OF.items():
        if word in COMPOUNDS or " " not in word:
            assert [m.category for m in find_mentions(word, "exact")] == [category], word
        if " " not in word and not word.endswith(("s", "man", "child", "people", "children", "fe", "x", "ch", "sh")):
            plural = word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"
            if word not in {"calf", "thief", "goose", "mouse", "oxen", "knive"}:
                assert [m.category for m in find_mentions(plural, "exact")] == [category], plural


def test_an_unknown_extractor_is_an_error() -> None:
    with pytest.raises(ValueError, match="Known: pattern, wordnet, exact"):
        find_mentions("a dog", "porter")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "truth", "expected"),
    [
        ("A dog and a Fork.", ["dog"], [("dog", True), ("Fork", False)]),
        ("Two dogs, one traffic light", ["dog"], [("dogs", True), ("traffic light", False)]),
        ("a baby elephant's trunk", ["elephant"], [("baby elephant", True)]),
        ("no objects at all", [], []),
        ("", [], []),
    ],
)
def test_a_mark_covers_the_word(text: str, truth: list[str], expected: list[tuple[str, bool]]) -> None:
    found = mark_mentions(text, find_mentions(text), truth)
    assert [(text[m.start : m.end], m.present) for m in found] == expected


def test_every_mention_of_real_descriptions_is_located() -> None:
    lines = golden("chair", "opera_captions", "llava-1.5_greedy.jsonl").read_text().splitlines()[:100]
    for line in lines:
        text = json.loads(line)["caption"]
        mentions = find_mentions(text)
        found = mark_mentions(text, mentions, [])
        assert len(found) == len(mentions)
        assert all(a.end <= b.start for a, b in pairwise(found))
