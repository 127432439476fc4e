"""Connections that send slowly, or not at all, hold neither the server nor its end."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from airvlm import VLM
from airvlm.serve import run
from airvlm.serve.app import make_app
from airvlm.serve.limits import Limits
from tests.external.servers import serving

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
HALF_HEADERS = HEAD
HALF_BODY = HEAD + b'Content-Length: 1000\r\n\r\n{"model": '
QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "Is there a dog?"}], "max_tokens": 2}


@contextmanager
def connected(address: str, data: bytes = b"") -> Iterator[socket.socket]:
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname or "", parts.port or 0), 30) as opened:
        opened.sendall(data)
        yield opened


def received(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    data = b""
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize("sent", [b"", b"GET", HALF_HEADERS, HALF_BODY], ids=["nothing", "a word", "headers", "body"])
def test_what_does_not_arrive_in_time_is_closed(serve: Callable[..., Any], sent: bytes) -> None:
    with serve(limits=Limits(header_seconds=0.3, body_seconds=0.3)) as address, connected(address, sent) as slow:
        assert received(slow).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("first", [HALF_HEADERS, HALF_BODY], ids=["headers", "body"])
def test_dripping_bytes_gain_no_time(serve: Callable[..., Any], first: bytes) -> None:
    with serve(limits=Limits(header_seconds=0.5, body_seconds=0.5)) as address, connected(address, first) as slow:
        sent = 0
        with pytest.raises(OSError):  # the other side has closed
            while sent < 600:
                slow.sendall(b"a")
                sent += 1
                time.sleep(0.02)
        assert sent < 500


def test_a_client_that_ignores_its_refusal_is_closed(serve: Callable[..., Any]) -> None:
    """The answer (404) comes before the body has; the rest of the body may not come for ever."""
    head = b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n"
    with serve(limits=Limits(body_seconds=0.5)) as address, connected(address, head) as slow:
        assert slow.recv(65536).startswith(b"HTTP/1.1 404 ")
        with pytest.raises(OSError):
            for _ in range(600):
                slow.sendall(b"a")
                time.sleep(0.02)


def test_half_sent_requests_do_not_keep_others_out(serve: Callable[..., Any]) -> None:
    limits = Limits(connections=20, header_seconds=60, body_seconds=60)
    with serve(limits=limits) as address, ExitStack() as stack:
        for i in range(60):
            stack.enter_context(connected(address, HALF_HEADERS if i % 2 else HALF_BODY))
        assert httpx.get(f"{address}/health", timeout=30).status_code == 200
        answer = httpx.post(f"{address}/v1/chat/completions", json=QUESTION, timeout=60)
        assert answer.status_code == 200


def test_answers_under_way_are_not_closed_for_new_connections(serve: Callable[..., Any]) -> None:
    """Only connections that are still sending make room."""
    with serve(limits=Limits(connections=4)) as address, ExitStack() as stack:
        body = json.dumps(QUESTION | {"max_tokens": 200, "temperature": 2.0, "seed": 1}).encode()
        whole = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        asked = stack.enter_context(connected(address, whole))
        time.sleep(0.3)
        for _ in range(20):
            stack.enter_context(connected(address, HALF_HEADERS))
        assert received(asked).startswith(b"HTTP/1.1 200 ")


def test_bodies_share_a_budget(serve: Callable[..., Any]) -> None:
    limits = Limits(body=1_000_000, bodies=1_500_000, body_seconds=60)
    with serve(limits=limits) as address, ExitStack() as stack:
        head = HEAD + b"Content-Length: 900000\r\n\r\n"
        first = stack.enter_context(connected(address, head + b" " * 800_000))
        time.sleep(0.5)
        second = stack.enter_context(connected(address, head + b" " * 800_000))
        assert b"429" in second.recv(65536).partition(b"\r\n")[0]
        first.close()
        deadline = time.monotonic() + 30
        while (code := _post(address)) == 429 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert code == 200


def _post(address: str) -> int:
    padded = json.dumps(QUESTION).encode() + b" " * 800_000
    headers = {"Content-Type": "application/json"}
    return httpx.post(f"{address}/v1/chat/completions", content=padded, headers=headers, timeout=60).status_code


def test_a_client_that_does_not_read_its_answer_is_closed(serve: Callable[..., Any]) -> None:
    limits = Limits(write_seconds=0.5, connections=4, values=10**7)
    with serve(limits=limits) as address:
        parts = urlsplit(address)
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            lazy.connect((parts.hostname, parts.port))
            # answers of 20 kB each, asked for without reading any
            lazy.settimeout(0.2)
            request = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            deadline = time.monotonic() + 30
            with pytest.raises((ConnectionError, BrokenPipeError)):
                while time.monotonic() < deadline:
                    try:
                        lazy.sendall(request * 50)
                    except TimeoutError:
                        time.sleep(0.1)
        assert httpx.get(f"{address}/health", timeout=30).status_code == 200


SERVER = """
from airvlm import VLM
from airvlm.serve.app import make_app
from airvlm.serve.run import run_server
vlm = VLM.load("tiny")
run_server(make_app(vlm), host="127.0.0.1", port=0)
"""


def test_a_request_that_was_not_read_before_the_stop_is_answered(vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LAST_READ", 5.0)
    server = run.make_server(make_app(vlm), host="127.0.0.1", port=0, log_level="error")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    body = json.dumps(QUESTION).encode()
    whole = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    with connected(address) as idle, connected(address, whole[:-5]) as half:
        deadline = time.monotonic() + 30
        while len(server.server_state.connections) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        server.should_exit = True
        with pytest.raises(ConnectionRefusedError):  # as soon as it takes no more connections
            while time.monotonic() < deadline:
                with connected(address):
                    time.sleep(0.01)
        idle.sendall(whole)
        half.sendall(whole[-5:])
        assert received(idle).startswith(b"HTTP/1.1 200 ")
        assert received(half).startswith(b"HTTP/1.1 200 ")
    thread.join()


def test_half_sent_requests_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """SIGTERM: what was half sent is dropped at once, though its own limits are far longer."""
    with serving([sys.executable, "-c", SERVER], tmp_path / "log") as server, ExitStack() as stack:
        assert httpx.post(f"{server.address}/v1/chat/completions", json=QUESTION, timeout=60).status_code == 200
        for sent in (b"", HALF_HEADERS, HALF_BODY, HALF_BODY, HALF_HEADERS):
            stack.enter_context(connected(server.address, sent))
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(9) in (0, -signal.SIGTERM)  # the shortest of their limits is 10 s
