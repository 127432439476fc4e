"""`airvlm score`: every kind of file, one JSON object, one line where the input cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airvlm import cli
from airvlm.tasks import TASKS
from tests.golden import golden


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = cli.run(["score", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def _pope(tmp_path: Path) -> Path:
    file = tmp_path / "answers.jsonl"
    rows = [{"answer": said, "label": label} for said, label in (("Yes", "yes"), ("No", "yes"), ("No", "no"))]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def test_json_is_one_object_with_values_intervals_and_settings(run: Any, tmp_path: Path) -> None:
    code, out, err = run("pope", _pope(tmp_path), "--json")
    content = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    accuracy = content["metrics"]["accuracy"]
    assert (
        accuracy["value"] == pytest.approx(200 / 3)
        and accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    )
    assert content["n"] == accuracy["n"] == 3 and content["settings"]["parser"] == "strict"
    assert content["counts"]["tp"] == 1 and "items" not in content


def test_a_variant_and_a_field_are_the_same_thing(run: Any, tmp_path: Path) -> None:
    file = _pope(tmp_path)
    by_name = json.loads(run("pope", file, "--variant", "opera", "--json")[1])
    by_field = json.loads(run("pope", file, "--set", "parser=opera", "--json")[1])
    assert by_name["settings"] == by_field["settings"] and by_name["metrics"] == by_field["metrics"]


def test_the_table_shows_every_metric_and_items_what_was_read(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("pope", _pope(tmp_path), "--items")
    assert code == 0 and all(name in out for name in ("accuracy", "f1", "yes_ratio", "66.67"))
    assert json.loads(out.splitlines()[-1])["parsed"] == "no"


def test_many_unreadable_answers_are_told(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"answer": "", "label": "yes"}')
    code, out, err = run("pope", file, "--json")
    assert code == 0 and "1 answers could not be read" in err
    assert json.loads(out)["metrics"]["precision"]["value"] is None  # nothing to divide by: null, not 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope", "x"], "no file or folder x"),
        (["nope", "."], "no task 'nope'; there are: chair"),
        (["chair", "."], ""),
        ([], "needs a task and a file of answers"),
        (["pope", ".", "--variant", "loud"], "no variant 'loud'"),
        (["pope", ".", "--set", "parser"], "--set takes FIELD=VALUE"),
        (["pope", ".", "--set", "parsers=x"], "pope has no option parsers"),
        (["chair", ".", "--truth", "nowhere.json"], "no file or folder nowhere.json"),
    ],
)
def test_input_that_cannot_be_used_is_one_line_and_code_2(run: Any, arguments: list[str], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


def test_the_list_has_every_task_with_its_variants(run: Any) -> None:
    content = json.loads(run("--list", "--json")[1])["tasks"]
    assert list(content) == list(TASKS)
    assert "wordnet" in content["chair"]["variants"]


def test_scoring_loads_no_model_library(tmp_path: Path) -> None:
    script = f"import sys; from airvlm import cli; cli.run(['score', 'pope', {str(_pope(tmp_path))!r}]); " + (
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


TRUTH = ("chair", "gt_objects_coco2014_trainval.json.gz")
KINDS: list[tuple[str, tuple[str, ...], tuple[str, ...] | None, dict[str, float]]] = [
    (
        "chair",
        ("chair", "opera_captions", "llava-1.5_greedy.jsonl"),
        TRUTH,
        {"CHAIR_S": 45.0, "recall": 79.79},
    ),
    (
        "chair",
        ("chair", "pope_table2_captions", "Instruction2_mmgpt.norm.jsonl.gz"),
        TRUTH,
        {"CHAIR_I": 11.13},
    ),
    ("chair", ("chair", "caption_to_words.json"), None, {"length": 7.66}),
    ("bleu", ("bleu", "llava-1.5_greedy_full_inputs.json"), None, {"BLEU": 11.16, "BLEU-4": 5.37}),
    (
        "pope",
        ("pope", "clearsight_vaf_llava7b_coco_random_answers.jsonl"),
        ("pope", "coco_pope_random.json"),
        {"accuracy": 89.77, "f1": 89.50},
    ),
    ("pope", ("pope", "yesno_parsers.json"), None, {"yes_ratio": 28.95}),
    ("amber", ("amber", "llava15_7b_166.json"), ("..", "data", "amber"), {"CHAIR": 7.55, "Hal": 37.35}),
    ("mme", ("mme", "LaVIN"), None, {"perception": 963.61, "cognition": 249.64}),
    ("mmbench", ("mmbench", "can_infer.json"), None, {"agreement": 100}),
    ("mmbench", ("mmbench", "circular.json"), None, {"accuracy": 40}),
    ("hallusionbench", ("hallusionbench", "judged_seed0.json"), None, {"aAcc": 52.08, "qAcc": 24.18}),
    ("llava-bench", ("llava_bench_wild", "llava-v1.5-7b-eval2.jsonl"), None, {"all": 65.3, "detail": 48.5}),
    ("mmvet", ("mmvet", "llava-v1.5-7b_gpt-4-grade-3runs.json"), None, {"total": 31.1}),
]


@pytest.mark.parametrize(("task", "answers", "truth", "expected"), KINDS, ids=lambda value: str(value)[:40])
def test_every_kind_of_official_file_is_accepted_as_it_is(
    run: Any, task: str, answers: tuple[str, ...], truth: tuple[str, ...] | None, expected: dict[str, float]
) -> None:
    code, out, err = run(task, golden(*answers), *(("--truth", golden(*truth)) if truth else ()), "--json")
    assert code == 0, err
    metrics = json.loads(out)["metrics"]
    assert {name: metrics[name]["value"] for name in expected} == pytest.approx(expected, abs=0.06)
