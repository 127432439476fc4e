"""Marks stand where the words stand, for every real description."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from airvlm.tasks.words.marks import marks
from airvlm.tasks.words.objects import mentions
from tests.golden import golden


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
def test_the_marked_stretch_is_the_word(text: str, truth: list[str], expected: list[tuple[str, bool]]) -> None:
    found = marks(text, mentions(text), truth)
    assert [(text[m.start : m.end], m.present) for m in found] == expected


def test_every_mention_in_real_descriptions_is_found_again() -> None:
    lines = golden("chair", "opera_captions", "llava-1.5_greedy.jsonl").read_text().splitlines()[:100]
    for line in lines:
        text = json.loads(line)["caption"]
        named = mentions(text)
        found = marks(text, named, [])
        assert len(found) == len(named)
        assert all(a.end <= b.start for a, b in pairwise(found))
