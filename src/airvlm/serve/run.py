"""Running an application with uvicorn: time limits for requests that arrive slowly, and a bounded shutdown."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from airvlm.serve.limits import Limits

__all__ = ["make_server", "run_server"]

log = logging.getLogger("airvlm.serve")
LAST_READ = 0.2  # seconds after a stop in which requests that were sent before are still read


def run_server(app: Any, *, host: str, port: int, limits: Limits = Limits(), log_level: str = "info") -> None:
    """Serve an application until SIGTERM or SIGINT, then finish the answers under way.

    Args:
        app: an ASGI application.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        limits: for connections and times.
        log_level: of uvicorn.
    """
    make_server(app, host=host, port=port, limits=limits, log_level=log_level).run()


def make_server(
    app: Any, *, host: str, port: int, limits: Limits = Limits(), log_level: str = "info"
) -> uvicorn.Server:
    """The server of `run_server`, for callers that run it themselves."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=type("Connection", (_Connection,), {"limits": limits}),
        ws="none",
        log_level=log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(limits.shutdown_seconds),
    )
    return uvicorn.Server(config)


class _Connection(H11Protocol):
    """uvicorn's connection with time limits: for headers, for bodies, and for clients that do not read their answers.

    Beyond the limit on connections, the one that has been sending its request for longest makes room for a new one.
    """

    limits: ClassVar[Limits]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._phase: str | None = None  # what the client is sending: "headers" or "body"; None: it waits for us
        self._since = 0.0
        self._receiving: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_phase()
        if len(self.connections) > self.limits.connections:
            slow = [one for one in self.connections if isinstance(one, _Connection) and one._phase is not None]
            min(slow, key=lambda one: one._since, default=self)._refuse(503, "Service Unavailable")

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._receiving, self._writing):
            if timer is not None:
                timer.cancel()
        self._phase = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_phase()

    def shutdown(self) -> None:
        if self._phase is None:
            super().shutdown()
        else:  # the rest of a request may have arrived that was not read yet
            self.loop.call_later(LAST_READ, self._end)

    def _end(self) -> None:
        if self._phase == "body" and not self.cycle.response_started:
            self._refuse(503, "Service Unavailable")  # never arrived in full: nothing is lost
        elif not self.transport.is_closing():
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()

    def _set_phase(self) -> None:
        phase = {h11.IDLE: "headers", h11.SEND_BODY: "body"}.get(self.conn.their_state)
        if phase == self._phase:
            return
        self._phase, self._since = phase, self.loop.time()
        if self._receiving is not None:
            self._receiving.cancel()
        if phase is not None:
            seconds = self.limits.header_seconds if phase == "headers" else self.limits.body_seconds
            self._receiving = self.loop.call_later(seconds, self._refuse, 408, "Request Timeout")

    def _refuse(self, status: int, reason: str) -> None:
        """End a connection whose request has not arrived."""
        if not self.transport.is_closing():
            if self._phase == "headers" or not self.cycle.response_started:
                head = f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                self.transport.write(head.encode())
            self.transport.close()
