"""Marking differences: the text is kept, only what differs is marked."""

from airvlm.cli.compare import marked


def test_the_text_is_kept_and_only_other_words_are_marked() -> None:
    text = marked("a cat and a dog", "a cat and two birds")
    assert text.plain == "a cat and two birds"
    assert {text.plain[span.start : span.end].strip() for span in text.spans if span.style} == {
        "two",
        "birds",
    }


def test_equal_texts_are_not_marked() -> None:
    assert not [span for span in marked("the same", "the same").spans if span.style]
