"""A real `accelerate launch` of two processes on one store."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import FakeMethod, FakeVLM

from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.store import FILE

pytestmark = pytest.mark.exhaustive  # `make test-integrations` runs it

SCRIPT = """
import pathlib, sys, time
sys.path[:0] = [{tests!r}, {sources!r}]
import airvlm, airvlm.tasks, fakes
airvlm.tasks.TASKS.update(fakes.TASKS)
from airvlm.evaluation.workers import Shard
shard, vlm = Shard.of(None), fakes.FakeVLM(seconds=0.002)
out, methods = pathlib.Path({out!r}), {{"better": fakes.FakeMethod("better", 0.7)}}
(out / f"ready-{{shard.index}}").touch()
while len(list(out.glob("ready-*"))) < 2:  # both at the start, so that both get to work
    time.sleep(0.01)
run = airvlm.evaluate(vlm, ["fake-captions"], methods, out=out, progress=False, batch_size=16)
seen = f"{{sum(vlm.sizes)}} {{run.tasks['fake-captions'].count_unanswered('better')}}"
(out / f"rank-{{shard.index}}").write_text(seen)
"""


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs the offload extra (accelerate)")
def test_two_launched_processes_share_the_work_and_write_the_records_of_one(fake_names, tmp_path):
    out, alone = tmp_path / "out", tmp_path / "alone"
    out.mkdir()
    here = Path(__file__).parent
    (tmp_path / "script.py").write_text(
        SCRIPT.format(tests=str(here), sources=str(here.parents[1] / "src"), out=str(out))
    )
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += [
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--main_process_port",
        "0",
    ]
    done = subprocess.run([*command, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    evaluate(FakeVLM(), ["fake-captions"], {"better": FakeMethod("better", 0.7)}, out=alone, progress=False)

    def lines(folder: Path) -> dict[str, str]:
        found = [json.loads(line) for line in (folder / FILE).read_bytes().splitlines()]
        assert len({record["key"] for record in found}) == len(found)
        return {record["key"]: record["text"] for record in found}

    assert lines(out) == lines(alone)
    ranks = [(out / f"rank-{i}").read_text().split() for i in range(2)]
    assert all(int(asked) > 0 for asked, _ in ranks)  # both worked
    assert ranks[0][1] == "0"  # and the first saw the whole
