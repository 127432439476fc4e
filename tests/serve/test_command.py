"""`airvlm serve` as a process: where it may listen, and what a stop does to accepted requests."""

from __future__ import annotations

import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image

from airvlm import cli
from airvlm.cli.options import ModelOptions
from airvlm.cli.serve import ask_options
from tests.external.servers import serving
from tests.serve.conftest import content


def test_an_address_that_others_reach_needs_a_key(capsys) -> None:
    assert cli.run(["serve", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "--api-key" in capsys.readouterr().err


def test_the_pages_command_loads_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lora").mkdir()
    (tmp_path / "tiny").mkdir()  # an embedded model's name comes before a folder
    monkeypatch.chdir(tmp_path)
    options = ModelOptions(model="tiny", adapter="lora", dtype="bfloat16", max_crop_batch=2, allow_missing=True)
    assert ask_options(options, 96, "127.0.0.1") == [
        *["--model", "tiny", "--adapter", str(tmp_path / "lora"), "--dtype", "bfloat16"],
        *["--max-crop-batch", "2", "--allow-missing", "--max-new-tokens", "96"],
    ]
    assert ask_options(options, 96, "0.0.0.0") is None  # visitors have no such folder, nor need they know of it
    assert ask_options(ModelOptions(model="tiny"), 8, "0.0.0.0") == ["--model", "tiny", "--max-new-tokens", "8"]


@pytest.mark.slow
def test_a_stop_under_load_loses_no_accepted_request(tmp_path) -> None:
    command = [sys.executable, "-m", "airvlm", "serve", "--model", "tiny", "--port", "0", "--max-batch", "2"]
    with serving(command, tmp_path / "log") as server:
        question = "Please describe this image in detail."
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": content(Image.new("RGB", (64, 64), "green"), question)}],
        }

        def post(_: int) -> int:
            try:
                return httpx.post(f"{server.address}/v1/chat/completions", json=body, timeout=120).status_code
            except httpx.ConnectError:  # never accepted
                return 0

        assert post(0) == 200
        with ThreadPoolExecutor(8) as clients:
            answers = [clients.submit(post, i) for i in range(8)]
            waiting = re.compile(r"^airvlm_(queue|running) ([\d.]+)", re.M)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                counted = waiting.findall(httpx.get(f"{server.address}/metrics", timeout=60).text)
                if sum(float(n) for _, n in counted) >= 4 or all(a.done() for a in answers):
                    break
            server.process.send_signal(signal.SIGTERM)
            codes = [a.result() for a in answers]
        assert set(codes) <= {200, 0}
        assert codes.count(200) >= 4
        assert server.process.wait(60) in (0, -signal.SIGTERM)
