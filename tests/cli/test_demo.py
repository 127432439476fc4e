"""The demo's judgement: which objects of a text are there, which are not, and which it leaves out."""

from dataclasses import dataclass

from airvlm.cli.demo import checked, missed, wrong

TEXT = "A kitchen with two hot dogs. Three people are on the left, and a bowl."


@dataclass
class Truth:
    names: tuple[str, ...] = ("hot dog", "bowl", "cat")


def test_objects_that_are_not_there_are_wrong_and_unnamed_ones_are_missed() -> None:
    assert wrong(TEXT, Truth()) == ["person"]  # type: ignore[arg-type]
    assert missed(TEXT, Truth()) == ["cat"]  # type: ignore[arg-type]


def test_wrong_objects_are_red_and_true_ones_green() -> None:
    text = checked(TEXT, Truth())  # type: ignore[arg-type]
    styled = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert styled == {"hot dogs": "green", "people": "bold red", "bowl": "green"}
    assert text.plain == TEXT
