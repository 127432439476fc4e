"""Reefknot: three kinds of questions about relations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airvlm.tasks import TaskDataMissing, load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.reefknot import find_options, parse_relation
from airvlm.testing import check_task

CHOICE = "What is the relation with hat and cat in this photo? A. under B. on top of C. near D. in, please choose."
OPEN = "What is the relation with old man and stair railing in this photo? Please answer in the following format:"
OPEN += "old man is <relation> stair railing."
ROWS = {
    "YESNO.jsonl": [
        ("Is the driver on bus in this photo? Please answer yes or no.", "yes", "perception"),
        ("Is the driver off the bus in this photo? Please answer yes or no.", "no", "perception"),
        ("Is the man reading a map in this photo? Please answer yes or no.", "yes", "cognitive"),
    ],
    "Multichoice.jsonl": [(CHOICE, "B", "perception"), (CHOICE, "C", "cognitive")],
    "VQA.jsonl": [(OPEN, "old man is leaning on stair railing.", "perception")],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Dataset").mkdir()
    for name, rows in ROWS.items():
        lines = [
            {"image_id": str(17 + n // 2), "query_prompt": question, "label": label, "relation_type": part}
            for n, (question, label, part) in enumerate(rows)
        ]
        (tmp_path / "Dataset" / name).write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "VG_100K_2").mkdir()
    (tmp_path / "VG_100K_2/18.jpg").write_bytes(b"")
    return tmp_path


def test_yes_no_questions_with_their_yes_ratio(folder: Path) -> None:
    task = load_task("reefknot", folder)
    items = task.items()
    scores = task.score(items, ["Yes.", "yes", "Maybe"])
    assert scores.metrics["accuracy"] == pytest.approx(100 / 3)
    assert scores.metrics["hallucination_rate"] == pytest.approx(200 / 3)
    assert scores.metrics["yes_ratio"] == pytest.approx(200 / 3)
    assert (scores.metrics["perception"], scores.metrics["cognition"], scores.unparsed) == (50, 0, 1)
    assert items[2].image == folder / "VG_100K_2/18.jpg" and [item.group for item in items] == ["17", "17", "18"]


def test_options_are_inside_the_question(folder: Path) -> None:
    assert find_options(CHOICE) == {"A": "under", "B": "on top of", "C": "near", "D": "in"}
    task = load_task("reefknot-choice", folder)
    scores = task.score(task.items(), ["B. on top of", "It is near it"])
    assert scores.metrics["accuracy"] == 100


@pytest.mark.parametrize(
    ("answer", "relation"),
    [
        ("old man is leaning on stair railing.", "leaning on"),
        ("The old man is leaning on the stair railing", "leaning on"),
        ("Old man is <leaning on> stair railing.", "leaning on"),
        ("old man is stair railing", None),
        ("He leans.", None),
        ("", None),
    ],
)
def test_relations_in_open_answers(answer: str, relation: str | None) -> None:
    assert parse_relation(answer, OPEN) == relation


def test_open_answers_match_exactly_or_contain_the_relation(folder: Path) -> None:
    answers = ["The old man is slowly leaning on the stair railing."]
    for variant, accuracy in (("exact", 0), ("contains", 100)):
        task = load_task("reefknot-vqa", folder, variant=variant)
        assert task.score(task.items(), answers).metrics["accuracy"] == accuracy


def test_the_repositorys_files_of_answers_are_read(tmp_path: Path) -> None:
    row = {"image_id": "1", "query_prompt": "Is it?", "label": "no", "relation_type": "cognitive", "response": "No"}
    path = tmp_path / "YesNo_results.jsonl"
    path.write_text(json.dumps(row))
    assert score_file(load_task("reefknot"), path).metrics["accuracy"] == 100


@pytest.mark.parametrize("name", ["reefknot", "reefknot-choice", "reefknot-vqa"])
def test_it_keeps_the_laws(name: str, folder: Path) -> None:
    check_task(load_task(name, folder))
    with pytest.raises(TaskDataMissing, match="jsonl"):
        load_task(name, folder / "VG_100K_2").items()
