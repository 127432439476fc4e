"""What may happen to an evaluation: it ends with the records of an undisturbed run, or stops with one clear line.

Everything here runs in processes of its own, on fakes that answer by rule.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import FakeMethod, FakeVLM

from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.store import FILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="kills processes and mounts disks as Linux does"),
]

HERE = Path(__file__).parent
PRELUDE = f"""
import sys
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1] / "src")!r}]
import fakes, airvlm.methods, airvlm.tasks
airvlm.methods.parse_method = fakes.parse_fake
for name, task in fakes.TASKS.items():
    airvlm.tasks.TASKS[name] = task
"""
# a command line whose model is a fake one that takes its time; a spawned worker imports it as __main__
COMMAND = (
    PRELUDE
    + """
from types import SimpleNamespace
from airvlm.cli import asking, run

def load(*_, **__):
    vlm = fakes.FakeVLM(seconds=0.002)
    vlm.anatomy = SimpleNamespace(layers=range(6))
    return vlm

asking.load = load
if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
"""
)
EVALUATE = ["evaluate", "fake-captions", "fake-questions", "--method", "better:bias=0.7", "--json"]
ABLATE = ["ablate", "fake-captions", "fake", "--sweep", "bias=1,2,3", "--curve", "--no-plot", "--json"]


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("command") / "command.py"
    path.write_text(COMMAND)
    return path


def start(script: Path, arguments: list[str], out: Path, *, prepare=lambda: None) -> subprocess.Popen[str]:
    def before() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs inherit it ignored
        prepare()

    command = [sys.executable, str(script), *arguments, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, env=environment, preexec_fn=before)


def lines(folder: Path) -> dict[str, dict]:
    found = [json.loads(line) for line in (folder / FILE).read_bytes().splitlines()]
    assert len({record["key"] for record in found}) == len(found)
    return {record["key"]: {k: v for k, v in record.items() if k != "seconds"} for record in found}


def wait_for_answers(out: Path, process: subprocess.Popen[str]) -> None:
    """Until something was answered: before that, a kill would hit imports only."""
    while process.poll() is None and not ((out / FILE).exists() and (out / FILE).stat().st_size):
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "arguments", [[*EVALUATE, "--workers", "2"], ABLATE], ids=["evaluate with workers", "ablate"]
)
def test_killed_at_random_moments_it_ends_with_the_records_of_an_undisturbed_run(script, tmp_path, arguments):
    whole = start(script, arguments, tmp_path / "whole")
    expected = whole.communicate()[0]
    assert whole.returncode == 0 and json.loads(expected)
    rng = random.Random(0)
    for _ in range(2):
        process = start(script, arguments, tmp_path / "out")
        wait_for_answers(tmp_path / "out", process)
        time.sleep(rng.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if (tmp_path / "out" / FILE).exists() and rng.random() < 0.7:  # the kill tore the last lines
            size = (tmp_path / "out" / FILE).stat().st_size
            os.truncate(tmp_path / "out" / FILE, max(0, size - rng.randrange(3000)))
    last = start(script, arguments, tmp_path / "out")
    assert last.communicate()[0] == expected and last.returncode == 0
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_command_whatever_ends_it(script, tmp_path, number):
    process = start(script, [*EVALUATE, "--workers", "2"], tmp_path)
    wait_for_answers(tmp_path, process)
    workers = children(process.pid)
    assert workers
    process.send_signal(number)
    said = process.communicate()[1]
    deadline = time.time() + 20
    while any(map(running, workers)) and time.time() < deadline:
        time.sleep(0.05)
    assert not any(map(running, workers))
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "answers are kept in" in said and "the same command goes on from there" in said
        assert "Traceback" not in said


def test_two_commands_in_one_folder_share_it(script, tmp_path):
    alone = start(script, EVALUATE, tmp_path / "alone")
    expected = alone.communicate()[0]
    pair = [start(script, EVALUATE, tmp_path / "both") for _ in range(2)]
    assert [process.communicate()[0] for process in pair] == [expected, expected]
    assert lines(tmp_path / "both") == lines(tmp_path / "alone")


def test_a_full_disk_stops_it_in_one_line_and_the_same_command_goes_on(script, tmp_path):
    def limited() -> None:  # a write beyond this many bytes fails, as on a full disk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    small = [*EVALUATE, "--batch-size", "10"]  # so that some batches fit
    stopped = start(script, small, tmp_path / "out", prepare=limited)
    said = stopped.communicate()[1]
    assert stopped.returncode == 2 and "records before it are safe" in said and "Traceback" not in said
    assert 0 < (tmp_path / "out" / FILE).stat().st_size <= 20_000
    again, alone = start(script, EVALUATE, tmp_path / "out"), start(script, EVALUATE, tmp_path / "alone")
    assert again.communicate()[0] == alone.communicate()[0]
    assert lines(tmp_path / "out") == lines(tmp_path / "alone")


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs root, to mount a disk read-only")
def test_a_folder_that_is_read_only_stops_it_before_anything_is_asked(script, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("no right to mount a disk here")
    try:
        process = start(script, EVALUATE, disk / "run")
        said = process.communicate()[1]
        assert process.returncode == 2 and said.count("\n") == 1
        assert "Read-only file system" in said and "--out" in said
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_clock_that_jumps_changes_nothing(fake_names, tmp_path, monkeypatch):
    methods = {"better": FakeMethod("better", 0.7)}
    evaluate(FakeVLM(), ["fake-captions"], methods, tmp_path / "plain", progress=False)
    rng, real = random.Random(1), time.time
    monkeypatch.setattr(time, "time", lambda: real() + rng.choice((-1e9, -3600.0, 0.0, 3600.0, 1e9)))
    evaluate(FakeVLM(), ["fake-captions"], methods, tmp_path / "jumps", progress=False)
    assert lines(tmp_path / "jumps") == lines(tmp_path / "plain")
