"""Load on `airvlm serve` beside `transformers serve`: answers of many clients over those of one, in one run.

Both serve the embedded emoji model in processes of their own and describe scenes that no request has shown before, so
that no cache helps. In every round each server is measured with each number of clients; airvlm as it is (vanilla) and
under crop-blend. Texts are compared with VLM.ask. On a busy machine, processor seconds per answer say more than the
wall clock: they count all threads of a server.

    python -m experiments.speed.load [--requests 32] [--clients 1 16] [--rounds 3]
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from airvlm import VLM, tiny
from airvlm.inputs.prompts import DESCRIBE
from experiments.speed import timing

TOKENS = 64


class Server:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, model: str) -> None:
        self.process, self.address, self.model = process, address, model

    @property
    def memory(self) -> int:
        """Resident megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) // 1024 if found else 0

    @property
    def processor_seconds(self) -> float:
        """Spent so far, by all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Row:
    """What one server did for one number of clients, over all rounds."""

    rates: list[float] = field(default_factory=list)  # answers per second
    costs: list[float] = field(default_factory=list)  # processor seconds per answer
    latencies: list[float] = field(default_factory=list)
    wrong: int = 0
    memory: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    vlm, scenes = VLM.load("tiny"), iter(tiny.scenes("test"))
    bin_, folder = Path(sys.executable).parent, str(tiny.model_path())
    plain = [str(bin_ / "transformers"), "serve", folder, "--device", "cpu", "--dtype", "float32"]
    own = [sys.executable, "-m", "airvlm", "serve", "--model", "tiny", "--method", "vanilla"]
    with ExitStack() as stack:
        ours, theirs = stack.enter_context(start(own, "tiny")), stack.enter_context(start(plain, folder))
        subjects = {
            "airvlm, vanilla": (ours, None),
            "airvlm, crop-blend": (ours, "crop-blend"),
            "transformers serve": (theirs, None),
        }
        rows = {(name, clients): Row() for name in subjects for clients in given.clients}
        for server, method in subjects.values():  # what is loaded at the first request, and by the first batch
            send(server, method, [next(scenes).path for _ in range(8)], max(given.clients))
        for number in range(given.rounds):
            for clients in given.clients:
                new = {method: [next(scenes).path for _ in range(given.requests)] for method in (None, "crop-blend")}
                expected = {
                    method: [vlm.ask(path, DESCRIBE, method=method, max_new_tokens=TOKENS).text for path in paths]
                    for method, paths in new.items()
                }
                for name, (server, method) in subjects.items():
                    row = rows[name, clients]
                    spent, started = server.processor_seconds, time.perf_counter()
                    answers = send(server, method, new[method], clients)
                    row.rates.append(given.requests / (time.perf_counter() - started))
                    row.costs.append((server.processor_seconds - spent) / given.requests)
                    row.latencies += [latency for latency, _ in answers]
                    row.memory = max(row.memory, server.memory)
                    row.wrong += sum(text != own for (_, text), own in zip(answers, expected[method], strict=True))
                    print(
                        f"round {number + 1}: {name}, {clients} clients: {row.rates[-1]:.2f} answers/s, "
                        f"{1000 * row.costs[-1]:.0f} ms of processor per answer, {row.wrong} wrong so far",
                        flush=True,
                    )
    print_rows(rows, given.requests * given.rounds)


def print_rows(rows: dict[tuple[str, int], Row], requests: int) -> None:
    print(f"\n{requests} new images per row, at most {TOKENS} tokens each; medians over rounds, [range]\n")
    print("| server | clients | answers/s | CPU ms per answer | p50 ms | p95 ms | texts wrong | RSS MB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for (name, clients), row in rows.items():
        cuts = statistics.quantiles(row.latencies, n=20, method="inclusive")
        cells = [name, clients, timing.show(row.rates, 1), timing.show([1000 * cost for cost in row.costs], 0)]
        cells += [f"{cuts[9] * 1000:.0f}", f"{cuts[18] * 1000:.0f}", row.wrong, row.memory]
        print(f"| {' | '.join(map(str, cells))} |")
    print("\nratios within a round:\n")
    for (name, clients), row in rows.items():
        alone = next(one for (other, _), one in rows.items() if other == name)
        plain = rows["transformers serve", clients]
        faster, cheaper = _ratios(row.rates, alone.rates), _ratios(alone.costs, row.costs)
        line = f"{_ratios(row.rates, plain.rates)} times transformers serve with as many"
        if row is not alone:
            line = f"{faster} times one client's answers/s, {cheaper} times by processor seconds; {line}"
        print(f"* {name}, {clients} clients: {line}")


def _ratios(a: list[float], b: list[float]) -> str:
    return timing.show([x / y for x, y in zip(a, b, strict=True)], 2)


@contextmanager
def start(command: list[str], model: str) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=log, stderr=log)
        server = Server(process, f"http://127.0.0.1:{port}", model)
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


def send(server: Server, method: str | None, paths: list[Path], clients: int) -> list[tuple[float, str]]:
    """Seconds and text of each answer."""
    with httpx.Client(timeout=600, limits=httpx.Limits(max_connections=clients)) as http:

        def post(path: Path) -> tuple[float, str]:
            url = "data:image/webp;base64," + base64.b64encode(path.read_bytes()).decode()
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": DESCRIBE}]
            body: dict[str, Any] = {"model": server.model, "messages": [{"role": "user", "content": content}]}
            body |= {"max_tokens": TOKENS, "temperature": 0}
            if method is not None:
                body["airvlm"] = {"method": method}
            started = time.perf_counter()
            answer = http.post(f"{server.address}/v1/chat/completions", json=body)
            answer.raise_for_status()
            text = str(answer.json()["choices"][0]["message"]["content"]).strip()
            return time.perf_counter() - started, text

        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(post, paths))


if __name__ == "__main__":
    main()
