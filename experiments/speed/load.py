"""Load on `airvlm serve` beside `transformers serve`: answers per second, latency, memory, at several client counts.

Both serve the embedded emoji model in processes of their own, one after the other, and describe the same scenes.
airvlm is measured as it is (vanilla), under crop-blend, and with methods mixed by request; its texts are compared with
VLM.ask.

    python -m experiments.speed.load [--requests 200] [--clients 1 16 64]
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from airvlm import VAF, VCD, VLM, CropBlend, MemVR, Method, tiny
from airvlm.inputs.prompts import DESCRIBE

TOKENS = 32
MIXED: list[Method | None] = [None, CropBlend(), VCD(), VAF(), MemVR()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    given = parser.parse_args()
    scenes = [scene.path for scene in tiny.scenes("test")[:24]]
    vlm = VLM.load("tiny")
    print(f"{given.requests} requests over {len(scenes)} scenes, at most {TOKENS} tokens each")
    print("| server | clients | answers/s | p50 ms | p95 ms | texts wrong | RSS MB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    bin_ = Path(sys.executable).parent
    with start([str(bin_ / "airvlm"), "serve", "--model", "tiny", "--method", "vanilla"]) as server:
        for name, methods in {"vanilla": [None], "crop-blend": [CropBlend()], "mixed": MIXED}.items():
            expected = {
                (path, method): vlm.ask(path, DESCRIBE, method=method, max_new_tokens=TOKENS).text
                for path in scenes
                for method in methods
            }
            for clients in given.clients:
                jobs = [(scenes[i % len(scenes)], methods[i % len(methods)]) for i in range(given.requests)]
                measure(server, f"airvlm, {name}", "tiny", clients, jobs, expected)
    folder = str(tiny.model_path())
    command = [str(bin_ / "transformers"), "serve", folder, "--device", "cpu", "--dtype", "float32"]
    with start(command) as server:
        for clients in given.clients:
            jobs = [(scenes[i % len(scenes)], None) for i in range(given.requests)]
            expected = {(path, None): vlm.ask(path, DESCRIBE, max_new_tokens=TOKENS).text for path in scenes}
            measure(server, "transformers, vanilla", folder, clients, jobs, expected)


class Server:
    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process, self.address = process, address

    @property
    def memory(self) -> int:
        """Resident megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) // 1024 if found else 0


@contextmanager
def start(command: list[str]) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=log, stderr=log)
        server = Server(process, f"http://127.0.0.1:{port}")
        try:
            wait_for(lambda: httpx.get(f"{server.address}/health", timeout=5).status_code == 200, process)
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}")
        try:
            if ready():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise RuntimeError("the server does not answer")


def measure(
    server: Server,
    name: str,
    model: str,
    clients: int,
    jobs: list[tuple[Path, Method | None]],
    expected: dict[tuple[Path, Method | None], str],
) -> None:
    with httpx.Client(timeout=600, limits=httpx.Limits(max_connections=clients)) as http:

        def post(job: tuple[Path, Method | None]) -> tuple[float, bool]:
            path, method = job
            url = "data:image/webp;base64," + base64.b64encode(path.read_bytes()).decode()
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": DESCRIBE}]
            body: dict[str, Any] = {
                "model": model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": TOKENS,
                "temperature": 0,
            }
            if method is not None:
                body["airvlm"] = {"method": method.to_json()}
            started = time.perf_counter()
            answer = http.post(f"{server.address}/v1/chat/completions", json=body)
            answer.raise_for_status()
            text = str(answer.json()["choices"][0]["message"]["content"]).strip()
            return time.perf_counter() - started, text == expected[job]

        post(jobs[0])  # loads what is loaded at the first request
        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            found = list(pool.map(post, jobs))
        seconds = time.perf_counter() - started
    cuts = statistics.quantiles([latency for latency, _ in found], n=20, method="inclusive")
    wrong = sum(not right for _, right in found)
    row = [name, clients, f"{len(jobs) / seconds:.1f}", f"{cuts[9] * 1000:.0f}", f"{cuts[18] * 1000:.0f}", wrong]
    print(f"| {' | '.join(map(str, [*row, server.memory]))} |", flush=True)


if __name__ == "__main__":
    main()
