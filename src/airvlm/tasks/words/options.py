"""Parsers of answers to multiple-choice questions: which option does a free text mean?

`infer_option` follows VLMEvalKit's rules, with which MMBench figures are made. `parse_option` is our own, for prompts
that ask for a letter: it does not take the article in "A cat" for the letter A.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["REFUSED", "infer_option", "parse_option"]

REFUSED = "Z"  # a refusal to answer: parsed, and wrong
REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)
PUNCTUATION = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
ANSWER_IS = re.compile(r"(?i)(?:correct\s+)?answer\s+is\s+\**([A-D])\**")
NEAR_THE_END = 5  # a letter counts if it is among the last words of the answer


def infer_option(answer: str, choices: Mapping[str, str]) -> str | None:
    """The letter that an answer means, REFUSED, or None if it cannot be told without a judge.

    Args:
        answer: the model's text.
        choices: letter -> text of the option.
    """
    if any(refusal in answer for refusal in REFUSALS):
        return REFUSED
    words = answer.translate(PUNCTUATION).split()
    named = [letter for letter in choices if letter in words]
    if len(named) == 1 and words.index(named[0]) > len(words) - NEAR_THE_END:
        return named[0]
    if not named and REFUSED in words:
        return REFUSED
    stated = ANSWER_IS.search(answer)
    if stated and stated[1].upper() in choices:
        return stated[1].upper()
    return _match_text(answer, choices)


def _match_text(answer: str, choices: Mapping[str, str]) -> str | None:
    """The only option whose text the answer contains; None if the answer is much longer than the options."""
    if len(answer) > 2 * sum(len(text) for text in choices.values()):
        return None
    contained = [letter for letter, text in choices.items() if text.lower() in answer.lower()]
    return contained[0] if len(contained) == 1 else None


def parse_option(answer: str, choices: Mapping[str, str]) -> str | None:
    """The letter that an answer consists of, begins with ("A.", "(A)") or states ("answer is A"); else by its text."""
    letters = "".join(choices)
    bare = answer.strip().strip("()[]*.:,!\"'` \n").upper()
    if bare in choices:
        return bare
    label = re.match(rf"\s*(?:\(([{letters}])\)|\[([{letters}])\]|\**([{letters}])\**[.):,\n])", answer)
    if label:
        return next(group for group in label.groups() if group)
    stated = re.search(rf"(?i:answer|option|choice)\s*(?i:is|:)?\s*\(?\**([{letters}])\b", answer)
    if stated:
        return stated[1]
    return _match_text(answer, choices)
