"""The server's throughput: requests from many clients at once against the same requests one at a time, in one run.

python -m experiments.speed.serve [--requests 64] [--clients 16] [--turns 3] [--method air]: the embedded model's descriptions;
every text is compared with the other way's.
"""

from __future__ import annotations

import argparse
import base64
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import uvicorn

from airvlm import VLM, parse_method, tiny
from airvlm.inputs.prompts import DESCRIBE
from airvlm.serve.app import make_app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--method", default="air")
    options = parser.parse_args()
    method = parse_method(options.method)
    server = uvicorn.Server(
        uvicorn.Config(make_app(VLM.load("tiny"), method=method), host="127.0.0.1", port=0, log_level="error")
    )
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1/chat/completions"
    ratios = []
    for turn in range(options.lock):
        # images that no turn has seen before: what the server keeps of an image must not help either way
        scenes = tiny.scenes("test")[2 * turn * options.requests :][: 2 * options.requests]
        bodies = [_body(scene.path.read_bytes()) for scene in scenes]
        half = options.requests
        alone = _timed(address, bodies[:half], 1)
        together = _timed(address, bodies[half:], options.clients)
        again = _timed(address, bodies[:half], options.clients)  # the same requests, for their texts
        assert again[1] == alone[1], "a text depends on what else runs"
        ratios.append(alone[0] / together[0])
        print(
            f"turn {turn + 1}: one at a time {half / alone[0]:.1f} answers/s, {options.clients} clients "
            f"{half / together[0]:.1f} answers/s, ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"ratio, median of {options.lock}: {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]")
    server.should_exit = True


def _body(image: bytes) -> dict[str, Any]:
    url = "data:image/webp;base64," + base64.b64encode(image).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": DESCRIBE}]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 64}


def _timed(address: str, bodies: list[dict[str, Any]], clients: int) -> tuple[float, list[str]]:
    with httpx.Client(timeout=600, limits=httpx.Limits(max_connections=clients)) as http:

        def one(body: dict[str, Any]) -> str:
            answer = http.post(address, json=body).json()
            assert answer["airvlm"]["method"] is None or answer["airvlm"]["fired"] == 1
            return str(answer["choices"][0]["message"]["content"])

        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            texts = list(pool.map(one, bodies))
        return time.perf_counter() - started, texts


if __name__ == "__main__":
    main()
