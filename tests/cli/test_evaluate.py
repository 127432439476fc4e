"""`airvlm evaluate` at the command line: what it prints, where, and how it ends."""

from __future__ import annotations

import json

import fakes
import pytest

from airvlm.cli import asking, run
from airvlm.evaluation.results import Results

pytestmark = pytest.mark.usefixtures("fake_world")


def test_json_is_all_that_standard_output_holds_and_the_code_is_zero(tmp_path, capsys):
    code = run(["evaluate", "fake-captions", "--method", "better:bias=0.7", "--out", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0 and list(found["fake-captions"]) == ["vanilla", "better:bias=0.7"]
    assert set(found["fake-captions"]["vanilla"]["CHAIR_S"]) == {"value", "low", "high", "n"}


def test_the_same_command_again_gives_the_same_output_without_a_model(tmp_path, capsys, monkeypatch):
    arguments = ["evaluate", "fake-questions", "--method", "better", "--out", str(tmp_path), "--json"]
    run(arguments)
    first = capsys.readouterr().out

    class Silent(fakes.FakeVLM):
        def batch(self, *_, **__):
            raise AssertionError("asked again")

    monkeypatch.setattr(asking, "load", lambda *_, **__: Silent())
    assert run(arguments) == 0 and capsys.readouterr().out == first


def test_tables_are_printed_with_progress_apart_from_them(tmp_path, capsys):
    assert run(["evaluate", "fake-captions", "--method", "better:bias=0.7", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "fake-captions, test split; 40 items on 40 images" in printed.out
    assert "answer/s" in printed.err and "answer/s" not in printed.out


def test_shards_together_are_the_whole(tmp_path, capsys):
    for i in range(2):
        assert run(["evaluate", "fake-captions", "--out", str(tmp_path), "--shard", f"{i}/2", "--json"]) == 0
    assert "part 1/2 is done" in capsys.readouterr().err
    task = Results.load(tmp_path).tasks["fake-captions"]
    assert task.unanswered("vanilla") == task.unanswered("air") == 0


def test_failures_end_with_code_one_and_a_table_that_says_why(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(asking, "load", lambda *_, **__: fakes.FakeVLM(fails=["test/1.png"]))
    code = run(["evaluate", "fake-captions", "--out", str(tmp_path), "--no-curve", "--json"])
    printed = capsys.readouterr()
    assert code == 1 and json.loads(printed.out)
    assert "1 of 40 failed, first with ValueError: cannot see test/1.png" in " ".join(printed.err.split())


def test_a_method_that_never_acted_ends_with_code_one(tmp_path, capsys):
    code = run(["evaluate", "fake-captions", "--method", "idle:fires=false", "--out", str(tmp_path), "--json"])
    assert code == 1 and "never acted (too far)" in " ".join(capsys.readouterr().err.split())


def test_a_baseline_that_never_acted_is_a_note_unless_acting_is_required(tmp_path, capsys):
    command = ["evaluate", "fake-captions", "--method", "memvr:fires=false", "--out", str(tmp_path), "--json"]
    assert run(command) == 0
    assert "note: fake-captions, memvr:fires=false: the method never acted" in capsys.readouterr().err
    assert run([*command, "--require-acting"]) == 1


def test_stopped_it_says_what_was_kept_and_how_to_go_on(tmp_path, capsys, monkeypatch):
    class Stopped(fakes.FakeVLM):
        def batch(self, *arguments, **options):
            if len(self.sizes) == 2:
                raise KeyboardInterrupt
            return super().batch(*arguments, **options)

    monkeypatch.setattr(asking, "load", lambda *_, **__: Stopped())
    assert run(["evaluate", "fake-captions", "--batch-size", "10", "--out", str(tmp_path)]) == 130
    said = capsys.readouterr().err
    assert f"stopped; 20 answers are kept in {tmp_path}; the same command goes on from there" in said


def test_a_device_that_is_not_there_is_refused_before_a_model_is_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(asking, "load", lambda *_, **__: pytest.fail("loaded"))
    for command in (["evaluate", "fake-captions"], ["ablate", "fake-captions", "fake", "--sweep", "bias=1"]):
        assert run([*command, "--device", "xpu:7", "--out", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "--device xpu:7 cannot be used here" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-task"], "no task 'no-such-task'"),
        (["fake-captions", "--shard", "5/3"], "as in 0/4"),
        (["fake-captions", "fake-captions"], "named twice"),
        (["fake-captions", "--limit", "0"], "limit"),
        (["fake-captions", "--split", "train"], "split"),
        (["fake-captions", "--variant", "odd"], "no variant 'odd'"),
        (["chair"], "--data"),
        ([], "task"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_code_two(tmp_path, capsys, arguments, says):
    code = run(["evaluate", *arguments, "--out", str(tmp_path)])
    printed = capsys.readouterr()
    assert code == 2 and says in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_limit_and_split_choose_the_items(tmp_path, capsys):
    run(
        [
            "evaluate",
            "fake-captions",
            "--split",
            "validation",
            "--limit",
            "9",
            "--out",
            str(tmp_path),
            "--json",
        ]
    )
    found = json.loads(capsys.readouterr().out)
    assert found["fake-captions"]["vanilla"]["recall"]["n"] == 9
    assert Results.load(tmp_path).tasks["fake-captions"].items[0].id == "validation-0"
