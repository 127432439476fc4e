"""One chat completion: from a request's body to jobs for the model, and from their events to OpenAI's objects."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import random
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from airvlm import VLM, Method
from airvlm.inputs.builder import InputBuilder, Request
from airvlm.methods import METHODS
from airvlm.methods.requests import method_from_names, method_from_request
from airvlm.report import Report
from airvlm.runtime.text_stream import PartialText
from airvlm.serve.errors import ApiError
from airvlm.serve.images import ImageReader, RequestImages, fetch_image, is_web_address, scale_crops
from airvlm.serve.jobs import Delta, Event, Failed, Finished, Job, Sampling, TokenLogprob
from airvlm.serve.limits import Limits
from airvlm.serve.schema import ChatRequest, ImagePart, Message, parse_request

__all__ = ["Completion", "Reader", "choose_method", "model_names"]

log = logging.getLogger("airvlm.serve")
T = TypeVar("T")
DEFAULT_TOKENS = 256  # new tokens where a request sets no limit


def model_names(vlm: VLM) -> list[str]:
    """The names that clients may ask for: the model, and the model with each method that works by default."""
    names = ["vanilla"]
    for name in METHODS:
        with suppress(ValueError):  # a control that needs options
            method_from_names([name])
            names.append(name)
    return [vlm.name, *(f"{vlm.name}+{name}" for name in names)]


def choose_method(request: ChatRequest, served: str, default: Method | None, limits: Limits) -> Method | None:
    """The method of a request: that of its `airvlm` field, of its model name, or the server's.

    Args:
        request: the request.
        served: the name of the served model; after it may stand +NAME for methods of the registry.
        default: the server's method.
        limits: the server's limits.
    """
    rest = request.model.removeprefix(served)
    if not request.model.startswith(served) or (rest and not rest.startswith("+")):
        raise ApiError(
            404,
            f"the model {request.model!r} is not served here; there is {served!r}, alone or with +METHOD",
            param="model",
            code="model_not_found",
        )
    try:
        if rest:
            default = method_from_names(rest[1:].split("+"), limits.methods)
    except ValueError as error:
        raise ApiError(400, f"model: {error}", param="model") from error
    try:
        return method_from_request(request.airvlm, default, limits.methods)
    except ValueError as error:
        raise ApiError(400, f"airvlm: {error}", param="airvlm") from error


class Reader:
    """Turns bodies into completions, in threads of its own, so that the event loop never waits.

    Args:
        vlm: the model.
        method: the method of requests that name none.
        limits: the server's limits.
        allow_urls: whether images may be downloaded from public addresses.
    """

    def __init__(self, vlm: VLM, method: Method | None, limits: Limits, allow_urls: bool) -> None:
        self.vlm, self.method, self.limits, self.allow_urls = vlm, method, limits, allow_urls
        self.images = ImageReader(vlm.processor, limits)
        self.context = getattr(vlm.model.config.get_text_config(), "max_position_embeddings", None)
        self._threads = ThreadPoolExecutor(4, "airvlm-read")
        self._downloads = ThreadPoolExecutor(8, "airvlm-download")
        # Fast tokenizers cannot be used by two threads at once: this one is ours, the model's thread has the other.
        processor = copy.copy(vlm.processor)
        processor.tokenizer = copy.deepcopy(vlm.processor.tokenizer)
        self._builder = InputBuilder(vlm.model, processor, vlm.parts)
        self._building = threading.Lock()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._downloads.shutdown(wait=False, cancel_futures=True)

    async def read(self, body: bytes) -> Completion:
        """Parse a body, load its images and write its prompt. The caller closes the completion."""
        request, method = await self._run(self._threads, self._parse, body)
        completion = Completion(request, method, self)
        try:
            pending = [
                self._run(
                    self._downloads if is_web_address(url) else self._threads,
                    lambda url=url: fetch_image(url, allow_urls=self.allow_urls),
                )
                for url in request.urls
            ]
            files = await asyncio.gather(*pending)
            sizes = await self._run(self._threads, self.images.measure, files)
            await self.images.reserve(sizes)
            completion.hold(sizes)
            await self._run(self._threads, completion.load, files, sizes)
        except BaseException:
            completion.close()
            raise
        return completion

    async def _run(self, threads: ThreadPoolExecutor, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, function, *arguments)

    def _parse(self, body: bytes) -> tuple[ChatRequest, Method | None]:
        limits, request = self.limits, parse_request(body, self.limits)
        method = choose_method(request, self.vlm.name, self.method, limits)
        if len(request.urls) > limits.images:
            raise _refuse(f"{len(request.urls)} images; this server takes at most {limits.images}", "messages")
        if sum(map(len, request.texts)) > limits.characters:
            raise _refuse(f"the texts are longer than {limits.characters} characters", "messages")
        tokens = request.max_completion_tokens or request.max_tokens or 1
        if tokens > limits.tokens:
            raise _refuse(f"max_tokens = {tokens}; this server generates at most {limits.tokens}", "max_tokens")
        if (request.n or 1) > limits.choices:
            raise _refuse(f"n = {request.n}; this server gives at most {limits.choices}", "n")
        return request, method

    def build(self, request: ChatRequest, images: RequestImages, method: Method | None) -> tuple[Request, int]:
        """The row of a batch, and the number of its prompt's tokens, those of its images included."""
        try:
            row = self.vlm.builder.read(list(images.images), [_to_turn(message) for message in request.messages])
        except ValueError as error:
            raise _refuse(str(error), "messages") from error
        try:
            with self._building:  # the pixels are cached: the model's thread does not compute them again
                inputs = self._builder.build([row], pixels=True)
        except Exception as error:  # what a processor raises for text that looks like its own special tokens
            log.warning("a prompt could not be encoded", exc_info=error)
            raise _refuse(
                "the conversation cannot be encoded; does a text contain a special token?", "messages"
            ) from error
        if method is not None and row.images:
            with suppress(ValueError):  # what a method refuses, it refuses again when the model is asked
                views = method.further_views(self.vlm.parts, self.vlm.processor, row.images)
                if views is not None:
                    views.prepare()  # likewise the pixels of crops
        return row, inputs["input_ids"].shape[1]


class Completion:
    """One request, from its images to its answers. Call `close` when it has ended."""

    def __init__(self, request: ChatRequest, method: Method | None, reader: Reader) -> None:
        self.request, self.method, self.reader = request, method, reader
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.jobs: list[Job] = []
        self.prompt_tokens = 0
        self.finished: dict[int, Finished] = {}
        self._images = RequestImages()
        self._cancelled = threading.Event()
        self._closing = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def hold(self, sizes: tuple[tuple[int, int], ...]) -> None:
        """Own the pixels that were reserved for images of these sizes, until `load` or `close`."""
        self._images = RequestImages(pixels=sum(width * height for width, height in sizes))

    def load(self, files: list[bytes], sizes: tuple[tuple[int, int], ...]) -> None:
        """Decode the images, write the prompt, and make one job per choice. Runs in a thread."""
        with self._closing:
            if self._cancelled.is_set():
                return
            self._images = RequestImages()  # the reader holds the pixels now
        images = self.reader.images.read(files, sizes)
        with self._closing:
            self._images = images
        if self._cancelled.is_set():  # closed while the images were read
            return self.close()
        row, self.prompt_tokens = self.reader.build(self.request, images, self.method)
        request, limits, context = self.request, self.reader.limits, self.reader.context
        tokens = request.max_completion_tokens or request.max_tokens or min(DEFAULT_TOKENS, limits.tokens)
        if self.prompt_tokens > limits.prompt_tokens:
            raise _refuse(
                f"{self.prompt_tokens} prompt tokens; this server takes at most {limits.prompt_tokens}", "messages"
            )
        if context is not None:
            if self.prompt_tokens >= context:
                message = f"{self.prompt_tokens} prompt tokens; the model's context is {context}"
                raise ApiError(400, message, param="messages", code="context_length_exceeded")
            tokens = min(tokens, context - self.prompt_tokens)
        seed = request.seed if request.seed is not None else random.getrandbits(48)
        for i in range(request.n or 1):
            sampling = None
            if request.temperature and request.top_p != 0:  # greedy unless a temperature is given
                sampling = Sampling(request.temperature, request.top_p or 1.0, (seed + i) % 2**63)
            job = Job(
                row,
                self.method,
                PartialText(self.reader.vlm.processor.tokenizer, request.stops),
                tokens,
                send=self._sender(i),
                cancelled=self._cancelled,
                sampling=sampling,
                stream=bool(request.stream),
                top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            )
            self.jobs.append(job)

    def close(self) -> None:
        """Cancel what still runs, and release the images."""
        self._cancelled.set()
        with self._closing:
            pixels, self._images = self._images.pixels, replace(self._images, pixels=0)
        self.reader.images.budget.give_back(pixels)

    def _sender(self, i: int) -> Callable[[Event], None]:
        def send(event: Event) -> None:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (i, event))

        return send

    async def _next_event(self) -> tuple[int, Delta | Finished]:
        i, event = await self._events.get()
        if isinstance(event, Failed):
            if isinstance(event.error, ValueError):  # options that do not suit this model, a mode that is not supported
                vlm = self.reader.vlm
                where = str(getattr(vlm.model.config, "_name_or_path", "") or vlm.name)  # may be a folder of the server
                raise ApiError(400, str(event.error).replace(where, vlm.name))
            log.error("an answer failed", exc_info=event.error)
            raise ApiError(500, f"the model could not answer: {type(event.error).__name__}: {event.error}")
        if isinstance(event, Finished):
            self.finished[i] = event
        return i, event

    # -- OpenAI's objects

    async def whole(self) -> dict[str, Any]:
        """The chat.completion, when all choices have ended."""
        while len(self.finished) < len(self.jobs):
            await self._next_event()
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": end.text, "refusal": None},
                "logprobs": self._logprobs(end.logprobs),
                "finish_reason": end.finish_reason,
            }
            for i, end in sorted(self.finished.items())
        ]
        return self._object("chat.completion", choices) | {"usage": self._usage(), "airvlm": self._proof()}

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """The chat.completion.chunk objects, as text arrives."""
        for i in range(len(self.jobs)):
            yield self._chunk(i, {"role": "assistant", "content": ""})
        while len(self.finished) < len(self.jobs):
            i, event = await self._next_event()
            if isinstance(event, Delta):
                yield self._chunk(i, {"content": event.text}, event.logprobs)
                continue
            last = self._chunk(i, {}, event.logprobs, event.finish_reason)
            if len(self.finished) == len(self.jobs):
                last["airvlm"] = self._proof()
            yield last
        if self.request.stream_options is not None and self.request.stream_options.include_usage:
            yield self._object("chat.completion.chunk", []) | {"usage": self._usage()}

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }

    def _chunk(
        self,
        i: int,
        delta: dict[str, Any],
        logprobs: tuple[TokenLogprob, ...] = (),
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        spelled = self._logprobs(logprobs) if logprobs else None
        choice = {"index": i, "delta": delta, "logprobs": spelled, "finish_reason": finish_reason}
        return self._object("chat.completion.chunk", [choice])

    def _usage(self) -> dict[str, int]:
        generated = sum(end.tokens for end in self.finished.values())
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
        }

    def _proof(self) -> dict[str, Any]:
        """The method and what it did: a report per choice."""
        reports = [self._report(end.report) for _, end in sorted(self.finished.items())]
        method = None if self.method is None else self.method.to_json()
        return {"method": method, "fired": sum(bool(r and r["fired"]) for r in reports), "reports": reports}

    def _report(self, report: Report | None) -> dict[str, Any] | None:
        return None if report is None else _replace_nan(scale_crops(report, self._images).to_json())

    def _logprobs(self, logprobs: tuple[TokenLogprob, ...]) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        content = [
            self._token(one.token, one.logprob) | {"top_logprobs": [self._token(*pair) for pair in one.top]}
            for one in logprobs
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.reader.vlm.processor.tokenizer.decode([token])
        # minus infinity is not JSON
        return {"token": text, "logprob": logprob if logprob > -9999.0 else -9999.0, "bytes": list(text.encode())}


def _to_turn(message: Message) -> Mapping[str, Any]:
    """A message in the form of transformers' chat templates."""
    content = [
        {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": part.text}
        for part in message.parts
    ]
    return {"role": "system" if message.role == "developer" else message.role, "content": content}


def _replace_nan(value: Any) -> Any:
    """The value with None in place of NaN and infinity, which are not JSON."""
    if isinstance(value, dict):
        return {key: _replace_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _refuse(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param)
