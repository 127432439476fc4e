"""What a request may say: honoured, ignored or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from airvlm.serve.errors import ApiError
from airvlm.serve.schema import IGNORED, NEUTRAL, parse_request

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_cannot_be_honoured_is_refused_by_name(name: str) -> None:
    with pytest.raises(ApiError, match=name) as caught:
        parse_request(HELLO | {name: {"x": 1}})
    assert caught.value.param == name
    for harmless in NEUTRAL[name]:
        parse_request(HELLO | {name: harmless})


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_what_says_nothing_of_the_answer_is_ignored(name: str) -> None:
    assert parse_request(HELLO | {name: "x"}) == parse_request(HELLO)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": float("nan")},
        {"temperature": -1},
        {"temperature": "1"},
        {"top_p": 0},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"n": 0},
        {"seed": -1},
        {"stop": ["a"] * 5},
        {"stream": "yes"},
        {"top_logprobs": 3},
        {"top_logprobs": 50, "logprobs": True},
        {"stream_options": {"include_usage": True}},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "hello"}]},
        {"messages": [{"role": "tool", "content": "hello"}]},
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        {"messages": [{"role": "user"}]},
        {"messages": "hello"},
        {"model": None},
        {"airvlm": "air"},
        {"wat": 1},
    ],
    ids=str,
)
def test_a_bad_value_is_refused_with_its_field(change: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(HELLO | change)
    assert caught.value.status == 400
    assert caught.value.message


@pytest.mark.parametrize("body", [None, [], "x", 3])
def test_a_body_is_an_object(body: Any) -> None:
    with pytest.raises(ApiError, match="JSON object"):
        parse_request(body)


def test_a_system_message_holds_no_image() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(ApiError, match="cannot hold an image"):
        parse_request(HELLO | {"messages": [{"role": "system", "content": [image]}, *HELLO["messages"]]})
