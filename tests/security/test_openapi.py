"""schemathesis against the published OpenAPI schema: no request ends in an error of the server or breaks the schema."""

from __future__ import annotations

from collections import Counter
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.serve.conftest import data_uri

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]
QUICK = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
IMAGE = data_uri(Image.new("RGB", (16, 16), "red"))
FUZZED = ("crop-blend", "air", "vaf", "vcd", "crg", "nullu", "random-crops", "eos-bias", "composed")
PATHS = ["/health", "/metrics", "/v1/models", "/v1/models/{name}"]


@pytest.fixture(scope="module")
def api(address: str) -> Any:
    schema = httpx.get(f"{address}/openapi.json").json()
    # schemathesis cannot negate fifty alternatives: a few stand for all, and the rest differ in options only
    kinds = schema["components"]["schemas"]["Method"]
    kinds["anyOf"] = [one for one in kinds["anyOf"] if one["properties"]["name"]["const"] in FUZZED]
    api = schemathesis.openapi.from_dict(schema)
    api.config.update(base_url=address)
    return api


def test_every_request_is_answered_as_the_schema_says(api: Any) -> None:
    seen: Counter[int] = Counter()
    operation = api["/v1/chat/completions"]["POST"]
    cases = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

    @QUICK
    @given(case=st.one_of(cases), data=st.data())
    def send(case: Any, data: Any) -> None:
        body = case.body
        if isinstance(body, dict) and data.draw(st.integers(0, 4)) > 0:
            # names and addresses that a fuzzer does not guess
            body["model"] = data.draw(st.sampled_from(["tiny", "tiny+crop-blend", "tiny+vaf", "tiny+vanilla"]))
            body["max_tokens"] = 2
            for name in ("max_completion_tokens", "n"):
                body.pop(name, None)
            if data.draw(st.integers(0, 4)) > 0:
                part = {"type": "image_url", "image_url": {"url": IMAGE}}
                text = {"type": "text", "text": "Is there a dog?"}
                body["messages"] = [{"role": "user", "content": [part, text]}]
        answer = case.call()
        seen[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    send()
    # a fuzzer whose requests all end at the first check tests little
    assert seen[200] >= 10, seen
    assert seen[400] >= 20, seen


@pytest.mark.parametrize("path", PATHS)
def test_other_routes_answer_as_the_schema_says(api: Any, path: str) -> None:
    @settings(QUICK, max_examples=25)
    @given(case=api[path]["GET"].as_strategy())
    def send(case: Any) -> None:
        case.validate_response(case.call(), checks=CHECKS)

    send()


def test_all_routes_are_tested(api: Any) -> None:
    assert set(api) == {*PATHS, "/v1/chat/completions"}


def test_the_schema_names_every_method_and_option(address: str) -> None:
    import dataclasses

    from airvlm.methods import METHODS

    methods = httpx.get(f"{address}/openapi.json").json()["components"]["schemas"]["Method"]["anyOf"]
    named = {one["properties"]["name"]["const"]: one for one in methods}
    assert set(METHODS) <= set(named)
    for name, kind in METHODS.items():
        asked = {field.name for field in dataclasses.fields(kind) if not field.metadata.get("file")}
        assert set(named[name]["properties"]) == {"name", *asked}
