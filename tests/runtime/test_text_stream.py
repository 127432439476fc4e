"""PartialText: the pieces add up to the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airvlm.runtime.locks import ModelLock
from airvlm.runtime.text_stream import PartialText, _strip_ends, stream_text


class Bytes:
    """A tokenizer whose tokens are the bytes of the text: characters come in parts."""

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")


def read(text: str, stops: tuple[str, ...] = ()) -> tuple[list[str], str]:
    partial = PartialText(Bytes(), stops)
    pieces = []
    for byte in text.encode():
        if partial.add(byte):
            break
        pieces.append(partial.next_piece())
    return [*pieces, partial.last_piece()], partial.whole()


@given(
    st.text(alphabet="ab .\nü€🙂", max_size=30),
    st.lists(st.text(alphabet="ab.\n", min_size=1, max_size=3), max_size=3),
)
def test_pieces_add_up_to_the_whole(text: str, stops: list[str]) -> None:
    pieces, whole = read(text, tuple(stops))
    assert "".join(pieces) == whole


@given(st.text(alphabet="ab .\nü€🙂", max_size=30))
def test_without_stops_the_whole_is_the_stripped_text(text: str) -> None:
    assert read(text)[1] == text.strip()


def test_a_stop_string_ends_the_text_before_itself() -> None:
    assert read("a dog. a cat. a cow", (". ",))[1] == "a dog"


def test_nothing_is_shown_that_a_stop_string_would_take_back() -> None:
    pieces, whole = read("one END two", ("END",))
    assert whole == "one"
    assert "".join(pieces) == "one"


@pytest.mark.parametrize(
    "pieces", [[" ", " a", "b ", " ", " c", " \n"], ["a b"], [" \n "], [], ["", " x", "", " ", ""], ["  a ", "", "b"]]
)
def test_a_stream_has_no_white_space_at_its_ends(pieces: list[str]) -> None:
    found = list(_strip_ends(pieces))
    assert "".join(found) == "".join(pieces).strip()
    assert "" not in found


def test_an_error_of_the_generation_reaches_the_reader_and_frees_the_model() -> None:
    class Processor:
        tokenizer = Bytes()

    def generate(**kwargs: Any) -> None:
        raise RuntimeError("out of memory")

    lock = ModelLock()
    with pytest.raises(RuntimeError, match="out of memory"):
        list(stream_text(generate, Processor(), lock.acquire()))
    assert not lock.waiting
