"""Tokens are those that the official scripts count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airvlm.tasks.words.tokens import tokenize


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a dog. a cat.", "a dog . a cat ."),
        ("the boy's bike and the girls' bikes.", "the boy 's bike and the girls ' bikes ."),
        ("it isn't; it can't, it cannot", "it is n't ; it ca n't , it can not"),
        ("at 10:30 there were 1,000 people: men, women", "at 10:30 there were 1,000 people : men , women"),
        ("dr. smith and mr. jones. a u.s. flag", "dr. smith and mr. jones . a u.s. flag"),
        ("1. a man 2. a dog.", "1. a man 2. a dog ."),
        ('a "stop" sign (red)', 'a " stop " sign ( red )'),
        ("wait... what?!", "wait ... what ? !"),
        ("a dog-friendly, snow-covered park -- empty", "a dog-friendly , snow-covered park -- empty"),
        ('he said "a dog."', 'he said " a dog . "'),
        ("end.no space", "end.no space"),
        ("$10.00", "$ 10.00"),
        ("the man’s hat", "the man ’ s hat"),
    ],
)
def test_tokens_are_those_of_the_treebank(text: str, tokens: str) -> None:
    assert tokenize(text) == tokens.split(" ")


@given(st.text(alphabet=st.sampled_from("ab .,'\"!?-n't:;()\n12"), max_size=40))
def test_tokens_lose_nothing_but_space(text: str) -> None:
    assert "".join(tokenize(text)) == "".join(text.split())
    assert all(tokenize(text))
