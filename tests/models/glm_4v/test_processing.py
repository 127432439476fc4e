"""GLM-4V's tokenizer: the mechanism on a small vocabulary, and the original's ids where its vocabulary is at hand.

The official file comes with the checkpoint only: AIRVLM_GLM_VOCABULARY=/path/to/tokenizer.model runs the pairs.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from airvlm.models.glm_4v.processing import PATTERN, SPECIALS, ChatGLM4Tokenizer
from tests.models.ported import golden_cases as golden
from tests.models.ported import tiny_checkpoints as tiny


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ChatGLM4Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.model"
    tiny.write_vocabulary(path, tiny.vocabulary())
    return ChatGLM4Tokenizer.from_vocabulary(path)


def cases() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden.folder("glm_4v") / "tokenizer_cases.json").read_text())
    return found


@cache
def real() -> ChatGLM4Tokenizer:
    path = os.environ.get("AIRVLM_GLM_VOCABULARY")
    if not path:
        pytest.skip("AIRVLM_GLM_VOCABULARY does not name GLM-4V's tokenizer.model")
    return ChatGLM4Tokenizer.from_vocabulary(path)


def official(ids: list[int], tokenizer: ChatGLM4Tokenizer) -> list[int]:
    """Our one id for an image's rows -> the original's placeholder."""
    ours, theirs = tokenizer.convert_tokens_to_ids(["<|image|>", "<|endoftext|>"])
    return [theirs if i == ours else i for i in ids]


def chat(tokenizer: ChatGLM4Tokenizer, turns: list[dict[str, Any]]) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    return official(ids, tokenizer)


@pytest.mark.slow
def test_text_and_chats_are_encoded_as_by_the_original() -> None:
    for case in cases()["plain_encode"]:
        ids = real().encode(case["text"], add_special_tokens=False, split_special_tokens=True)
        assert ids == case["ids"], case["text"]
    for case in cases()["chat"]:
        assert chat(real(), case["messages"]) == case["input_ids"], case["name"]


def test_text_is_cut_by_the_official_pattern() -> None:
    assert cases()["split_pattern"] == PATTERN


def test_special_tokens_follow_the_vocabulary_in_the_official_order(small: ChatGLM4Tokenizer) -> None:
    first = len(tiny.vocabulary())
    assert small.convert_tokens_to_ids(list(SPECIALS)) == list(range(first, first + len(SPECIALS)))
    wanted = cases()["special_tokens"]
    for token, known in wanted.items():
        assert small.convert_tokens_to_ids(token) - first == known - wanted["<|endoftext|>"]


def test_chats_have_the_originals_structure(small: ChatGLM4Tokenizer) -> None:
    """Special ids and their neighbours are known without the real vocabulary; text is whatever it encodes to."""

    def text(piece: str) -> list[int]:
        ids: list[int] = small.encode(piece, add_special_tokens=False, split_special_tokens=True)
        return ids

    def special(*tokens: str) -> list[int]:
        return [small.convert_tokens_to_ids(token) for token in tokens]

    image = special("<|begin_of_image|>", "<|endoftext|>", "<|end_of_image|>")
    for case in cases()["chat"]:
        wanted = special("[gMASK]", "<sop>")
        for turn in case["messages"]:
            wanted += special(f"<|{turn['role']}|>") + text("\n")
            wanted += image if "image" in turn else []
            wanted += text(turn["content"])
        assert chat(small, case["messages"]) == wanted + special("<|assistant|>"), case["name"]


def test_digits_go_in_threes_and_letters_are_not_recomposed(small: ChatGLM4Tokenizer) -> None:
    cut = [piece for piece, _ in small.backend_tokenizer.pre_tokenizer.pre_tokenize_str("12345 a1")]
    assert cut == ["123", "45", "Ġ", "a", "1"] or cut == ["123", "45", "Ġa", "1"]
    decomposed = "e\u0301"
    assert small.decode(small.encode(decomposed, add_special_tokens=False)) == decomposed


@pytest.mark.parametrize("typed", ["x<|assistant|>y", "[gMASK]<sop>", "<|endoftext|>", "[MASK] <eop>", "<|image|>"])
def test_special_strings_typed_in_a_chat_stay_text(small: ChatGLM4Tokenizer, typed: str) -> None:
    for content in (typed, [{"type": "text", "text": typed}]):
        ids = chat(small, [{"role": "user", "content": content, "metadata": typed}])
        specials = small.convert_ids_to_tokens([i for i in ids if i >= len(tiny.vocabulary())])
        assert specials == ["[gMASK]", "<sop>", "<|user|>", "<|assistant|>"]
        assert small.decode(ids, skip_special_tokens=True).count(typed) == 2


def test_plain_text_gets_the_prefix_and_a_chat_does_not_get_it_twice(small: ChatGLM4Tokenizer) -> None:
    prefix = small.convert_tokens_to_ids(["[gMASK]", "<sop>"])
    assert small("dog")["input_ids"][:2] == prefix
    assert chat(small, [{"role": "user", "content": "dog"}]).count(prefix[0]) == 1


def test_two_images_in_a_conversation_are_refused(small: ChatGLM4Tokenizer) -> None:
    image = {"type": "image"}
    for turns in (
        [{"role": "user", "content": [image, image]}],
        [{"role": "user", "content": [image]}, {"role": "user", "content": [image]}],
    ):
        with pytest.raises(Exception, match="one image per conversation"):
            chat(small, turns)


def test_saving_and_loading_keeps_everything(small: ChatGLM4Tokenizer, tmp_path: Path) -> None:
    small.save_pretrained(tmp_path)
    again = ChatGLM4Tokenizer.from_pretrained(tmp_path)
    assert again("Is there a dog?")["input_ids"] == small("Is there a dog?")["input_ids"]
    assert again.padding_side == "left" and again.chat_template == small.chat_template
