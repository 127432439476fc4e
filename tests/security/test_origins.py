"""A web page of somebody else cannot use a server on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from airvlm.serve.guard import HostGuard, is_loopback

QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "Is there a dog?"}], "max_tokens": 1}


def post(address: str, **headers: str) -> int:
    given = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps(QUESTION).encode()
    return httpx.post(f"{address}/v1/chat/completions", content=body, headers=given, timeout=60).status_code


def test_only_json_is_read(address: str) -> None:
    """Anything else could be sent by a page without asking the server first."""
    assert post(address) == 200
    assert post(address, Content_Type="application/json; charset=utf-8") == 200
    for other in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
        "text/json",
    ):
        assert post(address, Content_Type=other) == 415
    body = json.dumps(QUESTION).encode()
    with httpx.Client() as client:
        request = client.build_request("POST", f"{address}/v1/chat/completions", content=body)
        assert "content-type" not in request.headers
        assert client.send(request).status_code == 415


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "evil@127.0.0.1", "[", "a b"]
)
def test_other_hosts_are_refused(address: str, host: str) -> None:
    assert post(address, Host=host) == 403
    for path in ("/v1/models", "/metrics", "/health", "/openapi.json"):
        assert httpx.get(f"{address}{path}", headers={"Host": host}).status_code == 403


def test_own_names_are_answered(address: str) -> None:
    port = address.rpartition(":")[2]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", "[::1]:8000"):
        assert post(address, Host=host) == 200


def test_other_origins_are_refused(address: str) -> None:
    port = address.rpartition(":")[2]
    for origin in (
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        f"http://127.0.0.1:{port}.evil.example",
        "file://",
    ):
        assert post(address, Origin=origin) == 403
    assert post(address, Origin=address) == 200


def test_a_preflight_is_not_granted(address: str) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    for origin in ("http://evil.example", address):
        answer = httpx.options(f"{address}/v1/chat/completions", headers={"Origin": origin, **asked})
        assert answer.status_code in (403, 405)
        assert "access-control-allow-origin" not in answer.headers


def test_names_can_be_allowed(serve: Callable[..., Any]) -> None:
    with serve(allow_hosts=("api.example",)) as address:
        assert post(address, Host="api.example") == 200
        assert post(address, Host="api.example", Origin="https://api.example") == 200
        assert post(address, Host="evil.example") == 403
        assert post(address, Host="api.example", Origin="https://evil.example") == 403


@pytest.mark.parametrize(
    ("bound", "allowed", "host", "accepted"),
    [
        ("127.0.0.1", (), b"localhost", True),
        ("::1", (), b"[::1]:80", True),
        ("10.0.0.5", (), b"10.0.0.5:8000", True),
        ("10.0.0.5", (), b"localhost", False),
        ("0.0.0.0", (), b"anything.example", True),  # it needs a key
        ("0.0.0.0", ("api.example",), b"anything.example", False),
        ("0.0.0.0", ("api.example",), b"api.example:8000", True),
        ("::", (), b"anything.example", True),
    ],
)
def test_the_bound_address_decides(bound: str, allowed: tuple[str, ...], host: bytes, accepted: bool) -> None:
    async def app(*_: Any) -> None:
        raise AssertionError

    guard = HostGuard(app, host=bound, allow_hosts=allowed)
    assert (guard._problem([(b"host", host)]) is None) is accepted
    assert guard._problem([]) is not None
    assert guard._problem([(b"host", host), (b"host", host)]) is not None


def test_what_is_loopback() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "example.com", ""))
