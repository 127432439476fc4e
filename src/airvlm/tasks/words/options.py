"""Which option a free answer to a multiple-choice question means. Knows the options' letters and texts,
nothing else.

``infer_option`` follows VLMEvalKit's rules, the ones MMBench figures are made with; ``strict_option`` is
ours, for letters asked for as letters: it does not take the article in "A cat" for the letter A.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["REFUSED", "infer_option", "strict_option"]

REFUSED = "Z"  # the answer declines: understood, and wrong
REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)
PUNCTUATION = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
ANSWER_IS = re.compile(r"(?i)(?:correct\s+)?answer\s+is\s+\**([A-D])\**")
NEAR_THE_END = 5  # a letter counts if it comes less than this many words before the end


def infer_option(answer: str, choices: Mapping[str, str]) -> str | None:
    """The letter an answer means, REFUSED, or None if that cannot be said without a judge."""
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
    return _by_text(answer, choices)


def _by_text(answer: str, choices: Mapping[str, str]) -> str | None:
    """The one option whose text the answer holds, unless the answer is a treatise."""
    if len(answer) > 2 * sum(len(text) for text in choices.values()):
        return None
    held = [letter for letter, text in choices.items() if text.lower() in answer.lower()]
    return held[0] if len(held) == 1 else None


def strict_option(answer: str, choices: Mapping[str, str]) -> str | None:
    """The letter an answer is, opens with as a label ("A.", "(A)") or states ("answer is A"); else by text."""
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
    return _by_text(answer, choices)
