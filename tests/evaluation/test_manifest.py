"""run.json: what others wrote into it is refused by its name, and what we wrote before is still read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import FakeMethod, FakeVLM

from airvlm.cli import run as command_line
from airvlm.evaluation import Results
from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.manifest import MANIFEST, read
from airvlm.evaluation.store import StoreError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    methods = {"better": FakeMethod("better", 0.7)}
    command = {"command": "airvlm evaluate x", "date": "2026-01-01 10:00"}
    evaluate(FakeVLM(), ["fake-captions"], methods, tmp_path, progress=False, curve=False, command=command)
    return tmp_path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "expected an object, found list"),
        ("null", "expected an object"),
        ("7", "expected an object"),
        ("{}", "'model' is missing"),
        ("not json", "is not JSON"),
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"model": []}', "'model' is missing or no object"),
        ('{"model": {}, "methods": {}, "tasks": {}}', "no name or no fingerprint"),
        (
            '{"model": {"name": "m", "fingerprint": "f"}, "methods": {"a": 3}, "tasks": {}}',
            "'a' is no object",
        ),
        (
            '{"model": {"name": "m", "fingerprint": "f"}, "methods": {}, "tasks": {"t": {}}}',
            "'t' has no data",
        ),
        ('{"model": {"name": "m", "fingerprint": "f"}, "methods": {}, "tasks": {"t": 1}}', "'t' has no data"),
        ('{"format": 99, "model": {}}', "format 99 by a later airvlm"),
        ('{"format": "x"}', "expected a number"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line_with_the_files_name(folder, capsys, content, says):
    (folder / MANIFEST).write_text(content)
    with pytest.raises(StoreError, match=r"run\.json"):
        Results.load(folder)
    with pytest.raises(StoreError, match=r"run\.json"):
        evaluate(FakeVLM(), ["fake-captions"], {}, folder, progress=False)
    assert command_line(["report", str(folder), "--out", str(folder / "report")]) == 2
    said = capsys.readouterr().err
    assert "run.json" in said and says in said and said.count("\n") == 1
    assert (folder / MANIFEST).read_text() == content


def test_a_file_of_before_is_still_read(folder):
    content = read(folder)
    for name in ("format", "commands"):
        content.pop(name)
    content["tasks"]["fake-captions"].pop("task")
    (folder / MANIFEST).write_text(json.dumps(content))
    found = Results.load(folder)
    assert found.tasks["fake-captions"].scores("better").n == 40 and found.commands == []


def test_answers_under_a_methods_former_name_are_those_of_its_name(folder):
    content = read(folder)
    content["methods"]["air-other-picture:keep=6"] = content["methods"].pop("better")
    (folder / MANIFEST).write_text(json.dumps(content))
    assert list(Results.load(folder).methods) == ["vanilla", "air-other-image:keep=6"]
    vlm, methods = FakeVLM(), {"air-other-image:keep=6": FakeMethod("better", 0.7)}
    found = evaluate(vlm, ["fake-captions"], methods, folder, progress=False, curve=False)
    assert vlm.sizes == [] and found.tasks["fake-captions"].scores("air-other-image:keep=6").n == 40
    assert list(Results.load(folder).methods) == ["vanilla", "air-other-image:keep=6"]


def test_who_asked_is_written_down_once(folder):
    for day in ("02", "03"):
        command = {"command": "airvlm evaluate x", "date": f"2026-01-{day} 10:00"}
        evaluate(FakeVLM(), ["fake-captions"], {}, folder, progress=False, curve=False, command=command)
    [known] = Results.load(folder).commands
    assert known["date"] == "2026-01-03 10:00" and known["versions"]["torch"]


def test_reading_a_run_is_imported_from_where_the_documents_say():
    assert Results.load.__name__ == "load"  # in a fresh process: tests/models/test_loading.py
