"""Servers of the tiny model on free ports, in threads of this process."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from PIL import Image

from airvlm import VLM
from airvlm.serve.app import make_app
from airvlm.serve.limits import Limits
from airvlm.serve.run import make_server


@pytest.fixture(scope="session")
def vlm() -> VLM:
    return VLM.load("tiny")


def data_uri(image: Image.Image, kind: str = "PNG") -> str:
    file = io.BytesIO()
    image.save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def content(image: Image.Image | None, question: str) -> list[dict[str, Any]]:
    shown = [] if image is None else [{"type": "image_url", "image_url": {"url": data_uri(image)}}]
    return [*shown, {"type": "text", "text": question}]


@contextmanager
def running(app: Any, limits: Limits = Limits()) -> Iterator[str]:
    """The application's address while the block is open."""
    server = make_server(app, host="127.0.0.1", port=0, limits=limits, log_level="error")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def serve(vlm: VLM) -> Iterator[Callable[..., Any]]:
    """Starts servers with settings of their own."""

    @contextmanager
    def start(limits: Limits = Limits(), **settings: Any) -> Iterator[str]:
        with running(make_app(vlm, limits=limits, **settings), limits) as address:
            yield address

    yield start


@pytest.fixture(scope="session")
def address(serve: Callable[..., Any]) -> Iterator[str]:
    """A server without a method of its own."""
    with serve() as address:
        yield address
