"""The requests of OpenAI's chat completions: which fields are honored, ignored, or refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from airvlm.serve.errors import ApiError
from airvlm.serve.limits import Limits

__all__ = ["IGNORED", "NEUTRAL", "ChatRequest", "ImagePart", "Message", "TextPart", "parse_request"]

# With these values they change nothing; with others they are refused by name.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "web_search_options": (None,),
}
# They do not concern the answer.
IGNORED = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
    "verbosity",
}
COLDEST = 1e-5  # below this, logits over temperature overflow in half precision

Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ImageUrl(_Strict):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(_Strict):
    type: Literal["image_url"]
    image_url: ImageUrl


def _empty(value: Any) -> None:
    if value not in (None, "", [], {}):
        raise ValueError("is not supported by this server; leave it out")


# What OpenAI's client sends back with an answer: accepted as long as it says nothing.
Empty = Annotated[None, BeforeValidator(_empty, json_schema_input_type=Literal[""] | list[Any] | None)]
Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]
Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Part], Tag("parts")] | Annotated[None, Tag("null")],
    Discriminator(lambda value: "text" if isinstance(value, str) else "null" if value is None else "parts"),
]


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content = None
    name: str | None = None
    refusal: Empty = None
    annotations: Empty = None
    audio: Empty = None
    tool_calls: Empty = None
    function_call: Empty = None

    @property
    def parts(self) -> list[TextPart | ImagePart]:
        if self.content is None:
            return []
        return [TextPart(type="text", text=self.content)] if isinstance(self.content, str) else self.content

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a {self.role} message needs content")
        if self.role != "user" and any(isinstance(part, ImagePart) for part in self.parts):
            raise ValueError(f"a {self.role} message cannot contain an image")
        return self


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class ChatRequest(_Strict):
    """A chat completion. `airvlm` chooses the method of this request."""

    model: Annotated[str, Field(max_length=512)]
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: (
        Annotated[str, Field(max_length=256)]
        | Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=4)]
        | None
    ) = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    airvlm: dict[str, Any] | bool | None = None

    @field_validator("messages")
    @classmethod
    def _check_last(cls, messages: list[Message]) -> list[Message]:
        if messages[-1].role != "user":
            raise ValueError("the last message must be the user's")
        return messages

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, temperature: float | None) -> float | None:
        if temperature and temperature < COLDEST:
            raise ValueError(f"give 0 (greedy) or at least {COLDEST:g}")
        return temperature

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs=true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream=true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)

    @property
    def texts(self) -> list[str]:
        return [part.text for message in self.messages for part in message.parts if isinstance(part, TextPart)]

    @property
    def urls(self) -> list[str]:
        """The addresses of all images, in the order of the conversation."""
        return [
            part.image_url.url for message in self.messages for part in message.parts if isinstance(part, ImagePart)
        ]


def parse_request(body: bytes, limits: Limits) -> ChatRequest:
    """The request of a JSON body, or an ApiError that names the field at fault."""
    # Counted before anything is built: an empty list takes two bytes here and 64 in memory.
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > limits.values:
        raise ApiError(400, f"the body has more than {limits.values} values")
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object with model and messages")
    for name, harmless in NEUTRAL.items():
        if name in data and not any(_equal(data[name], value) for value in harmless):
            raise ApiError(400, f"{name} is not supported by this server; leave it out", param=name, code="unsupported")
    messages = data.get("messages")
    if isinstance(messages, list) and len(messages) > limits.messages:
        raise ApiError(400, f"{len(messages)} messages; this server takes at most {limits.messages}", param="messages")
    kept = {name: value for name, value in data.items() if name not in NEUTRAL and name not in IGNORED}
    try:
        return ChatRequest.model_validate(kept)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = _place(list(first["loc"]))
        raise ApiError(
            400, f"{place or 'request'}: {first['msg'].removeprefix('Value error, ')}", param=place or None
        ) from error


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def _place(steps: list[Any]) -> str:
    """Where an error is, without the names of the alternatives that pydantic adds."""
    if "parts" in steps:
        at = steps.index("parts")  # followed by the part's number and its type
        del steps[at + 2 : at + 3], steps[at]
    return ".".join(str(step) for step in steps if isinstance(step, int) or step.isidentifier())
