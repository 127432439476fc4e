"""Every named parser equals the script that it is named after; ours never parses an empty answer as yes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airvlm.tasks.base import Item
from airvlm.tasks.words.yesno import PARSERS, YesNo, parse_yes_no, score_yes_no
from tests.golden import YESNO_COLUMNS, golden

CELLS = {("yes", "yes"): "TP", ("no", "yes"): "FN", ("no", "no"): "TN", ("yes", "no"): "FP"}
LABELS: tuple[YesNo, YesNo] = ("yes", "no")


def _cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(golden("pope", "yesno_parsers.json").read_text())
    return cases


@pytest.mark.parametrize(("parser", "column", "nothing"), YESNO_COLUMNS)
def test_parsers_equal_their_scripts(parser: str, column: str, nothing: str) -> None:
    for case in _cases():
        official = case[column].lower()
        if "multi-line" in official:  # such an answer has no place in the official file
            official = nothing
        assert (parse_yes_no(case["answer"], "yes", parser) or nothing) == official, case["answer"]


@pytest.mark.parametrize("parser", ["vcd", "clearsight"])
def test_parsers_that_see_the_label_equal_their_scripts(parser: str) -> None:
    for case in _cases():
        for label in LABELS:
            said = parse_yes_no(case["answer"], label, parser)
            assert said is not None and CELLS[said, label] == case[f"{parser}_gt_{label}"], case["answer"]


def test_lmms_eval_accepts_the_bare_word_only() -> None:
    for case in _cases():
        for label in LABELS:
            right = parse_yes_no(case["answer"], label, "lmms-eval") == label
            assert right == bool(case[f"lmms_pope_gt_{label}_score"]), case["answer"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Yes", "yes"), ("No.", "no"), ("NO", "no"), ("\nNo", "no"), ("Yes, a snowboard", "yes"),
        ("There is no dog in the image.", "no"), ("There isn't a dog in the image.", "no"),
        ("There isn’t a dog.", "no"), ("The answer is yes", "yes"), ("I do not see a dog.", "no"), ("Nope", "no"),
        ("Yes; no doubt.", "yes"), ("yes it's not a cat but a dog", "yes"), ("There are none.", "no"),
        ("", None), ("   ", None), ("Not sure", None), ("I don't know", None), ("cannot determine", None),
        ("unknown", None), ("A notebook is visible", None), ("It is nowhere", None), ("Yes and no", None),
        ("I do not see a dog. Yes", None), ("A snowboard", None), ("yesterday", None),
    ],
)  # fmt: skip
def test_strict_looks_for_words(text: str, said: str | None) -> None:
    assert {parse_yes_no(text, label, "strict") for label in LABELS} == {said}


@given(st.text(max_size=30), st.sampled_from(LABELS))
def test_parsers_accept_any_text_and_strict_says_yes_only_if_the_text_does(text: str, label: YesNo) -> None:
    for parser in PARSERS:
        assert parse_yes_no(text, label, parser) in {"yes", "no", None}
    if parse_yes_no(text, label, "strict") == "yes":
        assert "ye" in text.lower()


def _items(labels: str) -> list[Item]:
    return [Item(str(i), None, "", {"y": "yes", "n": "no"}[c], {"s": c}) for i, c in enumerate(labels)]


def test_an_unparsed_answer_is_wrong_and_not_a_yes() -> None:
    scores = score_yes_no(_items("yynn"), ["Yes", "", "", "No"], "strict")
    assert scores.unparsed == 2
    assert scores.metrics["accuracy"] == 50 and scores.metrics["yes_ratio"] == 25
    assert scores.metrics["recall"] == 50 and scores.metrics["precision"] == 100


def test_empty_answers_have_full_recall_under_rucaibox_and_none_under_strict() -> None:
    dead = [""] * 4
    assert score_yes_no(_items("yynn"), dead, "rucaibox").metrics["recall"] == 100
    ours = score_yes_no(_items("yynn"), dead, "strict")
    assert ours.metrics["recall"] == 0 and ours.metrics["accuracy"] == 0
    assert np.isnan(ours.metrics["precision"])


def test_a_missing_answer_counts_in_no_metric() -> None:
    scores = score_yes_no(_items("yn"), ["Yes", None], "strict")
    assert (scores.n, scores.missing, scores.unparsed, scores.metrics["accuracy"]) == (1, 1, 0, 100)


def test_groups_are_scored_one_by_one_and_their_f1_is_averaged() -> None:
    scores = score_yes_no(_items("yynn"), ["Yes", "No", "No", "Yes"], "strict", group="s").metrics
    assert scores["accuracy-y"] == 50 and scores["accuracy-n"] == 50
    assert scores["f1-mean"] == pytest.approx((scores["f1-y"] + scores["f1-n"]) / 2)


def test_the_error_about_an_unknown_parser_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="Known: strict, rucaibox"):
        parse_yes_no("Yes", "yes", "loose")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("I see red,yes, it is", None),  # the comma before "yes" vanishes, because another one has a space after it
        ("red ,blue,yes", None),  # a space before one of the marks is enough
        ("I see red,yes it is", "yes"),  # without a space on either side the comma separates words
        ("yes: it is", None),
        ("yes and no", None),
        ("No, it is 1,000.", "no"),
    ],
)
def test_vlmevalkit_removes_a_mark_that_has_a_space_on_either_side(text: str, parsed: str | None) -> None:
    assert {parse_yes_no(text, label, "vlmevalkit") for label in LABELS} == {parsed}


def test_precision_recall_and_f1_follow_from_the_cells() -> None:
    scores = score_yes_no(_items("yyynn"), ["Yes", "Yes", "No", "Yes", "No"], "strict").metrics
    assert (scores["precision"], scores["recall"]) == (pytest.approx(200 / 3), pytest.approx(200 / 3))
    assert scores["f1"] == pytest.approx(200 / 3)
    uneven = score_yes_no(_items("ynn"), ["Yes", "Yes", "Yes"], "strict").metrics
    assert (uneven["precision"], uneven["recall"], uneven["f1"]) == (pytest.approx(100 / 3), 100, 50)
