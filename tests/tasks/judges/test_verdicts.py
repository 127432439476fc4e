"""The file of verdicts: killed writers leave whole lines, and a verdict is asked for once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

from airvlm.tasks.judges.verdicts import VerdictFile

WRITER = """
import sys
from airvlm.tasks.judges.verdicts import VerdictFile
verdicts = VerdictFile(sys.argv[1])
for n in range(int(sys.argv[2])):
    if verdicts.get(str(n)) is None:
        verdicts.append({"key": str(n), "verdict": "x" * 2000})
    print(n, flush=True)
"""


def writer(path, n):
    command = [sys.executable, "-c", WRITER, str(path), str(n)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_the_first_verdict_of_a_key_counts_for_everyone(tmp_path):
    one, two = VerdictFile(tmp_path / "v.jsonl"), VerdictFile(tmp_path / "v.jsonl")
    one.append({"key": "a", "verdict": 1})
    two.append({"key": "a", "verdict": 2})
    assert one.get("a") == two.get("a") == {"key": "a", "verdict": 1}
    assert (tmp_path / "v.jsonl").read_bytes().count(b"\n") == 1
    assert (tmp_path / "v.jsonl").stat().st_mode & 0o077 == 0


def test_writers_killed_at_random_moments_end_with_every_verdict_once(tmp_path):
    path, rng = tmp_path / "v.jsonl", random.Random(0)
    for _ in range(2):
        pair = [writer(path, 10_000), writer(path, 10_000)]
        for process in pair:
            assert process.stdout.readline() == "0\n"
        time.sleep(rng.uniform(0, 0.05))
        for process in pair:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        with path.open("ab") as file:
            file.write(b'{"key": "torn", "verd')
    known = len(list(VerdictFile(path)))
    last = writer(path, known + 20)
    last.communicate()
    keys = [json.loads(line)["key"] for line in path.read_bytes().splitlines()]
    assert last.returncode == 0 and sorted(keys, key=int) == [str(n) for n in range(known + 20)]
