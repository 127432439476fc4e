"""A chat completion as clients ask for it: what is honoured, what is ignored, and what is refused by name.

Knows OpenAI's fields and nothing of models or images.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from airvlm.serve.errors import ApiError

__all__ = ["ChatRequest", "ImagePart", "Message", "TextPart", "parse_request"]

Finite = Annotated[float, Field(allow_inf_nan=False)]

# Asked for with these values they change nothing, with others they are refused by name.
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
# They say nothing about the answer.
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


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    name: str | None = None

    @property
    def parts(self) -> list[TextPart | ImagePart]:
        return [TextPart(type="text", text=self.content)] if isinstance(self.content, str) else self.content

    @model_validator(mode="after")
    def _images_come_from_users(self) -> Message:
        if self.role != "user" and any(isinstance(part, ImagePart) for part in self.parts):
            raise ValueError(f"a {self.role} message cannot hold an image")
        return self


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class ChatRequest(_Strict):
    """A request whose every field is honoured."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    airvlm: dict[str, Any] | Literal[False] | None = None  # the method of this request

    @field_validator("messages")
    @classmethod
    def _ends_with_a_user(cls, messages: list[Message]) -> list[Message]:
        if messages[-1].role != "user":
            raise ValueError("the last message must be the user's: there is nothing to answer")
        return messages

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
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
        """Addresses of all images, in the order of the conversation."""
        return [
            part.image_url.url for message in self.messages for part in message.parts if isinstance(part, ImagePart)
        ]


def parse_request(data: Any) -> ChatRequest:
    """The request, or an ApiError that names the field at fault."""
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object with model and messages")
    for name, harmless in NEUTRAL.items():
        if name in data and data[name] not in harmless:
            raise ApiError(400, f"{name} is not supported by this server: leave it out", param=name, code="unsupported")
    kept = {name: value for name, value in data.items() if name not in NEUTRAL and name not in IGNORED}
    try:
        return ChatRequest.model_validate(kept)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise ApiError(400, f"{place or 'request'}: {first['msg']}", param=place or None) from error
