"""What a request may contain: honored, ignored, or refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airvlm.serve.errors import ApiError
from airvlm.serve.limits import Limits
from airvlm.serve.openapi import ERRORS, describe_completions
from airvlm.serve.schema import IGNORED, NEUTRAL, parse_request

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def parse(data: Any, limits: Limits = Limits()) -> Any:
    return parse_request(json.dumps(data).encode(), limits)


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_cannot_be_honored_is_refused_by_name(name: str) -> None:
    for value in ({"x": 1}, True, 3):
        with pytest.raises(ApiError, match=name) as caught:
            parse(HELLO | {name: value})
        assert caught.value.param == name
    for harmless in NEUTRAL[name]:
        parse(HELLO | {name: harmless})


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_what_does_not_concern_the_answer_is_ignored(name: str) -> None:
    assert parse(HELLO | {name: "x"}) == parse(HELLO)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 1e-45}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": "a" * 257}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"top_logprobs": 3}, None),
        ({"top_logprobs": 50, "logprobs": True}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, None),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "hello"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "hello"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 3}}]}]},
            "messages.0.content.0.image_url.url",
        ),
        ({"messages": [{"role": "user"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0"),
        ({"messages": "hello"}, "messages"),
        ({"model": None}, "model"),
        ({"model": "m" * 513}, "model"),
        ({"airvlm": "crop-blend"}, "airvlm"),
        ({"wat": 1}, "wat"),
    ],
    ids=str,
)
def test_a_bad_value_is_refused_with_its_place(change: dict[str, Any], place: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse(HELLO | change)
    assert caught.value.status == 400
    assert caught.value.message
    if place is not None:
        assert (caught.value.param or "").startswith(place)
    # neither the names of types nor pydantic's own words
    assert not re.search(r"constrained|Value error|\[str", f"{caught.value.message}{caught.value.param}")


@pytest.mark.parametrize("change", [{"seed": -1}, {"top_p": 0}, {"temperature": 0}, {"temperature": 1e-4}], ids=str)
def test_what_openai_accepts_is_accepted(change: dict[str, Any]) -> None:
    parse(HELLO | change)


@pytest.mark.parametrize("field", ["refusal", "annotations", "audio", "tool_calls", "function_call"])
def test_a_message_of_the_client_is_taken_back(field: str) -> None:
    """OpenAI's client returns an answer's message with these fields, empty."""
    for empty in (None, []):
        message = {"role": "assistant", "content": None, field: empty}
        assert parse(HELLO | {"messages": [*HELLO["messages"], message, *HELLO["messages"]]}).messages[1].parts == []
    for full in ([{"id": "x"}], {"a": 1}, "no", 0):
        message = {"role": "assistant", "content": "a", field: full}
        with pytest.raises(ApiError, match=f"messages.1.{field}.*not supported"):
            parse(HELLO | {"messages": [*HELLO["messages"], message, *HELLO["messages"]]})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"3",
        b"\xff\xfe",
        b"{" * 5000,
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b'{"model": NaN}',
        b'{"temperature": Infinity, "model": "m", "messages": []}',
        b'{"model": "\\ud800"}',
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_is_a_json_object(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(body, Limits())
    assert caught.value.status == 400


def test_the_structure_of_a_body_is_limited_before_it_is_parsed() -> None:
    many = b'{"x": [' + b"[]," * 30_000 + b"[]]}"
    with pytest.raises(ApiError, match="more than 20000 values"):
        parse_request(many, Limits())
    with pytest.raises(ApiError, match="129 messages; this server takes at most 128"):
        parse(HELLO | {"messages": HELLO["messages"] * 129})


def test_only_a_user_message_contains_images() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(ApiError, match="cannot contain an image"):
        parse(HELLO | {"messages": [{"role": "system", "content": [image]}, *HELLO["messages"]]})


@pytest.mark.parametrize(("stop", "stops"), [(None, ()), ("END", ("END",)), (["a", "", "b"], ("a", "b"))])
def test_stop_is_a_text_or_several(stop: Any, stops: tuple[str, ...]) -> None:
    assert parse(HELLO | {"stop": stop}).stops == stops


def test_the_numbers_of_values_and_messages_that_are_named_are_accepted() -> None:
    parse(HELLO | {"messages": HELLO["messages"] * 128})
    values = json.dumps(HELLO).count(",") + sum(json.dumps(HELLO).count(mark) for mark in "[{")
    parse(HELLO, Limits(values=values))
    with pytest.raises(ApiError, match=f"more than {values - 1} values"):
        parse(HELLO, Limits(values=values - 1))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_an_error_has_the_type_that_openais_client_expects(status: int, kind: str) -> None:
    assert ApiError(status, "no").body()["error"]["type"] == kind


def test_a_long_message_is_cut() -> None:
    assert [len(ApiError(400, "x" * n).message) for n in (1000, 1001)] == [1000, 1003]


def test_the_limits_are_the_documented_ones() -> None:
    limits, page = Limits(), (Path(__file__).parents[2] / "docs/integrations/server.md").read_text(encoding="utf-8")
    million = 10**6
    for row in (
        f"| {limits.body // 2**20} MB |",
        f"| {limits.images}, of {limits.pixels / million:g} million pixels each and "
        f"{limits.request_pixels / million:g} million together |",
        f"| one side at most {limits.aspect} times the other |",
        f"| {limits.messages} messages, {limits.characters:,} characters |",
        f"| {limits.prompt_tokens:,}, and the model's context |",
        f"| {limits.tokens:,}, {limits.choices} |",
        f"| {limits.methods.crops} crops, {limits.methods.parts} methods at once, nested {limits.methods.depth} deep |",
        f"429 with `Retry-After` | {limits.queue} |",
        f"| answers per batch | {limits.batch} |",
        f"| connections | {limits.connections} |",
        f"| headers, body | {limits.header_seconds:g} s, {limits.body_seconds:g} s to arrive |",
    ):
        assert row in page
    assert limits.server_pixels == limits.request_pixels  # the largest request that is accepted finds room


def test_the_published_schema_names_every_status_of_an_answer() -> None:
    named = describe_completions()["responses"]
    assert set(named) | set(ERRORS) == {200, 400, 401, 403, 404, 408, 413, 415, 429, 500}
