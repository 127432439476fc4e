"""The answer store: nothing is lost, nothing is doubled, nothing is half-written."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from airvlm.evaluation.store import FILE, Record, RecordKey, Store, StoreError
from airvlm.storage import jsonl

KEY = RecordKey(
    task="pope",
    item="0",
    image="p",
    prompt="Is there a dog?",
    fingerprint="f",
    method={"name": "air", "strength": 0.1},
    generation={"max_new_tokens": 8},
    versions={"airvlm": "0.1.0"},
)


def record(i: int, **fields: object) -> Record:
    return Record(key=dataclasses.replace(KEY, item=str(i)), **{"text": f"answer {i} é\n", **fields})


def answers(folder: object) -> dict[str, str | None]:
    return {r.key.item: r.text for r in Store(folder, readonly=True)}


def test_a_record_survives_the_round_trip_through_its_line():
    full = record(1, tokens=3, finished=True, seconds=0.5, report={"fired": True}, extra={"model": "m"})
    assert Record.from_line(full.to_line()) == full
    assert full.to_line().count(b"\n") == 1


def test_an_error_has_no_text_and_no_tokens():
    failed = Record(KEY, error="no")
    assert (failed.text, failed.tokens, failed.finished, failed.seconds) == (None, 0, False, 0.0)
    assert json.loads(failed.to_line())["image"] == KEY.image


def test_what_records_have_in_common_is_held_once(tmp_path):
    crops = [[[0, 0, 192, 192, 0.1762, False]]]
    values = {
        "tokens": 100,
        "layers": [-1],
        "ratio": 1.0,
        "steps": 1,
        "fired": True,
        "note": "100",
        "list": "[-1]",
    }
    given = [record(i, report={"crops": crops, **values}, extra={"model": "m"}) for i in range(2)]
    with Store(tmp_path) as store:
        store.extend(given)
    held = list(Store(tmp_path, readonly=True))
    assert held == given
    for one in held:  # equal is not enough: 1, 1.0 and True are
        assert {name: type(part) for name, part in one.report.items()} == {
            name: type(part) for name, part in {"crops": crops, **values}.items()
        }
    first, second = held
    for name in ("method", "generation", "versions", "prompt"):
        assert getattr(first.key, name) is getattr(second.key, name)
    assert first.report["crops"] is second.report["crops"] and first.extra is second.extra


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(RecordKey)])
def test_the_key_changes_with_every_field_that_can_change_the_answer(name):
    other = {"x": 1} if isinstance(getattr(KEY, name), dict) else "x"
    assert dataclasses.replace(KEY, **{name: other}).digest != KEY.digest


def test_the_key_does_not_depend_on_the_order_of_fields_in_a_configuration():
    turned = dataclasses.replace(KEY, method={"strength": 0.1, "name": "air"})
    assert turned.digest == KEY.digest


def test_keys_stay_what_they_are_from_version_to_version():
    plain = dataclasses.replace(KEY, method=None, prompt="Gibt es ein é\n?")
    nested = {"layers": (1, [2, None]), "noise": 0.5, "deep": {"b": {"z": 1, "a": True}}}
    assert KEY.digest == "944b6e5f96062d159e3603c2488730a1"
    assert dataclasses.replace(plain, generation=nested).digest == "bcb00b918bc727a4d697ac7267a99ae7"


def test_the_same_answer_is_written_once_whoever_brings_it(tmp_path):
    with Store(tmp_path) as one, Store(tmp_path) as two:
        assert one.extend([record(1), record(2)]) == 2
        assert two.extend([record(2), record(3)]) == 1
        assert one.extend([record(3)]) == 0
    assert (tmp_path / FILE).read_bytes().count(b"\n") == 3


def test_an_error_is_not_an_answer_and_gives_way_to_one(tmp_path):
    failed = record(1, text=None, error="ValueError: no")
    with Store(tmp_path) as store:
        store.extend([failed])
        assert failed.key.digest not in store and store.get(failed.key.digest) == failed
        assert store.extend([failed]) == 0  # the same failure again is no news
        store.extend([record(1)])
        store.extend([failed])
        assert failed.key.digest in store
    assert answers(tmp_path) == {"1": "answer 1 é\n"}


@pytest.mark.parametrize("cut", [1, 5, 100, -1])
def test_a_torn_last_line_is_ignored_by_readers_and_cut_off_by_the_next_writer(tmp_path, cut):
    with Store(tmp_path) as store:
        store.extend([record(1), record(2)])
    with (tmp_path / FILE).open("ab") as file:
        file.write(record(3).to_line()[:cut])
    assert set(answers(tmp_path)) == {"1", "2"}
    with Store(tmp_path) as store:
        store.extend([record(4)])
        assert store.broken == 0
    assert set(answers(tmp_path)) == {"1", "2", "4"}
    for line in (tmp_path / FILE).read_bytes().splitlines():
        json.loads(line)


def test_a_damaged_line_counts_as_unanswered_and_hides_no_other(tmp_path):
    with Store(tmp_path) as store:
        store.extend([record(i) for i in range(3)])
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / FILE).write_bytes(lines[0] + b"\0" * 40 + b"\n" + lines[2])
    store = Store(tmp_path, readonly=True)
    assert store.broken == 1 and {r.key.item for r in store} == {"0", "2"}


@pytest.mark.parametrize("written", [0, 10, 400])
def test_a_full_disk_is_said_plainly_and_leaves_the_file_as_it_was(tmp_path, monkeypatch, written):
    with Store(tmp_path) as store:
        store.extend([record(1)])
        before = (tmp_path / FILE).read_bytes()

        def write(descriptor: int, content: bytes, room: list[int] = [written]) -> int:  # noqa: B006  # the disk's memory
            part = bytes(content[: room[0]])
            room[0] -= len(part)
            if not part:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(descriptor, part)

        real = os.write
        monkeypatch.setattr(jsonl.os, "write", write)
        with pytest.raises(StoreError, match=r"disk is full.*1 records before it are safe.*rerun the command"):
            store.extend([record(2), record(3)])
        monkeypatch.undo()
        assert (tmp_path / FILE).read_bytes() == before
        store.extend([record(2), record(3)])
    assert set(answers(tmp_path)) == {"1", "2", "3"}


LIMITED = """
import resource, sys
sys.path.insert(0, {tests!r})
from test_store import record
from airvlm.evaluation.store import Store, StoreError
store = Store({folder!r})
store.extend([record(1)])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    store.extend([record(2), record(3)])
except StoreError as error:
    print(error)
"""


def test_a_write_that_the_system_cuts_short_is_taken_back(tmp_path):
    code = LIMITED.format(tests=os.path.dirname(__file__), folder=str(tmp_path))
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "1 records before it are safe" in out
    assert (tmp_path / FILE).read_bytes() == record(1).to_line()


def test_a_folder_that_cannot_be_written_is_refused_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file.*--output"):
        Store(tmp_path / "file")
    with pytest.raises(StoreError, match="has no answers"):
        Store(tmp_path / "nowhere", readonly=True)


def test_without_locks_a_writer_keeps_a_file_of_its_own_and_all_are_read(tmp_path, monkeypatch):
    with Store(tmp_path) as store:
        store.extend([record(1)])

    def no_lock(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(jsonl.FileLock, "acquire", no_lock)
    with Store(tmp_path) as store:
        assert record(1).key.digest in store
        store.extend([record(2)])
    assert len(list(tmp_path.glob("answers*.jsonl"))) == 2
    assert set(answers(tmp_path)) == {"1", "2"}


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from test_store import record
from airvlm.evaluation.store import Store
store = Store({folder!r})
print("ready", flush=True)
for i in range({n}):
    store.refresh()
    if record(i).key.digest not in store:
        store.extend([record(i, report={{"padding": "x" * 2000}})])
"""


def writer(folder: object, n: int) -> subprocess.Popen[str]:
    code = WRITER.format(tests=os.path.dirname(__file__), folder=str(folder), n=n)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_writers_killed_at_random_moments_and_working_at_once_end_with_every_record_once(tmp_path):
    n, rng = 100, random.Random(0)
    for _ in range(4):
        pair = [writer(tmp_path, n), writer(tmp_path, n)]
        for process in pair:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, 0.05))
        for process in pair:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        with (tmp_path / FILE).open("ab") as file:  # and now and then the kill tears a line
            file.write(record(n + 1).to_line()[: rng.randrange(200)])
    last = [writer(tmp_path, n), writer(tmp_path, n)]
    assert [process.communicate() and process.returncode for process in last] == [0, 0]
    lines = (tmp_path / FILE).read_bytes().splitlines()
    assert sorted(int(json.loads(line)["item"]) for line in lines) == list(range(n))


def test_opening_a_finished_store_cuts_off_a_torn_line(tmp_path):
    with Store(tmp_path) as store:
        store.extend([record(0)])
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole + record(1).to_line()[:40])
    with Store(tmp_path) as store:
        assert len(store) == 1
    assert (tmp_path / FILE).read_bytes() == whole


def test_an_answer_replaces_an_error_or_an_earlier_answer_and_never_the_reverse(tmp_path):
    failed, good = record(1, text=None, error="out of memory"), record(1)
    (tmp_path / FILE).write_bytes(failed.to_line() + good.to_line() + failed.to_line())
    assert list(Store(tmp_path, readonly=True)) == [good]
    later = dataclasses.replace(good, tokens=4)  # such as one with a longer trace
    (tmp_path / FILE).write_bytes(good.to_line() + later.to_line() + failed.to_line())
    assert list(Store(tmp_path, readonly=True)) == [later]
