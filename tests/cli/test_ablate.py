"""`airvlm ablate` at the command line."""

from __future__ import annotations

import json

import pytest

from airvlm.cli import run

pytestmark = pytest.mark.usefixtures("fake_world")


def test_json_holds_each_sweep_value_by_value_beside_vanilla(tmp_path, capsys):
    arguments = ["ablate", "fake-captions", "fake", "--sweep", "bias=1,2", "--sweep", "max_new_tokens=8,16"]
    code = run([*arguments, "--out", str(tmp_path), "--json", "--no-plot"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0 and list(found) == ["bias", "max_new_tokens"] and list(found["bias"]) == ["bias=1", "bias=2"]
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
