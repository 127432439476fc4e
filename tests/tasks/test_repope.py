"""RePOPE: POPE's files under another name, and its official figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from airvlm.tasks import load_task
from airvlm.tasks.answers import score_file
from airvlm.testing import check_task
from tests.golden import DATA

SETTINGS = ("random", "popular", "adversarial")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Our own 120 questions as RePOPE's three files, and their images."""
    lines = (DATA / "pope/questions.jsonl").read_text().splitlines()
    for i, setting in enumerate(SETTINGS):
        (tmp_path / f"coco_repope_{setting}.json").write_text("\n".join(lines[40 * i : 40 * i + 40]))
    (tmp_path / "val2014").mkdir()
    for image in {json.loads(line)["image"] for line in lines}:
        Image.new("RGB", (8, 8)).save(tmp_path / "val2014" / image)
    return tmp_path


def test_figures_are_those_of_the_official_script(folder: Path) -> None:
    expected = json.loads((DATA / "repope/expected.json").read_text())
    texts = [json.loads(line) for line in (DATA / "pope/answers.jsonl").read_text().splitlines()]
    by_id = {str(row["question_id"]): row["text"] for row in texts}
    task = load_task("repope", folder, variant="repope")
    items = task.items()
    scores = task.score(items, [by_id[item.id.rsplit("-", 1)[1]] for item in items])
    parsed = {row["id"].rsplit("-", 1)[1]: row["parsed"] for row in scores.details}
    assert parsed == expected["answers"]
    for setting, official in expected["results"].items():
        one = scores.select(i for i, item in enumerate(items) if item.meta["setting"] == setting)
        ours = {name: one.metrics[name] / 100 for name in ("precision", "recall", "f1", "accuracy", "yes_ratio")}
        theirs = {"precision": "Precision", "recall": "Recall", "f1": "F1", "accuracy": "ACC", "yes_ratio": "Yes Ratio"}
        assert ours == pytest.approx({name: official[key] for name, key in theirs.items()}, rel=1e-12)
    assert scores.metrics["yes_ratio-popular"] == pytest.approx(100 * expected["results"]["popular"]["Yes Ratio"])


def test_an_unreadable_answer_counts_nowhere_in_the_official_variant_only(folder: Path) -> None:
    official = load_task("repope", folder, variant="repope")
    items = official.items()[:2]
    answers = ["Perhaps.", "No."]
    assert official.score(items, answers).metrics["accuracy"] == 100
    assert replace(official, parser="strict").score(items, answers).metrics["accuracy"] == 50


def test_answers_to_pope_are_scored_with_its_labels(folder: Path, tmp_path: Path) -> None:
    items = load_task("repope", folder).items()
    lines = [{"id": item.id, "text": item.truth} for item in items] + [{"id": "coco-random-999", "text": "yes"}]
    answers = tmp_path / "answers.jsonl"
    answers.write_text("\n".join(map(json.dumps, lines)))
    task = load_task("repope", folder)
    with pytest.raises(ValueError, match="no item has"):
        score_file(task, answers)
    scores = score_file(task, answers, lenient=True)
    assert scores.metrics["accuracy"] == 100 and scores.coverage.unknown == 1


def test_it_keeps_the_laws(folder: Path) -> None:
    check_task(load_task("repope", folder))
    assert {item.meta["setting"] for item in load_task("repope-popular", folder).items()} == {"popular"}
