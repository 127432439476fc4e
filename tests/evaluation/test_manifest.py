"""run.json: what others wrote into it is refused by its name, and nothing that it names is imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes import FakeMethod, FakeVLM

from airvlm.cli import run as command_line
from airvlm.evaluation import Results
from airvlm.evaluation.evaluate import evaluate
from airvlm.evaluation.manifest import MANIFEST, read_manifest
from airvlm.evaluation.store import StoreError

METHODS = {"better": FakeMethod("better", 0.7)}
OPTIONS = {"progress": False, "curve": False}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    command = {"command": "airvlm evaluate x", "date": "2026-01-01 10:00"}
    evaluate(FakeVLM(), ["fake-captions"], METHODS, out=tmp_path, command=command, **OPTIONS)
    return tmp_path


LIMITED = '{"task": "t", "data": null, "split": "test", "limit": 4, "generation": {}, "curve": {}}'
MODEL = '"model": {"name": "m", "fingerprint": "f"}'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "content: Input should be"),
        ("null", "content: Input should be"),
        ("7", "content: Input should be"),
        ("{}", "model: Field required"),
        ("not json", "is not JSON"),
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"model": []}', "model: Input should be"),
        ('{"model": {}, "methods": {}, "tasks": {}}', "model.name: Field required"),
        ("{" + MODEL + ', "methods": {"a": 3}, "tasks": {}}', "methods.a: Input should be"),
        ("{" + MODEL + ', "methods": {}, "tasks": {"t": {}}}', "tasks.t.task: Field required"),
        ("{" + MODEL + ', "methods": {}, "tasks": {"t": 1}}', "tasks.t: Input should be"),
        ('{"format": 99, "model": {}}', "format 99 of a later airvlm"),
        ("{" + MODEL + ', "methods": {}, "tasks": {"t": ' + LIMITED + "}}", "its limit counts items, not images"),
        ('{"format": "x", ' + MODEL + ', "methods": {}, "tasks": {}}', "format: Input should be"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line_with_the_files_name(folder, capsys, content, says):
    (folder / MANIFEST).write_text(content)
    with pytest.raises(StoreError, match=r"run\.json"):
        Results.load(folder)
    with pytest.raises(StoreError, match=r"run\.json"):
        evaluate(FakeVLM(), ["fake-captions"], {}, out=folder, **OPTIONS)
    assert command_line(["report", str(folder), "--output", str(folder / "report")]) == 2
    said = capsys.readouterr().err
    assert "run.json" in said and says in said and said.count("\n") == 1
    assert (folder / MANIFEST).read_text() == content


def test_a_module_that_a_folder_names_as_its_task_is_not_imported(folder, monkeypatch, capsys):
    (folder / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(folder)
    content = read_manifest(folder)
    for name in ("this:X", "evil:X"):
        content["tasks"] = {"t": {**content["tasks"].popitem()[1], "task": name}}
        (folder / MANIFEST).write_text(json.dumps(content))
        with pytest.raises(StoreError, match="is not installed here"):
            Results.load(folder)
        assert command_line(["report", str(folder), "--output", str(folder / "report")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not {"this", "evil"} & set(sys.modules)


def test_who_asked_is_written_down_once(folder):
    for day in ("02", "03"):
        command = {"command": "airvlm evaluate x", "date": f"2026-01-{day} 10:00"}
        evaluate(FakeVLM(), ["fake-captions"], {}, out=folder, command=command, **OPTIONS)
    [known] = Results.load(folder).commands
    assert known["date"] == "2026-01-03 10:00" and known["versions"]["torch"]


def test_limits_of_the_first_format_alone_are_refused(folder):
    content = read_manifest(folder)
    assert content["format"] == 2
    [task] = content["tasks"].values()
    for written, limit in ((2, 4), (1, None)):
        task["limit"] = limit
        (folder / MANIFEST).write_text(json.dumps({**content, "format": written}))
        assert read_manifest(folder)["format"] == written


def test_a_run_says_in_which_precision_the_model_computed(tmp_path: Path) -> None:
    full, half = FakeVLM(), FakeVLM()
    half.model = SimpleNamespace(dtype=torch.bfloat16)
    names = []
    for vlm, folder in ((full, tmp_path / "full"), (half, tmp_path / "half")):
        results = evaluate(vlm, ["fake-captions"], METHODS, out=folder, batch_size=4, **OPTIONS)
        names.append((results.model["dtype"], results.model_name))
    assert names == [("float32", "fake"), ("bfloat16", "fake (bfloat16)")]
    # a folder of before, without it, learns it when it is resumed
    content = json.loads((tmp_path / "half" / MANIFEST).read_text())
    del content["model"]["dtype"]
    (tmp_path / "half" / MANIFEST).write_text(json.dumps(content))
    assert (
        evaluate(half, ["fake-captions"], METHODS, out=tmp_path / "half", batch_size=4, **OPTIONS).model["dtype"]
        == "bfloat16"
    )
