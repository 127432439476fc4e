"""The server: routes, keys, and limits. What an answer is, is completions.py; how answers run, scheduler.py."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from airvlm import VLM, Method
from airvlm.serve.completions import Completion, chosen_method, model_names
from airvlm.serve.errors import ApiError
from airvlm.serve.jobs import Done, Failed
from airvlm.serve.limits import Limits
from airvlm.serve.metrics import Metrics
from airvlm.serve.scheduler import QueueFull, Scheduler
from airvlm.serve.schema import parse_request

__all__ = ["make_app"]

log = logging.getLogger("airvlm.serve")
LOOK = 0.25  # seconds between two looks whether the client is still there


def make_app(
    vlm: VLM,
    *,
    method: Method | None = None,
    api_key: str | None = None,
    allow_urls: bool = False,
    limits: Limits = Limits(),
) -> FastAPI:
    """The application over one model; `method` acts where a request names none."""
    scheduler = Scheduler(vlm, batch=limits.batch, queue=limits.queue, window=limits.window)
    metrics = Metrics(lambda: scheduler.waiting, lambda: scheduler.running)
    scheduler.on_batch = metrics.batches.observe

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        scheduler.start()
        yield
        await asyncio.to_thread(scheduler.close)

    app = FastAPI(title="airvlm", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.scheduler, app.state.metrics = scheduler, metrics

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        return ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}").response()

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return ApiError(500, "the server failed on this request; its log says why").response()

    app.add_middleware(_Guard, metrics=metrics, api_key=api_key)

    @app.get("/health")
    async def health() -> Response:
        alive = scheduler.alive
        body = {"status": "ok" if alive else "the model's thread has ended", "model": vlm.name}
        return JSONResponse(body, 200 if alive else 503)

    @app.get("/metrics")
    async def counters() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in model_names(vlm)]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        if name not in model_names(vlm):
            raise ApiError(404, f"the model {name!r} is not served here", param="model", code="model_not_found")
        return _model(name)

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        asked = parse_request(_json(await _body(request, limits.body)))
        completion = Completion(asked, vlm, chosen_method(asked, vlm, method), limits)
        await completion.prepare(allow_urls)
        try:
            scheduler.submit(completion.jobs)
        except QueueFull:
            raise ApiError(
                429,
                f"{limits.queue} answers wait already: try again later",
                code="queue_full",
                headers={"Retry-After": "1"},
            ) from None
        if asked.stream:
            return StreamingResponse(_events(completion, metrics), media_type="text/event-stream")
        try:
            ends = await _ends(completion, request)
        finally:
            completion.cancel()
        _count(metrics, completion, ends)
        return JSONResponse(completion.whole(ends))

    return app


async def _ends(completion: Completion, request: Request) -> dict[int, Done]:
    """Every choice's end; a client that has gone calls them off."""
    ends: dict[int, Done] = {}
    while len(ends) < len(completion.jobs):
        try:
            i, event = await asyncio.wait_for(completion.events.get(), LOOK)
        except TimeoutError:
            if await request.is_disconnected():
                raise ApiError(499, "the client has gone") from None
            continue
        if isinstance(event, Failed):
            log.error("an answer failed: %s", event.error, exc_info=event.error)
            raise _failure(event.error)
        if isinstance(event, Done):
            ends[i] = event
    return ends


async def _events(completion: Completion, metrics: Metrics) -> AsyncIterator[str]:
    """Server-sent events; the end of the connection, whoever ends it, calls the jobs off."""
    ends: dict[int, Done] = {}
    try:
        async for chunk in completion.chunks(ends):
            yield _event(chunk)
        _count(metrics, completion, ends)
    except Exception as error:  # the status is sent already: the error goes the way of the chunks
        log.error("a stream failed: %s", error, exc_info=error)
        yield _event(_failure(error).body())
    finally:
        completion.cancel()
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n"


def _failure(error: Exception) -> ApiError:
    return ApiError(500, f"the model could not answer: {type(error).__name__}: {error}")


def _count(metrics: Metrics, completion: Completion, ends: dict[int, Done]) -> None:
    name = "vanilla" if completion.method is None else completion.method.name
    for done in ends.values():
        metrics.answers.labels(method=name).inc()
        metrics.tokens.labels(kind="prompt").inc(done.prompt_tokens)
        metrics.tokens.labels(kind="answer").inc(done.tokens)
        if done.report is not None and done.report.fired:
            metrics.fired.labels(method=name).inc()


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "airvlm"}


class _Guard:
    """Asks for the key, and counts what was answered. Plain ASGI, so that streams and disconnects pass untouched."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, api_key: str | None) -> None:
        self.app, self.metrics, self.api_key = app, metrics, api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.metrics.requests.labels(status=str(message["status"])).inc()
            await send(message)

        if self.api_key is not None and scope["path"] != "/health" and not self._authorised(scope):
            error = ApiError(401, "a valid key is needed: Authorization: Bearer ...", code="invalid_api_key")
            await error.response()(scope, receive, counted)
            return
        try:
            await self.app(scope, receive, counted)
        finally:
            if scope["path"] == "/v1/chat/completions":
                self.metrics.seconds.observe(time.perf_counter() - started)

    def _authorised(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given.strip(), f"Bearer {self.api_key}".encode())


async def _body(request: Request, limit: int) -> bytes:
    """The body, refused as soon as it is larger than allowed, whatever its header says."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise ApiError(413, f"the body is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
