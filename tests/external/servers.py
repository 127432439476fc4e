"""A server in a process of its own while a test talks to it: airvlm's, vLLM's or transformers'.

What it prints goes to a log, which an error quotes.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Server", "free_port", "serving"]


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[bytes]
    address: str  # http://host:port
    log: Path


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(
    command: Sequence[str],
    log: Path,
    *,
    port: int | None = None,  # None: the server chooses one, and prints "running on http://..."
    health: str = "/health",  # answers once the server is ready
    environment: Mapping[str, str] | None = None,
    seconds: float = 300,  # to start in
) -> Iterator[Server]:
    """Start the server, wait until it answers, and stop it after the block."""
    own = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(environment or {})}
    with log.open("w") as file:
        process = subprocess.Popen(command, env=own, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield Server(process, _ready(process, log, port, health, time.monotonic() + seconds), log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(process: subprocess.Popen[bytes], log: Path, port: int | None, health: str, until: float) -> str:
    """The address, as soon as the server answers there."""
    while time.monotonic() < until and process.poll() is None:
        if port is None:
            found = re.search(r"running on (http://\S+)", log.read_text())
            if found:
                return found[1]
        else:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=5):
                    return f"http://127.0.0.1:{port}"
            except OSError:  # nobody listens yet, or it says that it is not ready
                pass
        time.sleep(0.2)
    raise RuntimeError(f"the server does not answer: {log.read_text()[-3000:]}")
