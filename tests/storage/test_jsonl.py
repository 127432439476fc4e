"""Append-only JSON lines: whole lines only, whoever is killed and whoever else writes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from airvlm.storage.jsonl import JsonLines, StoreError


def opened(path: Path, **options: object) -> tuple[JsonLines, list[int]]:
    taken: list[int] = []
    return JsonLines(path, lambda line: taken.append(json.loads(line)["n"]), **options), taken


def add(lines: JsonLines, *numbers: int) -> None:
    with lines.lock():
        lines.append([json.dumps({"n": n}).encode() for n in numbers])


def test_a_writer_has_taken_what_others_wrote_before_it_writes(tmp_path):
    (one, of_one), (two, of_two) = opened(tmp_path / "a.jsonl"), opened(tmp_path / "a.jsonl")
    add(one, 1, 2)
    with two.lock():
        assert of_two == [1, 2]
        two.append([b'{"n": 3}'])
    one.refresh()
    assert of_one == of_two == [1, 2, 3] and one.count == 3


def test_nothing_is_made_before_the_first_write(tmp_path):
    lines, taken = opened(tmp_path / "deep" / "a.jsonl", mode=0o600)
    lines.refresh()
    assert not lines.exists() and taken == [] and list(tmp_path.iterdir()) == []
    add(lines, 1)
    assert (tmp_path / "deep" / "a.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_line_that_is_refused_is_counted_and_hides_no_other(tmp_path):
    deep = b"[" * 100_000 + b"]" * 100_000
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n[]\nnot json\n' + deep + b'\n\n{"n": 2}\n{"n": 3')
    lines, taken = opened(tmp_path / "a.jsonl")
    lines.refresh()
    assert taken == [1, 2] and lines.broken == 3
    add(lines, 4)
    assert taken == [1, 2, 4]


def test_a_file_that_was_made_shorter_is_read_again(tmp_path):
    lines, taken = opened(tmp_path / "a.jsonl")
    add(lines, 1, 2, 3)
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 9}\n')
    lines.refresh()
    assert taken[-1] == 9


def test_threads_of_one_process_write_in_turn(tmp_path):
    lines, taken = opened(tmp_path / "a.jsonl")
    threads = [threading.Thread(target=lambda k=k: [add(lines, 10 * k + i) for i in range(10)]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(40))
    assert (tmp_path / "a.jsonl").read_bytes().count(b"\n") == 40


CODE = """
import json, sys
from airvlm.storage.jsonl import JsonLines, StoreError
lines = JsonLines(sys.argv[1], lambda line: None)
try:
    for n in range(int(sys.argv[2])):
        with lines.lock():
            lines.append([json.dumps({"n": n, "padding": "x" * 3000}).encode()])
        print(n, flush=True)
except StoreError as error:
    print(error)
"""


def writer(path: Path, n: int, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CODE, str(path), str(n)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.slow
def test_writers_killed_at_random_moments_leave_whole_lines_and_nothing_locked(tmp_path):
    path, rng = tmp_path / "a.jsonl", random.Random(3)
    for _ in range(3):
        pair = [writer(path, 10_000), writer(path, 10_000)]
        for process in pair:
            assert process.stdout is not None and process.stdout.readline() == "0\n"
        time.sleep(rng.uniform(0, 0.05))
        for process in pair:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    lines, taken = opened(path)
    add(lines, -1)
    assert lines.broken == 0 and taken[-1] == -1 and taken.count(0) >= 3


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs root, to mount a small disk")
def test_a_disk_that_fills_up_is_said_and_loses_no_whole_line(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        said = writer(disk / "a.jsonl", 100).communicate()[0]
        last = int(said.splitlines()[-2])
        assert "the disk is full" in said and f"{last + 1} records before it are safe" in said
        content = (disk / "a.jsonl").read_bytes()
        assert [json.loads(line)["n"] for line in content.splitlines()] == list(range(last + 1))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs root, to mount a disk read-only")
def test_a_disk_that_is_read_only_is_said_with_the_files_name(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a disk here")
    try:
        with pytest.raises(StoreError, match=r"cannot write .*a\.jsonl: Read-only file system"):
            add(opened(disk / "a.jsonl")[0], 1)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
