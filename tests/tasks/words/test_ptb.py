"""Tokens of the COCO caption evaluation; tests/tasks/test_official.py compares 78 strings with the Java program."""

from __future__ import annotations

import pytest

from airvlm.tasks.words.ptb import tokenize_ptb


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("A dog, and a cat.", "a dog and a cat"),
        ("It isn't the dog's bone", "it is n't the dog 's bone"),
        ("they cannot (really) see", "they can not -lrb- really -rrb- see"),
        ("a well-known U.S. flag...", "a well-known u.s. flag"),
        ("What?! No.", "what ?! no"),
        ("", ""),
    ],
)
def test_tokens_are_lower_case_and_without_punctuation(text: str, tokens: str) -> None:
    assert tokenize_ptb(text) == tokens.split()
