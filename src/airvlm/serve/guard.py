"""Who may send requests: checks of the Host, Origin and Authorization headers, as ASGI middleware."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airvlm.serve.errors import ApiError

if TYPE_CHECKING:
    from airvlm.serve.metrics import Metrics

__all__ = ["HostGuard", "KeyGuard", "is_loopback"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class HostGuard:
    """Refuses requests that a web page of somebody else could have sent.

    A browser sends the name that a page used as Host, and the page's own address as Origin. Host must be a name of this
    server, so that a name which was rebound to this address is refused; Origin must be the same as Host or allowed. On
    an address for all interfaces, whose names cannot be known, Host is checked only if names are given.

    Args:
        app: the application.
        host: the address that the server listens on.
        allow_hosts: further names of the server, without a port.
    """

    def __init__(self, app: ASGIApp, *, host: str, allow_hosts: Iterable[str] = ()) -> None:
        self.app = app
        self.allowed = {name.strip("[]").lower() for name in allow_hosts}
        bound = host.strip("[]").lower()
        self.names = {bound, *self.allowed} | (set(LOOPBACK) if is_loopback(bound) else set())
        self.any_name = bound in ("0.0.0.0", "::", "") and not self.allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._problem(scope["headers"])):
            await ApiError(403, problem).response()(scope, receive, send)
        elif scope["type"] == "websocket":  # nothing here uses them
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self.app(scope, receive, send)

    def _problem(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        headers = list(headers)
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        if len(hosts) != 1:
            return "a request needs one Host header"
        host = _split(b"//" + hosts[0])
        if host is None or not (self.any_name or host[0] in self.names):
            return "this server does not answer to that Host; start it with --allow-host NAME to add a name"
        for value in origins:
            origin = _split(value)
            if origin is None or not (origin[0] in self.allowed or origin == host):
                return "requests from web pages of another origin are refused"
        return None


def _split(address: bytes) -> tuple[str, int | None] | None:
    """Host name and port of `//host:port` or `scheme://host:port`; None if it is neither."""
    try:
        parts = urlsplit(address.decode("ascii").strip())
        if not parts.hostname or parts.path.strip("/") or parts.query or parts.username is not None:
            return None
        return parts.hostname.lower(), None if parts.port in (80, 443) else parts.port
    except ValueError:
        return None


class KeyGuard:
    """Asks for the API key, and counts requests.

    Args:
        app: the application.
        metrics: where requests are counted.
        api_key: the key; None asks for none.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, api_key: str | None) -> None:
        self.app, self.metrics, self.api_key = app, metrics, api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.metrics.requests.labels(status=str(message["status"])).inc()
            await send(message)

        app: Any = self.app
        if self.api_key is not None and scope["path"] != "/health" and not self._has_key(scope):
            app = ApiError(401, "a valid key is needed: Authorization: Bearer KEY", code="invalid_api_key").response()
        try:
            await app(scope, receive, count)
        finally:
            if scope["path"] == "/v1/chat/completions":
                self.metrics.seconds.observe(time.perf_counter() - started)

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:  # of several, proxies and servers may take different ones
            return False
        scheme, _, key = given[0].strip().partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), (self.api_key or "").encode())
