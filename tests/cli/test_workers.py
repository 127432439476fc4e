"""`airvlm evaluate --workers 2` on the embedded model: the records of one process, whoever makes them."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from airvlm.cli import run
from airvlm.evaluation.store import FILE
from airvlm.evaluation.workers import Shard, start_workers
from tests.cli.worker_jobs import touch

pytestmark = pytest.mark.slow


def texts(folder) -> dict[str, str]:
    lines = [json.loads(line) for line in (folder / FILE).read_bytes().splitlines()]
    return {line["key"]: line["text"] for line in lines}


def test_two_workers_keep_the_answers_of_one(tmp_path, capsys):
    command = ["evaluate", "tiny-chair", "--limit", "6", "--batch-size", "2", "--no-curve", "--json"]
    for workers in ("1", "2"):
        assert run([*command, "--workers", workers, "--output", str(tmp_path / workers)]) == 0
        assert json.loads(capsys.readouterr().out)["tiny-chair"]["crop-blend"]["CHAIR_S"]["n"] == 6
    assert texts(tmp_path / "1") == texts(tmp_path / "2")


def test_the_others_have_the_other_parts_and_do_not_outlive_us(tmp_path):
    with start_workers(3, functools.partial(touch, str(tmp_path))) as ours:
        assert (ours.index, ours.gathers) == (0, True)
        deadline = time.time() + 50
        while len(list(tmp_path.iterdir())) < 2 and time.time() < deadline:
            time.sleep(0.1)
        began = time.time()
    assert time.time() - began < 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


LEAK = """
import sys, time
from airvlm.evaluation.workers import start_workers
sys.path.insert(0, {root!r})
from tests.cli.worker_jobs import draw_bar
if __name__ == "__main__":
    with start_workers(2, __import__("functools").partial(draw_bar, {folder!r})):
        while not __import__("os").listdir({folder!r}):
            time.sleep(0.05)
"""


def test_a_worker_that_is_killed_leaves_no_semaphore_that_python_complains_about(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "folder"
    folder.mkdir()
    script.write_text(LEAK.format(root=str(Path(__file__).parents[2]), folder=str(folder)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "resource_tracker" not in done.stderr and "leaked" not in done.stderr


def test_two_ways_of_spreading_the_work_are_refused(capsys):
    assert run(["evaluate", "tiny-chair", "--workers", "2", "--shard", "0/2"]) == 2
    assert "not two of them" in " ".join(capsys.readouterr().err.split())


def test_more_processes_than_gpus_share_them(monkeypatch):
    parts = [Shard(i, 3, helps=True, device=i) for i in range(3)]
    assert [part.gpu() for part in parts] == [None] * 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [part.gpu() for part in parts] == ["cuda:0", "cuda:1", "cuda:0"]
    assert Shard().gpu() is None
