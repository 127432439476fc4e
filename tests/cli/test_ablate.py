"""`airvlm ablate` at the command line."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import airvlm.methods
import airvlm.tasks
from airvlm.cli import asking, run

spec = importlib.util.spec_from_file_location("fakes", Path(__file__).parents[1] / "evaluation" / "fakes.py")
fakes = sys.modules.get("fakes") or importlib.util.module_from_spec(spec)
if "fakes" not in sys.modules:
    sys.modules["fakes"] = fakes
    spec.loader.exec_module(fakes)


@pytest.fixture(autouse=True)
def fake_world(monkeypatch):
    monkeypatch.setattr(airvlm.methods, "parse_method", fakes.parse_fake)
    for name, task in fakes.TASKS.items():
        monkeypatch.setitem(airvlm.tasks.TASKS, name, task)
    vlm = fakes.FakeVLM()
    vlm.anatomy = SimpleNamespace(layers=range(6))
    monkeypatch.setattr(asking, "load", lambda *_, **__: vlm)


def test_json_holds_each_sweep_value_by_value_beside_vanilla(tmp_path, capsys):
    arguments = ["ablate", "fake-captions", "fake", "--sweep", "bias=1,2", "--sweep", "max_new_tokens=8,16"]
    code = run([*arguments, "--out", str(tmp_path), "--json", "--no-plot"])
    found = json.loads(capsys.readouterr().out)
    assert (
        code == 0
        and list(found) == ["bias", "max_new_tokens"]
        and list(found["bias"]) == ["bias=1", "bias=2"]
    )
    assert set(found["bias"]["bias=1"]) == {"vanilla", "method"}
    assert set(found["bias"]["bias=1"]["method"]["recall"]) == {"value", "low", "high", "n"}


def test_tables_and_curves_by_default_on_the_validation_split(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="needs the plots extra")
    assert run(["ablate", "fake-captions", "fake", "--sweep", "bias=1,2", "--out", str(tmp_path)]) == 0
    assert "fake-captions, validation; 40 items" in capsys.readouterr().out
    assert (tmp_path / "ablation-fake-captions-fake-bias.png").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fake-captions", "fake"], "--sweep field=value"),
        (["fake-captions", "fake", "--sweep", "nothing"], "--sweep nothing"),
        (["fake-captions", "fake", "--sweep", "bias=1", "--sweep", "bias=2"], "varied twice"),
        (["fake-captions", "fake", "--sweep", "max_new_tokens=many"], "many"),
        (["fake-captions", "fake", "--sweep", "max_new_tokens=0"], "whole numbers from 1"),
        (["fake-captions", "fake", "--sweep", "bias=a,b"], "could not convert"),
        (["fake-captions", "vanilla", "--sweep", "bias=1"], "nothing to vary"),
        (["no-such-task", "fake", "--sweep", "bias=1"], "no task"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(tmp_path, capsys, arguments, says):
    code = run(["ablate", *arguments, "--out", str(tmp_path)])
    printed = capsys.readouterr()
    assert code == 2 and says in printed.err and printed.err.count("\n") == 1 and printed.out == ""
