"""Chat completions: a request becomes jobs, their ends become OpenAI's objects, whole or in chunks.

Knows nothing of routes, keys or limits on bytes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airvlm import VLM, Method, parse_method
from airvlm.inputs.images import load_image, read_image
from airvlm.serve.errors import ApiError
from airvlm.serve.jobs import Done, Failed, Job, Piece, Sampling, TokenChance
from airvlm.serve.limits import Limits
from airvlm.serve.schema import ChatRequest, ImagePart, Message
from airvlm.serve.text import GrowingText

__all__ = ["Completion", "chosen_method", "model_names"]

Event = tuple[int, "Piece | Done | Failed"]  # which choice, and what came


def model_names(vlm: VLM) -> list[str]:
    """The names that clients may ask for: the model, and the model under a method."""
    from airvlm.methods import METHODS

    return [vlm.name, *(f"{vlm.name}+{name}" for name in METHODS)]


def chosen_method(request: ChatRequest, vlm: VLM, default: Method | None) -> Method | None:
    """The method of a request: its own, its model name's, or the server's."""
    name, _, spelled = request.model.partition("+")
    if name != vlm.name:
        raise ApiError(
            404,
            f"the model {request.model!r} is not served here; there is {vlm.name!r}, alone or with +method",
            param="model",
            code="model_not_found",
        )
    if request.airvlm is False:
        return None
    if request.airvlm is None:
        return _parsed(spelled, "model") if spelled else default
    fields = dict(request.airvlm)
    method = fields.pop("method", spelled or None)
    if method is None and default is not None:
        method, fields = default.name, {**default.to_json(), **fields}
        fields.pop("name")
        return _made(fields, default.name)
    if not isinstance(method, str):
        raise ApiError(400, "airvlm.method: name a method, as in {'method': 'air'}", param="airvlm")
    return _parsed(method, "airvlm", fields)


def _made(fields: Mapping[str, Any], name: str) -> Method:
    try:
        return Method.from_json({"name": name, **fields})
    except (ValueError, TypeError) as error:
        raise ApiError(400, f"airvlm: {error}", param="airvlm") from error


def _parsed(text: str, param: str, fields: Mapping[str, Any] | None = None) -> Method | None:
    from airvlm.methods import METHODS

    head = text.partition(":")[0].partition("+")[0].strip()
    # names of the registry only: a request may import no module and read no file
    if head not in METHODS and head != "none":
        raise ApiError(400, f"unknown method {head!r}; known: {', '.join(METHODS)}", param=param)
    if fields:
        text += ("," if ":" in text else ":") + ",".join(f"{k}={_spelled(v)}" for k, v in fields.items())
    try:
        return parse_method(text)
    except (ValueError, TypeError) as error:
        raise ApiError(400, f"{param}: {error}", param=param) from error


def _spelled(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"({','.join(_spelled(v) for v in value)},)"
    if isinstance(value, str | int | float):
        return str(value)
    raise ApiError(400, "airvlm: a field is a number, a word, true, false, null or a list", param="airvlm")


class Completion:
    """One request under way."""

    def __init__(self, request: ChatRequest, vlm: VLM, method: Method | None, limits: Limits) -> None:
        self.request, self.vlm, self.method, self.limits = request, vlm, method, limits
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()
        self.jobs: list[Job] = []

    async def prepare(self, allow_urls: bool) -> None:
        """Images loaded, the prompt written, one job for each choice."""
        row = await asyncio.to_thread(self._row, allow_urls)
        ask = self.request
        tokens = ask.max_completion_tokens or ask.max_tokens or min(256, self.limits.tokens)
        if tokens > self.limits.tokens:
            raise ApiError(
                400,
                f"max_tokens = {tokens}: this server writes at most {self.limits.tokens}",
                param="max_tokens",
            )
        if (n := ask.n or 1) > self.limits.choices:
            raise ApiError(400, f"n = {n}: this server gives at most {self.limits.choices}", param="n")
        seed = ask.seed if ask.seed is not None else random.getrandbits(48)
        for i in range(n):
            sampling = None
            if ask.temperature:  # none given means greedy here: every figure of ours is greedy
                sampling = Sampling(ask.temperature, ask.top_p or 1.0, (seed + i) % 2**63)
            self.jobs.append(
                Job(
                    row,
                    self.method,
                    GrowingText(self.vlm.processor.tokenizer, ask.stops),
                    tokens,
                    send=self._sender(i),
                    sampling=sampling,
                    streams=bool(ask.stream),
                    top_logprobs=(ask.top_logprobs or 0) if ask.logprobs else None,
                )
            )

    def _row(self, allow_urls: bool) -> Any:
        ask, limits = self.request, self.limits
        if len(ask.urls) > limits.images:
            raise ApiError(400, f"{len(ask.urls)} images: this server takes at most {limits.images}", param="messages")
        if sum(map(len, ask.texts)) > limits.prompt:
            raise ApiError(400, f"the texts are longer than {limits.prompt} characters", param="messages")
        images = [self._image(url, allow_urls) for url in ask.urls]
        try:
            return self.vlm.builder.read(images, [_turn(message) for message in ask.messages])
        except ValueError as error:
            raise ApiError(400, str(error), param="messages") from error

    def _image(self, url: str, allow_urls: bool) -> Any:
        try:
            if url.startswith("data:"):
                return read_image(load_image(_data(url), max_pixels=self.limits.pixels))
            if not url.startswith(("http://", "https://")):
                raise ApiError(
                    400,
                    "image_url: give a data URI (data:image/png;base64,...) or an http(s) address",
                    param="messages",
                )
            if not allow_urls:
                raise ApiError(
                    400,
                    "image_url: this server fetches no addresses (--allow-urls is off); send a data URI",
                    param="messages",
                )
            return read_image(load_image(url, allow_urls=True, max_pixels=self.limits.pixels))
        except ValueError as error:  # an image that cannot be read
            raise ApiError(400, f"image_url: {error}", param="messages") from error

    def _sender(self, i: int) -> Any:
        def send(event: Piece | Done | Failed) -> None:
            self.loop.call_soon_threadsafe(self.events.put_nowait, (i, event))

        return send

    def cancel(self) -> None:
        for job in self.jobs:
            job.cancelled.set()

    # -- what goes back

    def whole(self, ends: Mapping[int, Done]) -> dict[str, Any]:
        """OpenAI's chat.completion, and what the method did."""
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": done.text, "refusal": None},
                "logprobs": self._logprobs(done.chances),
                "finish_reason": done.reason,
            }
            for i, done in sorted(ends.items())
        ]
        return self._object("chat.completion", choices) | {"usage": usage(ends), "airvlm": self.proof(ends)}

    async def chunks(self, ends: dict[int, Done]) -> AsyncIterator[dict[str, Any]]:
        """OpenAI's chat.completion.chunk, as the texts come; `ends` is filled with what ended."""
        for i in range(len(self.jobs)):
            yield self._chunk(i, {"role": "assistant", "content": ""})
        while len(ends) < len(self.jobs):
            i, event = await self.events.get()
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Piece):
                yield self._chunk(i, {"content": event.text})
                continue
            ends[i] = event
            last = self._chunk(i, {}, event.reason)
            last["choices"][0]["logprobs"] = self._logprobs(event.chances)
            if len(ends) == len(self.jobs):
                last["airvlm"] = self.proof(ends)
            yield last
        if self.request.stream_options is not None and self.request.stream_options.include_usage:
            yield self._object("chat.completion.chunk", []) | {"usage": usage(ends)}

    def proof(self, ends: Mapping[int, Done]) -> dict[str, Any]:
        """That the method acted, or why it did not: one report for each choice."""
        reports = [None if done.report is None else done.report.to_json() for _, done in sorted(ends.items())]
        method = None if self.method is None else self.method.to_json()
        return {"method": method, "fired": sum(bool(r and r["fired"]) for r in reports), "reports": reports}

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }

    def _chunk(self, i: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": i, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._object("chat.completion.chunk", [choice])

    def _logprobs(self, chances: tuple[TokenChance, ...]) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        return {"content": [self._chance(c) for c in chances], "refusal": None}

    def _chance(self, chance: TokenChance) -> dict[str, Any]:
        top = [self._said(token, logprob) for token, logprob in chance.top]
        return self._said(chance.token, chance.logprob) | {"top_logprobs": top}

    def _said(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.vlm.processor.tokenizer.decode([token])
        # -inf is not JSON
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}


def usage(ends: Mapping[int, Done]) -> dict[str, int]:
    prompt = next(iter(ends.values())).prompt_tokens
    written = sum(done.tokens for done in ends.values())
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _turn(message: Message) -> dict[str, Any]:
    """A message in the form of transformers' chat templates."""
    content = [
        {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part.text}
        for part in message.parts
    ]
    return {"role": "system" if message.role == "developer" else message.role, "content": content}


def _data(url: str) -> bytes:
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise ValueError("a data URI must read data:image/png;base64,...")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the data URI is not base64: {error}") from error
