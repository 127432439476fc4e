"""A tiktoken file becomes a fast tokenizer with the same ids."""

import base64
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airvlm.models.ported.tokenizer import (
    BOUNDARY,
    ESCAPE,
    VocabularyError,
    build_tokenizer,
    read_ranks,
)
from airvlm.models.qwen_vl.processing import PATTERN, SPECIALS, QWenTokenizer
from tests.models.ported import tiny_checkpoints as tiny

RANKS = {token: rank for rank, token in enumerate(tiny.vocabulary())}
FAST = build_tokenizer(RANKS, SPECIALS, PATTERN, nfc=False)


def by_rank(piece: bytes) -> list[int]:
    """tiktoken's rule, word for word: join the leftmost neighbours whose join has the lowest rank, until none has."""
    if piece in RANKS:
        return [RANKS[piece]]
    parts = [bytes([b]) for b in piece]
    while True:
        joins = [(RANKS[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in RANKS]  # noqa: RUF007
        if not joins:
            return [RANKS[part] for part in parts]
        _, i = min(joins)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@pytest.mark.slow
@given(st.text(alphabet="thereisadogn é图", max_size=12))
@settings(max_examples=300, deadline=None)
def test_merging_is_by_lowest_rank(text: str) -> None:
    pieces = [piece for piece, _ in FAST.pre_tokenizer.pre_tokenize_str(text)]
    letters = {letter: byte for byte, letter in _letters().items()}
    wanted = [i for piece in pieces for i in by_rank(bytes(letters[c] for c in piece))]
    assert FAST.encode(text).ids == wanted


def _letters() -> dict[int, str]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    found: dict[int, str] = bytes_to_unicode()
    return found


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_text_comes_back(text: str) -> None:
    text = text.replace(BOUNDARY, "").replace(ESCAPE, "")
    assert FAST.decode(FAST.encode(text).ids, skip_special_tokens=False) == text


def test_nothing_merges_across_a_boundary() -> None:
    def ids(text: str) -> list[int]:
        return list(FAST.encode(text).ids)

    assert ids(f" the{BOUNDARY}re") == ids(" the") + ids("re") != ids(" there")
    assert ids(f"\n{BOUNDARY}\n") == ids("\n") * 2


def test_an_escaped_special_string_is_ordinary_text() -> None:
    special = FAST.encode("<|im_end|>").ids
    ordinary = FAST.encode(f"<{ESCAPE}|im_end|>").ids
    assert special == [FAST.token_to_id("<|im_end|>")]
    assert ordinary == [RANKS[bytes([b])] for b in b"<|im_end|>"]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\n\n"])
def test_line_ends_do_not_matter(tmp_path: Path, newline: bytes) -> None:
    tiny.write_vocabulary(tmp_path / "v", list(RANKS), newline)
    assert read_ranks(tmp_path / "v") == RANKS


def test_a_file_cut_short_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    lines = [base64.b64encode(token) + f" {rank}".encode() for token, rank in RANKS.items()]
    (tmp_path / "hole").write_bytes(b"\n".join(lines[:100] + lines[101:]))
    with pytest.raises(VocabularyError, match="incomplete"):
        read_ranks(tmp_path / "hole")
    (tmp_path / "other").write_bytes(b"\x0a\x0e\x0a\x05<unk>\x15")
    with pytest.raises(VocabularyError, match="line 2: expected 'base64 rank'"):
        read_ranks(tmp_path / "other")
    (tmp_path / "pointer").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(VocabularyError, match="git lfs pull"):
        read_ranks(tmp_path / "pointer")
    with pytest.raises(VocabularyError, match=r"no qwen\.tiktoken"):
        QWenTokenizer.convert_to_native_format()
