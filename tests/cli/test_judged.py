"""The demo's judgement: which objects of a text are there, which are not, and which it leaves out."""

from airvlm.cli.judged import checked, judged, missed, wrong

TEXT = "A kitchen with two hot dogs. Three people are on the left, and a bowl."


TRUTH = ("hot dog", "bowl", "cat")


def test_objects_that_are_not_there_are_wrong_and_unnamed_ones_are_missed() -> None:
    assert wrong(TEXT, TRUTH) == ["person"]
    assert missed(TEXT, TRUTH) == ["cat"]


def test_wrong_objects_are_red_and_true_ones_green() -> None:
    text = checked(TEXT, TRUTH)
    styled = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert styled == {"hot dogs": "green", "people": "bold red", "bowl": "green"}
    assert text.plain == TEXT


def test_where_nobody_knows_the_truth_nothing_is_judged() -> None:
    assert judged(TEXT, None) == {}
    assert judged(TEXT, TRUTH) == {"wrong": ["person"], "missed": ["cat"]}
