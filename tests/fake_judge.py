"""A local judge that answers as a test tells it to, and fails as real endpoints do.

Usage: `with FakeJudge(reply) as fake: Judge(fake.url, "fake")`. `reply(prompt, n)` gets the text of the last message
and the number of the request, and returns the verdict or a Fault to send instead.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A failure: an HTTP status, headers, a body that is not JSON, a delay."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"error": "fails on purpose"}'
    delay: float = 0.0  # seconds before anything is sent


class FakeJudge:
    def __init__(self, reply: Callable[[str, int], str | Fault] | str) -> None:
        self.reply = (lambda prompt, n: reply) if isinstance(reply, str) else reply
        self.requests: list[dict[str, Any]] = []  # bodies, in order of arrival
        self.keys: list[str | None] = []  # Authorization headers
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with fake._lock:
                    n = len(fake.requests)
                    fake.requests.append({"path": self.path, **body})
                    fake.keys.append(self.headers.get("Authorization"))
                answer = fake.reply(get_text(body), n)
                fault = answer if isinstance(answer, Fault) else None
                if fault:
                    threading.Event().wait(fault.delay)  # not time.sleep, which tests replace
                message = {
                    "choices": [{"message": {"role": "assistant", "content": answer}}],
                    "model": "fake-1",
                }
                data = fault.body if fault else json.dumps(message).encode()
                try:
                    self.send_response(fault.status if fault else 200)
                    for name, value in (fault.headers if fault else {}).items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # the client gave up waiting, as timeout tests want

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> FakeJudge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def get_text(body: dict[str, Any]) -> str:
    """The text of the last message, which may have an image too."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
