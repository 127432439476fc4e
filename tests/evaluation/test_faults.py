"""What may happen to an evaluation: it ends with the records of an undisturbed run, or stops with one clear line.

Every command here runs in a process of its own (commands.py), on fakes that answer by rule.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import running, wait_for_answers
from fakes import FakeMethod, FakeVLM

from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.store import FILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes and mounts disks as Linux does"),
]

EVALUATE = ["evaluate", "fake-captions", "fake-questions", "--method", "better:bias=0.7", "--json"]
SWEEP = ["evaluate", "fake-captions", "--method", "fake", "--sweep", "bias=1,2,3", "--no-plot", "--json"]


def lines(folder: Path) -> dict[str, dict]:
    found = [json.loads(line) for line in (folder / FILE).read_bytes().splitlines()]
    assert len({record["key"] for record in found}) == len(found)
    return {record["key"]: {k: v for k, v in record.items() if k != "seconds"} for record in found}


def children(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


@pytest.mark.parametrize("arguments", [[*EVALUATE, "--workers", "2"], SWEEP], ids=["workers", "sweep"])
def test_killed_at_random_moments_it_ends_with_the_records_of_an_undisturbed_run(commands, tmp_path, arguments):
    whole = commands.start(arguments, tmp_path / "whole")
    expected = whole.communicate()[0]
    assert whole.returncode == 0 and json.loads(expected)
    rng = random.Random(0)
    for _ in range(2):
        process = commands.start(arguments, tmp_path / "out")
        wait_for_answers(tmp_path / "out", process)
        time.sleep(rng.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if (tmp_path / "out" / FILE).exists() and rng.random() < 0.7:  # the kill tore the last lines
            size = (tmp_path / "out" / FILE).stat().st_size
            os.truncate(tmp_path / "out" / FILE, max(0, size - rng.randrange(3000)))
    last = commands.start(arguments, tmp_path / "out")
    assert last.communicate()[0] == expected and last.returncode == 0
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_command_whatever_ends_it(commands, tmp_path, number):
    # spawned as they always are, and slow enough that the signal finds them at work
    process = commands.start([*EVALUATE, "--workers", "2"], tmp_path, seconds=0.02, spawn=True)
    wait_for_answers(tmp_path, process)
    workers = children(process.pid)
    assert workers
    process.send_signal(number)
    said = process.communicate()[1]
    deadline = time.time() + 120  # a worker that still imports notices when it is done
    while any(map(running, workers)) and time.time() < deadline:
        time.sleep(0.05)
    assert not any(map(running, workers))
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "answers are saved in" in said and "rerun the same command to resume" in said
        assert "Traceback" not in said


def test_two_commands_in_one_folder_share_it(commands, tmp_path):
    alone = commands.start(EVALUATE, tmp_path / "alone")
    expected = alone.communicate()[0]
    pair = [commands.start(EVALUATE, tmp_path / "both") for _ in range(2)]
    assert [process.communicate()[0] for process in pair] == [expected, expected]
    assert lines(tmp_path / "both") == lines(tmp_path / "alone")


def test_a_full_disk_stops_it_in_one_line_and_the_same_command_goes_on(commands, tmp_path):
    small = [*EVALUATE, "--batch-size", "10"]  # so that some batches fit
    stopped = commands.start(small, tmp_path / "out", limit=20_000)
    said = stopped.communicate()[1]
    assert stopped.returncode == 2 and "records before it are safe" in said and "Traceback" not in said
    assert 0 < (tmp_path / "out" / FILE).stat().st_size <= 20_000
    again, alone = commands.start(EVALUATE, tmp_path / "out"), commands.start(EVALUATE, tmp_path / "alone")
    assert again.communicate()[0] == alone.communicate()[0]
    assert lines(tmp_path / "out") == lines(tmp_path / "alone")


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs root, to mount a disk read-only")
def test_a_folder_that_is_read_only_stops_it_before_anything_is_asked(commands, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("no right to mount a disk here")
    try:
        process = commands.start(EVALUATE, disk / "run")
        said = process.communicate()[1]
        assert process.returncode == 2 and said.count("\n") == 1
        assert "Read-only file system" in said and "--output" in said
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_clock_that_jumps_changes_nothing(fake_names, tmp_path, monkeypatch):
    methods = {"better": FakeMethod("better", 0.7)}
    evaluate(FakeVLM(), ["fake-captions"], methods, out=tmp_path / "plain", progress=False)
    rng, real = random.Random(1), time.time
    monkeypatch.setattr(time, "time", lambda: real() + rng.choice((-1e9, -3600.0, 0.0, 3600.0, 1e9)))
    evaluate(FakeVLM(), ["fake-captions"], methods, out=tmp_path / "jumps", progress=False)
    assert lines(tmp_path / "jumps") == lines(tmp_path / "plain")
