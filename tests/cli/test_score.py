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
from tests.golden import DATA


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
    assert accuracy["value"] == pytest.approx(200 / 3)
    # three images are too few for an interval: none is better than one that cannot be trusted
    assert accuracy["low"] is None or accuracy["low"] <= accuracy["value"] <= accuracy["high"]
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
    assert code == 0 and "of 1 answers 1 could not be read" in err
    assert json.loads(out)["metrics"]["precision"]["value"] is None  # nothing to divide by: null, not 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope", "x"], "no file or folder x"),
        (["nope", "."], "unknown task 'nope'"),
        (["chair", "."], ""),
        ([], "needs a task and a file of answers"),
        (["pope", ".", "--variant", "loud"], "no variant 'loud'"),
        (["pope", ".", "--set", "parser"], "--set parser: write OPTION=VALUE"),
        (["pope", ".", "--set", "parsers=x"], "pope has no option parsers"),
        (["chair", ".", "--truth", "nowhere.json"], "no file or folder nowhere.json"),
    ],
)
def test_input_that_cannot_be_used_is_one_line_and_code_2(run: Any, arguments: list[str], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


def test_without_ground_truth_the_objects_are_listed_and_the_code_is_not_zero(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "captions.jsonl"
    file.write_text(json.dumps({"image_id": 1, "caption": "A dog and two cats."}))
    code, out, err = run("chair", file)
    assert code == 3 and "not scored: no ground truth" in err
    listed = json.loads(out.splitlines()[-1])
    assert listed["objects"] == ["dog", "cat"] and "hallucinated" not in listed  # nobody knows which ones are
    code, out, _ = run("chair", file, "--json")
    content = json.loads(out)
    assert code == 3 and content["items"][0]["objects"] == ["dog", "cat"] and "CHAIR_S" not in content["metrics"]


def test_how_many_items_have_an_answer_is_always_printed(run: Any, tmp_path: Path) -> None:
    code, out, _ = run("pope", _pope(tmp_path))
    assert code == 0 and "expected 3 · given 3 · matched 3 · missing 0 · duplicate 0 · unknown 0 · " in out


def test_a_part_of_hallusionbench_without_its_questions_ends_with_code_3(run: Any) -> None:
    code, out, err = run("hallusionbench", DATA / "hallusionbench/judged.json")
    assert code == 3 and "expected 1129 · given 60 · matched 60 · missing 1069" in out and "60 of 1129 items" in err
    assert run("hallusionbench", DATA / "hallusionbench/judged.json", "--partial")[0] == 0


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
