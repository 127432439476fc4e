"""The OpenAPI schema of the server: requests, answers, errors, and the options of every method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter

from airvlm.methods import METHODS, Method
from airvlm.methods.composed import Composed
from airvlm.serve.schema import IGNORED, NEUTRAL, ChatRequest

__all__ = ["ERRORS", "UNKNOWN_MODEL", "describe_completions", "describe_request"]

REFERENCE = "#/components/schemas/{model}"


class Error(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: Error


class TokenInfo(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(TokenInfo):
    top_logprobs: list[TokenInfo]


class Logprobs(BaseModel):
    content: list[TokenLogprobs]
    refusal: None


class AnswerMessage(BaseModel):
    role: str
    content: str
    refusal: None


class Choice(BaseModel):
    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: str


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Proof(BaseModel):
    """The method, how many choices it acted on, and its report per choice."""

    method: dict[str, Any] | None
    fired: int
    reports: list[dict[str, Any] | None]


class ChatCompletion(BaseModel):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    airvlm: Proof


def _errors(descriptions: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody, "description": text} for status, text in descriptions.items()}


ERRORS = _errors({401: "No valid key", 403: "Host or Origin is not allowed"})
UNKNOWN_MODEL = _errors({404: "The model is not served here"})
COMPLETION_ERRORS = _errors(
    {
        400: "The request cannot be honored",
        408: "The request took too long to arrive",
        413: "The body is too large",
        415: "The body is not application/json",
        429: "The server is busy",
        500: "The model failed",
    }
)


def describe_completions() -> dict[str, Any]:
    """What FastAPI is told about the route of chat completions, whose body it does not read itself."""
    ok = {"model": ChatCompletion, "description": "The answer", "content": {"text/event-stream": {}}}
    body = {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": REFERENCE.format(model="ChatRequest")}}},
    }
    return {"responses": {200: ok, **UNKNOWN_MODEL, **COMPLETION_ERRORS}, "openapi_extra": {"requestBody": body}}


def describe_request(app: FastAPI, make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """FastAPI's schema (`make`), with that of the request's body."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = make()
            request = ChatRequest.model_json_schema(ref_template=REFERENCE)
            properties = request["properties"]
            properties |= {name: {"enum": list(values)} for name, values in NEUTRAL.items()}
            properties |= {name: {"description": "ignored"} for name in sorted(IGNORED)}
            properties["airvlm"] = _setting_schema()
            parts = request.pop("$defs")
            schema["components"]["schemas"] |= {**parts, "ChatRequest": request, "Method": _method_schema()}
            app.openapi_schema = schema
        return app.openapi_schema

    return openapi


def _setting_schema() -> dict[str, Any]:
    names = {"enum": ["vanilla", *METHODS]}
    options = {
        "type": "object",
        "description": "options that change the server's method",
        "not": {"required": ["name"]},
    }
    method = {"anyOf": [{"type": "null"}, names, {"$ref": REFERENCE.format(model="Method")}, options]}
    chosen = {"type": "object", "properties": {"method": method}, "required": ["method"], "additionalProperties": False}
    return {"description": "The method of this request", "anyOf": [{"type": ["null", "boolean"]}, chosen]}


def _method_schema() -> dict[str, Any]:
    return {"anyOf": [_options_schema(kind) for kind in [*METHODS.values(), Composed]]}


def _options_schema(kind: type[Method]) -> dict[str, Any]:
    own = {"$ref": REFERENCE.format(model="Method")}
    properties: dict[str, Any] = {"name": {"const": kind.name}}
    for name, option in TypeAdapter(kind).json_schema().get("properties", {}).items():
        if kind.__dataclass_fields__[name].metadata.get("file"):
            continue  # a request cannot name a file
        option = {key: value for key, value in option.items() if key != "default"}
        if "$ref" in option:
            option = own
        elif "$ref" in option.get("items", {}):
            option = {"type": "array", "items": own}
        facts = kind.__dataclass_fields__[name].metadata
        properties[name] = {"description": facts["help"], **option} if "help" in facts else option
    return {
        "type": "object",
        "description": kind.summary,
        "properties": properties,
        "required": ["name"],
        "additionalProperties": False,
    }
