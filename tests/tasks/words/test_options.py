"""Options are parsed by VLMEvalKit's rules or by our own."""

from __future__ import annotations

import pytest

from airvlm.tasks.words.options import REFUSED, infer_option, parse_option

CHOICES = {"A": "teddy bear", "B": "rabbit", "C": "cat", "D": "dog"}


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("A", "A"),
        ("b.", "B"),
        ("(C) cat", "C"),
        ("D. dog", "D"),
        ("**B**", "B"),
        ("The answer is D.", "D"),
        ("A cat", "C"),  # an article, not a letter
        ("A big dog", "D"),
        ("a cat or a dog", None),
        ("", None),
        ("I do not know", None),
    ],
)
def test_an_article_is_not_taken_for_a_letter(answer: str, letter: str | None) -> None:
    assert parse_option(answer, CHOICES) == letter


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("Z", REFUSED),
        ("Z.", REFUSED),
        ("Z or B", "B"),  # a letter beside it is the answer
        ("I can't process this file.", REFUSED),
        ("B", "B"),
        ("The answer is C, not D", "C"),
        ("A cat", "A"),  # VLMEvalKit takes the article for a letter
        ("it is a rabbit", "B"),
        ("a cat and a dog", None),
        ("hmm", None),
    ],
)
def test_vlmevalkits_rules(answer: str, letter: str | None) -> None:
    assert infer_option(answer, CHOICES) == letter


def test_an_answer_up_to_twice_as_long_as_all_options_is_searched_for_one() -> None:
    longest = 2 * sum(map(len, CHOICES.values()))
    assert infer_option("rabbit".rjust(longest, "x"), CHOICES) == "B"
    assert infer_option("rabbit".rjust(longest + 1, "x"), CHOICES) is None
