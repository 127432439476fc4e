"""`airvlm evaluate` at the command line: what it prints, where, and how it ends."""

from __future__ import annotations

import json

import fakes
import pytest

from airvlm.cli import common, run
from airvlm.evaluation.plan import choose_items
from airvlm.evaluation.results import Results

pytestmark = pytest.mark.usefixtures("fake_world")


def test_json_is_all_that_standard_output_holds_and_the_code_is_zero(tmp_path, capsys):
    code = run(["evaluate", "fake-captions", "--method", "better:bias=0.7", "--output", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0 and list(found["fake-captions"]) == ["vanilla", "better:bias=0.7"]
    assert set(found["fake-captions"]["vanilla"]["CHAIR_S"]) == {"value", "low", "high", "n"}
    assert "CHAIR_S_at_equal_recall" in found["fake-captions"]["better:bias=0.7"]
    assert "CHAIR_S_at_equal_recall" not in found["fake-captions"]["vanilla"]


@pytest.mark.slow
def test_the_same_command_again_gives_the_same_output_without_a_model(tmp_path, capsys, monkeypatch):
    arguments = ["evaluate", "fake-questions", "--method", "better", "--output", str(tmp_path), "--json"]
    run(arguments)
    first = capsys.readouterr().out

    class Silent(fakes.FakeVLM):
        def batch(self, *_, **__):
            raise AssertionError("asked again")

    monkeypatch.setattr(common, "load_model", lambda *_, **__: Silent())
    assert run(arguments) == 0 and capsys.readouterr().out == first


def test_tables_name_the_model_and_the_methods_settings_and_progress_stays_apart(tmp_path, capsys):
    assert run(["evaluate", "fake-captions", "--method", "better:bias=0.7", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("better:bias=0.7: bias=0.7, fires=True\n")
    assert "fake-captions, test split; 40 items on 40 images; at most 64 tokens, greedy; model fake" in printed.out
    assert "40 items x 7 runs (vanilla, better:bias=0.7, eos-bias:bias=-1, " in printed.err
    assert "answers to generate" in printed.err and "answers to generate" not in printed.out
    assert "\r" not in printed.err and "answer/s" not in printed.err  # no bar into a file
    assert not any(line.endswith(" ") for line in printed.out.splitlines())


def test_without_a_method_it_is_crop_blend(tmp_path, capsys):
    assert run(["evaluate", "fake-captions", "--no-curve", "--output", str(tmp_path), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["fake-captions"]) == ["vanilla", "crop-blend"]


def test_shards_together_are_the_whole(tmp_path, capsys):
    for i in range(2):
        assert run(["evaluate", "fake-captions", "--output", str(tmp_path), "--shard", f"{i}/2", "--json"]) == 0
    assert "shard 1/2 is done" in capsys.readouterr().err
    task = Results.load(tmp_path).tasks["fake-captions"]
    assert task.count_unanswered("vanilla") == task.count_unanswered("crop-blend") == 0


def test_failures_end_with_code_one_and_lines_that_say_why(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(common, "load_model", lambda *_, **__: fakes.FakeVLM(fails=["test/1.png"]))
    code = run(["evaluate", "fake-captions", "--output", str(tmp_path), "--no-curve", "--json"])
    printed = capsys.readouterr()
    assert code == 1 and json.loads(printed.out)
    assert "these figures cannot be trusted" in printed.err
    assert "1 of 40 answers failed, the first with ValueError: cannot see test/1.png" in printed.err


def test_a_method_that_never_acted_ends_with_code_one(tmp_path, capsys):
    code = run(["evaluate", "fake-captions", "--method", "idle:fires=false", "--output", str(tmp_path), "--json"])
    assert code == 1 and "never acted (too far)" in capsys.readouterr().err


def test_a_baseline_that_never_acted_is_a_note_unless_acting_is_required(tmp_path, capsys):
    command = ["evaluate", "fake-captions", "--method", "memvr:fires=false", "--output", str(tmp_path), "--json"]
    assert run(command) == 0
    assert "note: fake-captions, memvr:fires=false: the method never acted" in capsys.readouterr().err
    assert run([*command, "--require-acting"]) == 1


def test_stopped_it_says_what_was_saved_and_how_to_resume(tmp_path, capsys, monkeypatch):
    class Stopped(fakes.FakeVLM):
        def batch(self, *arguments, **options):
            if len(self.sizes) == 2:
                raise KeyboardInterrupt
            return super().batch(*arguments, **options)

    monkeypatch.setattr(common, "load_model", lambda *_, **__: Stopped())
    assert run(["evaluate", "fake-captions", "--batch-size", "10", "--output", str(tmp_path)]) == 130
    said = capsys.readouterr().err
    assert f"Interrupted. 20 answers are saved in {tmp_path}; rerun the same command to resume." in said


def test_a_device_that_is_not_there_is_refused_before_a_model_is_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(common, "load_model", lambda *_, **__: pytest.fail("loaded"))
    for command in (["evaluate", "fake-captions"], ["calibrate", "fake-captions"]):
        assert run([*command, "--device", "xpu:7", "--output", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "--device xpu:7 cannot be used here" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-task"], "no-such-task"),
        (["fake-captions", "--shard", "5/3"], "as in 0/4"),
        (["fake-captions", "fake-captions"], "given twice"),
        (["fake-captions", "--limit", "0"], "limit"),
        (["fake-captions", "--split", "train"], "split"),
        (["fake-captions", "--variant", "odd"], "no variant 'odd'"),
        ([], "TASK"),
        (["fake-captions", "--sweep", "nothing"], "--sweep nothing"),
        (["fake-captions", "--sweep", "bias=1", "--sweep", "bias=2"], "varied twice"),
        (["fake-captions", "--sweep", "max_new_tokens=many"], "many"),
        (["fake-captions", "--sweep", "max_new_tokens=0"], "integers from 1"),
        (["fake-captions", "--sweep", "bias=a,b"], "bias"),
        (["fake-captions", "--method", "vanilla", "--sweep", "bias=1"], "nothing can be swept"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_code_two(tmp_path, capsys, monkeypatch, arguments, says):
    monkeypatch.setattr(common, "load_model", lambda *_, **__: pytest.fail("loaded"))
    code = run(["evaluate", *arguments, "--output", str(tmp_path)])
    printed = capsys.readouterr()
    assert code == 2 and says in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_limit_and_split_choose_the_items(tmp_path, capsys):
    arguments = ["evaluate", "fake-captions", "--split", "validation", "--limit", "9", "--json"]
    assert run([*arguments, "--output", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fake-captions, validation"]["vanilla"]["recall"]["n"] == 9
    items = Results.load(tmp_path).tasks["fake-captions, validation"].items
    assert [item.id for item in items] == [item.id for item in choose_items(fakes.FakeCaptions(), 9, "validation")[0]]


def test_samples_are_written_one_file_per_task_and_method(tmp_path, capsys):
    arguments = [
        "evaluate",
        "fake-captions",
        "--method",
        "better:bias=0.7",
        "--limit",
        "9",
        "--log-samples",
        "--no-curve",
    ]
    assert run([*arguments, "--output", str(tmp_path)]) == 0
    files, said = sorted((tmp_path / "samples").iterdir()), capsys.readouterr().err
    assert len(files) == 2 and all(file.suffix == ".jsonl" and str(file) in said for file in files)


# -- sweeps


def test_json_holds_each_sweep_value_by_value_beside_vanilla(tmp_path, capsys):
    arguments = [
        "evaluate",
        "fake-captions",
        "--method",
        "fake",
        "--sweep",
        "bias=1,2",
        "--sweep",
        "max_new_tokens=8,16",
    ]
    code = run([*arguments, "--output", str(tmp_path), "--json", "--no-plot"])
    found = json.loads(capsys.readouterr().out)
    name = "fake-captions, validation, fake"
    assert code == 0 and list(found) == [f"{name}: bias", f"{name}: max_new_tokens"]
    assert list(found[f"{name}: bias"]) == ["bias=1", "bias=2"]
    assert set(found[f"{name}: bias"]["bias=1"]) == {"vanilla", "method"}
    assert set(found[f"{name}: bias"]["bias=1"]["method"]["recall"]) == {"value", "low", "high", "n"}


def test_a_sweep_is_a_named_table_and_a_drawing_by_default_on_the_validation_split(tmp_path, capsys):
    assert run(["evaluate", "fake-captions", "--method", "fake", "--sweep", "bias=1,2", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "sweep fake-captions, validation, fake: bias; model fake" in printed.out
    rows = [line.split()[0] for line in printed.out.splitlines() if line.startswith(("vanilla", "bias=", "fake"))]
    assert rows.count("vanilla") == 1 and {"bias=1", "bias=2"} <= set(rows)
    assert "equal" in printed.out and (tmp_path / "sweep-fake-captions-validation-fake-bias.png").exists()


def test_a_sweep_at_which_nothing_acts_ends_with_code_one(tmp_path, capsys):
    arguments = ["evaluate", "fake-captions", "--method", "fake:fires=false", "--sweep", "bias=1,2", "--no-plot"]
    assert run([*arguments, "--output", str(tmp_path)]) == 1
    assert "never acted, at any value" in capsys.readouterr().err
