"""Throughput of the server: requests from many clients at once against the same number one at a time, in one run.

The embedded emoji model describes scenes. Every answer must be the same in both cases.

    python -m experiments.speed.serve [--requests 64] [--clients 16] [--rounds 3] [--method crop-blend]
"""

from __future__ import annotations

import argparse
import base64
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import uvicorn

from airvlm import VLM, get_method, tiny
from airvlm.inputs.prompts import DESCRIBE
from airvlm.serve.app import make_app
from experiments.speed import timing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--method", default="crop-blend")
    given = parser.parse_args()
    app = make_app(VLM.load("tiny"), method=get_method(given.method))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1/chat/completions"
    ratios = []
    for number in range(given.rounds):
        # Images that no round has shown before: what the server caches must not help either side
        scenes = tiny.scenes("test")[2 * number * given.requests :][: 2 * given.requests]
        bodies = [_body(scene.path.read_bytes()) for scene in scenes]
        first, second = bodies[: given.requests], bodies[given.requests :]
        alone, texts = _send(address, first, 1)
        together, _ = _send(address, second, given.clients)
        _, same = _send(address, first, given.clients)
        assert same == texts, "an answer depends on what else is running"
        ratios.append(alone / together)
        print(
            f"round {number + 1}: one at a time {given.requests / alone:.1f} answers/s, {given.clients} clients "
            f"{given.requests / together:.1f} answers/s",
            flush=True,
        )
    print(f"throughput of {given.clients} clients over one: {timing.show(ratios, 2)}")
    server.should_exit = True


def _body(image: bytes) -> dict[str, Any]:
    url = "data:image/webp;base64," + base64.b64encode(image).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": DESCRIBE}]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 64}


def _send(address: str, bodies: list[dict[str, Any]], clients: int) -> tuple[float, list[str]]:
    """Seconds by the wall clock, and the answers."""
    with httpx.Client(timeout=600, limits=httpx.Limits(max_connections=clients)) as http:

        def send_one(body: dict[str, Any]) -> str:
            answer = http.post(address, json=body).json()
            return str(answer["choices"][0]["message"]["content"])

        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            texts = list(pool.map(send_one, bodies))
        return time.perf_counter() - started, texts


if __name__ == "__main__":
    main()
