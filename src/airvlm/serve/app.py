"""The routes of the server, as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, StreamingResponse

from airvlm import VLM, Method
from airvlm.serve.completions import Completion, Reader, model_names
from airvlm.serve.errors import ApiError
from airvlm.serve.guard import HostGuard, KeyGuard
from airvlm.serve.limits import Budget, Limits
from airvlm.serve.metrics import Metrics
from airvlm.serve.openapi import ERRORS, UNKNOWN_MODEL, describe_completions, describe_request
from airvlm.serve.scheduler import QueueFull, Scheduler

__all__ = ["make_app"]

log = logging.getLogger("airvlm.serve")
T = TypeVar("T")


def make_app(
    vlm: VLM,
    *,
    method: Method | None = None,
    api_key: str | None = None,
    allow_urls: bool = False,
    host: str = "127.0.0.1",
    allow_hosts: tuple[str, ...] = (),
    limits: Limits = Limits(),
) -> FastAPI:
    """The application over one model.

    Args:
        vlm: the model.
        method: acts where a request names no method.
        api_key: clients must send it; None asks for no key.
        allow_urls: whether images may be downloaded from public http(s) addresses.
        host: the address that the server listens on; requests must name it as their Host.
        allow_hosts: further names by which clients may reach the server.
        limits: what requests may ask for.
    """
    scheduler = Scheduler(vlm, batch=limits.batch, queue=limits.queue, window=limits.window)
    metrics = Metrics(lambda: scheduler.waiting, lambda: scheduler.running)
    scheduler.on_batch = metrics.batches.observe
    names = model_names(vlm)  # imports what installed packages add: no request does
    reader = Reader(vlm, method, limits, allow_urls)
    bodies = Budget(limits.bodies)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        scheduler.start()
        yield
        await asyncio.to_thread(scheduler.close, limits.shutdown_seconds)
        reader.close()

    app = FastAPI(
        title="airvlm",
        description="OpenAI's chat completions, with methods against hallucination",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    app.openapi = describe_request(app, app.openapi)  # type: ignore[method-assign]
    app.state.scheduler, app.state.reader = scheduler, reader

    @app.exception_handler(ApiError)
    async def handle_refusal(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        return ApiError(
            error.status_code,
            f"{request.method} {request.url.path}: {error.detail}",
            headers=dict(error.headers or {}),
        ).response()

    @app.exception_handler(Exception)
    async def handle_failure(request: Request, error: Exception) -> Response:
        return ApiError(500, "the server failed on this request; its log says why").response()

    # the last one added is the first to see a request
    app.add_middleware(KeyGuard, metrics=metrics, api_key=api_key)
    app.add_middleware(HostGuard, host=host, allow_hosts=allow_hosts)

    @app.get("/health", responses={503: {"description": "The model's thread has ended"}})
    async def health() -> JSONResponse:
        alive = scheduler.alive
        body = {"status": "ok" if alive else "the model's thread has ended", "model": vlm.name}
        return JSONResponse(body, 200 if alive else 503)

    @app.get("/metrics", response_class=Response)
    async def counters() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [_model(name) for name in names]})

    @app.get("/v1/models/{name:path}", responses=UNKNOWN_MODEL)
    async def model(name: str) -> JSONResponse:
        if name not in names:
            raise ApiError(404, f"the model {name!r} is not served here", param="model", code="model_not_found")
        return JSONResponse(_model(name))

    @app.post("/v1/chat/completions", **describe_completions())
    async def complete(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "send JSON, with the header Content-Type: application/json")
        async with _body(request, limits.body, bodies) as body:
            completion = await _unless_gone(request, reader.read(body))
        try:
            scheduler.submit(completion.jobs)
        except QueueFull:
            completion.close()
            raise _busy(f"{limits.queue} answers are waiting already", "queue_full") from None
        if completion.request.stream:
            return StreamingResponse(_stream(completion, metrics), media_type="text/event-stream")
        try:
            answer = await _unless_gone(request, completion.whole())
        finally:
            completion.close()
        metrics.count(completion.method, completion.finished, completion.prompt_tokens)
        return JSONResponse(answer)

    return app


@asynccontextmanager
async def _body(request: Request, limit: int, budget: Budget) -> AsyncIterator[bytes]:
    """The body, refused as soon as it is larger than allowed; it counts as held until the block ends."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            if size + len(part) > limit:
                raise ApiError(413, f"the body is larger than {limit} bytes", headers={"Connection": "close"})
            if not budget.take(len(part)):
                raise _busy("too many bytes are being received", "server_busy")
            size += len(part)
            parts.append(part)
        yield b"".join(parts)
    except ClientDisconnect:
        raise ApiError(499, "the client has left") from None
    finally:
        budget.give_back(size)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_leaves(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ApiError(499, "the client has left")
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(completion: Completion, metrics: Metrics) -> AsyncIterator[str]:
    """Server-sent events; when the connection ends, so do the jobs."""
    try:
        async for chunk in completion.chunks():
            yield _event(chunk)
        metrics.count(completion.method, completion.finished, completion.prompt_tokens)
    except ApiError as error:  # the status is sent already
        yield _event(error.body())
    finally:
        completion.close()
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n"


def _busy(message: str, code: str) -> ApiError:
    return ApiError(429, f"{message}; try again later", code=code, headers={"Retry-After": "1"})


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "airvlm"}
