"""MM-Vet: official totals from official grades, capabilities, and questions to a judge."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from airvlm.tasks import load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.judges.judge import Judge
from airvlm.tasks.mmvet import MMVet, parse_grade
from tests.fake_judge import FakeJudge, Fault
from tests.golden import golden
from tests.tasks.conftest import judge_at


@pytest.mark.parametrize("runs", [1, 3])
def test_official_grades_give_the_official_totals(runs: int) -> None:
    ours = score_file(load_task("mmvet"), golden("mmvet", f"llava-v1.5-7b_gpt-4-grade-{runs}runs.json")).metrics
    with golden("mmvet", f"llava-v1.5-7b_gpt-4-cap-score-{runs}runs.csv").open() as file:
        official = {row[""]: row for row in csv.DictReader(file)}["llava-v1.5-7b"]
    assert round(ours["total"], 1) == float(official["total"])
    assert round(ours["std"], 1) == float(official["std"])


def vet(folder: Path) -> Path:
    record = {"imagename": "v1_0.png", "question": "x?", "answer": "1<AND>2", "capability": ["ocr", "math"]}
    other = {"imagename": "v1_1.png", "question": "y?", "answer": "dog", "capability": ["rec"]}
    (folder / "mm-vet.json").write_text(json.dumps({"v1_0": record, "v1_1": other}))
    return folder


def test_scores_by_capability_and_by_combination(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: "0.5" if "1 <AND> 2 | good" in prompt else "1.0") as fake:
        task = MMVet(vet(tmp_path), judge=judge_at(fake))
        scores = task.score(task.items(), ["good", "dog"]).metrics
    assert scores == {
        **{"total": 75.0, "std": 0.0, "rec": 100.0, "ocr": 50.0, "math": 50.0},
        **{"int:ocr+math": 50.0, "int:rec": 100.0},
    }
    assert fake.requests[0]["max_tokens"] == 3


def test_each_run_asks_for_another_grade(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: "1.0" if n % 3 == 0 else "0.4") as fake:
        task = MMVet(vet(tmp_path), judge=Judge(fake.url, "m", workers=1), runs=3)
        scores = task.score(task.items(), ["a", "b"])
    assert len(fake.requests) == 6
    assert scores.metrics["total"] == pytest.approx(60.0)
    assert scores.metrics["std"] > 20


def test_a_grade_that_cannot_be_obtained_is_missing_and_not_zero(tmp_path: Path) -> None:
    with FakeJudge(lambda prompt, n: Fault(500) if "| bad" in prompt else "1.0") as fake:
        task = MMVet(vet(tmp_path), judge=judge_at(fake))
        scores = task.score(task.items(), ["bad", "dog"])
    assert (scores.missing, scores.metrics["total"]) == (1, 100.0)


@pytest.mark.parametrize("name", ["llava-v1.5-7b.json", "llava-v1.5-7b.jsonl"])
def test_answers_in_both_official_formats_are_graded(tmp_path: Path, name: str) -> None:
    path = golden("mmvet", name)
    alone = score_file(load_task("mmvet"), path)
    assert (list(alone.metrics), alone.n) == (["length"], 218)
    assert "not judged" in alone.notes[0]
    with FakeJudge("0.3") as fake:
        scores = score_file(MMVet(judge=judge_at(fake)), path, vet(tmp_path) / "mm-vet.json", lenient=True)
    assert (scores.n, scores.metrics["total"]) == (2, pytest.approx(30.0))


@pytest.mark.parametrize(
    ("verdict", "grade"),
    [("0.7", 0.7), ("1.0\n", 1.0), ("0", 0.0), ("7", None), ("", None), ("good", None), ("-0.5", None)],
)
def test_a_grade_is_a_number_from_zero_to_one(verdict: str, grade: float | None) -> None:
    assert parse_grade(verdict) == grade


def test_a_file_of_questions_is_refused() -> None:
    with pytest.raises(ValueError, match="holds questions"):
        score_file(load_task("mmvet"), golden("mmvet", "llava-mm-vet.jsonl"))


def test_grades_that_lack_a_question_of_the_data_are_incomplete(tmp_path: Path) -> None:
    (tmp_path / "grades.json").write_text(json.dumps({"v1_0": {"content": ["0.5"], "score": [0.5]}}))
    scores = score_file(MMVet(), tmp_path / "grades.json", vet(tmp_path))
    assert (scores.coverage.expected, scores.coverage.missing, scores.metrics["ocr"]) == (2, 1, 50.0)
