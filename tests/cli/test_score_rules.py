"""No silent wrong score: each of these once ran to exit 0 without a word."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.campaign import Outcome, run_command
from tests.golden import DATA


def score(task: str, answers: Path, *more: str | Path) -> Outcome:
    return run_command(["score", task, str(answers), *map(str, more), "--json"])


def refused(outcome: Outcome, *said: str) -> bool:
    """One line on standard error that says it, nothing on standard output, code 2."""
    return (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1) and all(s in outcome.err for s in said)


def _write(path: Path, content: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, content)) if path.suffix == ".jsonl" else json.dumps(content))
    return path


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def test_a_negative_grade_is_an_error(tmp_path: Path) -> None:
    grades = {"v1_0": {"content": ["-0.5"], "score": [-0.5]}, "v1_1": {"content": ["1.0"], "score": [1.0]}}
    assert refused(score("mmvet", _write(tmp_path / "g.json", grades)), "entry 1", "field score.0", "greater than")


def test_truth_without_answers_is_an_error(tmp_path: Path) -> None:
    names = ("category", "subcategory", "visual_input", "set_id", "figure_id", "question_id")
    record = dict(zip(names, ["VD", "math", "1", "0", "0", "0"], strict=True))
    answers = _write(tmp_path / "a.json", [{**record, "model_prediction": "Yes"}])
    truth = _write(tmp_path / "t.json", [{**record, "question": "Is it?"}])
    for wrong in (truth, answers):  # a truth file that lacks answers, and an answers file given as the truth
        outcome = score("hallusionbench", answers, "--truth", wrong, "--variant", "string")
        assert refused(outcome, wrong.name, "line 1, field gt_answer: missing")


def test_a_lost_line_of_mme_is_an_error(tmp_path: Path) -> None:
    lines = (DATA / "mme/results/existence.txt").read_text().splitlines(keepends=True)
    (tmp_path / "existence.txt").write_text("".join(lines[:3] + lines[4:]))
    assert refused(score("mme", tmp_path), "existence.txt, line 4", "a line is lost")
    (tmp_path / "existence.txt").write_text("".join(lines[:-1]))
    assert refused(score("mme", tmp_path), "a line is lost")


def test_references_that_are_a_text_are_an_error(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.json", {"hyp": {"1": "a dog"}, "refs": {"1": "a dog"}})
    assert refused(score("bleu", file), "field refs.1", "expected a list of captions")


def test_empty_descriptions_are_told_or_refused(tmp_path: Path) -> None:
    rows = _lines("chair/captions.jsonl")
    empty = _write(tmp_path / "e.jsonl", [{**row, "caption": ""} for row in rows[::2]])
    assert refused(score("chair", empty, "--truth", DATA / "chair/gt_objects.json"), "all 120 descriptions are empty")
    rows[0]["caption"] = " "
    outcome = score("chair", _write(tmp_path / "a.jsonl", rows), "--truth", DATA / "chair/gt_objects.json")
    report = json.loads(outcome.out)
    assert report["coverage"]["unreadable"] == 1 and any("descriptions are empty" in n for n in report["notes"])


def test_fewer_answers_than_items_are_told_first_and_end_with_code_3(tmp_path: Path) -> None:
    answers = _write(tmp_path / "a.jsonl", _lines("pope/answers.jsonl")[:30])
    truth = DATA / "pope/questions.jsonl"
    outcome = score("pope", answers, "--truth", truth)
    report = json.loads(outcome.out)
    assert outcome.code == 3 and "30 of 120 items" in outcome.err and report["complete"] is False
    assert report["coverage"] == {
        "expected": 120, "given": 30, "matched": 30, "missing": 90, "duplicate": 0, "unknown": 0,
        "unreadable": report["unparsed"],
    }  # fmt: skip
    shown = run_command(["score", "pope", str(answers), "--truth", str(truth), "--partial"])
    assert shown.code == 0 and "n = 30 of 120 items, 90 without an answer or a verdict" in shown.out.splitlines()[0]
    assert "expected 120 · given 30 · matched 30 · missing 90" in shown.out


@pytest.mark.slow
def test_a_built_in_task_knows_how_many_items_it_has(tmp_path: Path) -> None:
    from airvlm.tasks import load_task

    items = load_task("tiny-pope").items()
    answers = _write(tmp_path / "a.jsonl", [{"item": item.id, "text": "Yes"} for item in items[:90]])
    outcome = score("tiny-pope", answers)
    assert outcome.code == 3 and json.loads(outcome.out)["coverage"]["missing"] == len(items) - 90


@pytest.mark.parametrize(
    ("task", "name", "truth"),
    [
        ("pope", "pope/answers.jsonl", "pope/questions.jsonl"),
        ("amber", "amber/generative.json", "amber/data"),
        ("amber-yesno", "amber/discriminative.json", "amber/data"),
        ("hallusionbench", "hallusionbench/judged.json", None),
        ("chair", "chair/captions.jsonl", "chair/gt_objects.json"),
    ],
)
def test_duplicate_answers_are_errors_unless_lenient(tmp_path: Path, task: str, name: str, truth: str | None) -> None:
    rows = _lines(name) if name.endswith("l") else json.loads((DATA / name).read_text())
    answers = _write(tmp_path / Path(name).name, [*rows, rows[0]])
    more = ["--truth", DATA / truth] if truth else []
    more += ["--set", "approximate=true"] if task == "amber" else []
    outcome = score(task, answers, *more)
    assert refused(outcome, "--lenient") and "duplicate" in outcome.err
    lenient = score(task, answers, *more, "--lenient", "--partial")
    assert lenient.code == 0 and json.loads(lenient.out)["coverage"]["duplicate"] == 1 and lenient.err


def test_unknown_ids_are_errors_unless_lenient(tmp_path: Path) -> None:
    rows = [*_lines("pope/answers.jsonl"), {"question_id": 999, "text": "Yes"}]
    answers, truth = _write(tmp_path / "a.jsonl", rows), DATA / "pope/questions.jsonl"
    assert refused(score("pope", answers, "--truth", truth), "line 121", "'999'", "no item has")
    assert json.loads(score("pope", answers, "--truth", truth, "--lenient").out)["coverage"]["unknown"] == 1


@pytest.mark.parametrize("task", ["chair", "pope", "amber-yesno", "mmbench", "hallusionbench", "llava-bench", "mmhal"])
@pytest.mark.parametrize("content", ["", "[]", "\n\n"])
def test_empty_files_are_errors(tmp_path: Path, task: str, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    truth = ["--truth", DATA / "amber/data"] if task.startswith("amber") else []
    assert refused(score(task, tmp_path / "a.json", *truth))


def test_a_web_page_as_the_truth_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("<!DOCTYPE html><html>not found</html>")
    for task, answers in (("pope", "pope/answers.jsonl"), ("chair", "chair/captions.jsonl")):
        outcome = score(task, DATA / answers, "--truth", tmp_path / "t.json")
        assert refused(outcome, "t.json, line 1: not JSON", "web page")


def test_a_gzip_bomb_and_a_cut_gzip_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(b" " * (80 << 20), 9))
    assert refused(score("pope", tmp_path / "bomb.jsonl.gz"), "unpacks to more than 64 MB")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress((DATA / "pope/answers.jsonl").read_bytes())[:-20])
    assert refused(score("pope", tmp_path / "cut.jsonl.gz"), "gzip")


def test_the_message_names_file_line_and_field(tmp_path: Path) -> None:
    rows = _lines("pope/answers.jsonl")
    rows[4]["text"] = ["Yes"]
    outcome = score("pope", _write(tmp_path / "a.jsonl", rows), "--truth", DATA / "pope/questions.jsonl")
    assert refused(outcome, "a.jsonl, line 5, field text: expected a text, not list")
    rows[4] = {"question_id": None, "text": "Yes"}
    rows[4]["question_id"] = 1.5
    outcome = score("pope", _write(tmp_path / "a.jsonl", rows), "--truth", DATA / "pope/questions.jsonl")
    assert refused(outcome, "a.jsonl, line 5, field question_id: an id is a text or a whole number, not float")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_of_other_systems_are_read(tmp_path: Path, encoding: str) -> None:
    text = (DATA / "pope/answers.jsonl").read_text().replace("\n", "\r\n")
    (tmp_path / "a.jsonl").write_bytes(text.encode(encoding))
    outcome = score("pope", tmp_path / "a.jsonl", "--truth", DATA / "pope/questions.jsonl")
    assert outcome.code == 0, outcome.err
