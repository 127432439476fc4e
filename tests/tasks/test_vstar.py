"""V* Bench: two protocols that do not mix, and options whose order gives nothing away."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from airvlm.tasks import TaskDataMissing, load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.vstar import LETTERS, VStar


def folder_of(folder: Path, each: int = 2) -> Path:
    for part, options in (
        ("direct_attributes", ["red", "blue", "green", "black"]),
        ("relative_position", ["left", "right"]),
    ):
        (folder / part).mkdir()
        for i in range(each):
            record = {
                "question": f"What of {i}?",
                "options": options,
                "target_object": ["x"],
                "bbox": [[0, 0, 1, 1]],
            }
            (folder / part / f"sa_{i}.json").write_text(json.dumps(record))
            Image.new("RGB", (4, 4)).save(folder / part / f"sa_{i}.jpg")
    return folder


def test_the_most_likely_option_is_the_answer(tmp_path: Path) -> None:
    task = VStar(folder_of(tmp_path))
    assert task.protocol == "likelihood"
    items = task.items()
    answers = ["[-1.0, -2, -3, -4]", "[-2.0, -1, -3, -4]", "[-0.5, -0.6]", "[-0.5, -0.4]"]
    scores = task.score(items, answers).metrics
    assert scores == {"accuracy": 50.0, "attribute": 50.0, "spatial": 50.0}


@pytest.mark.parametrize("answer", ["red", "[]", "[-1]", '["x", 1, 2, 3]', "[NaN, -1, -2, -3]", "null"])
def test_an_answer_without_a_likelihood_per_option_is_unparsed(tmp_path: Path, answer: str) -> None:
    task = VStar(folder_of(tmp_path))
    scores = task.score(task.items(1), [answer])
    assert (scores.unparsed, scores.metrics["accuracy"]) == (1, 0.0)


def test_options_are_shuffled_per_item_and_reproducibly(tmp_path: Path) -> None:
    task = VStar(folder_of(tmp_path, each=40)).with_variant("letter")
    items = task.items()
    assert task.protocol == "text"
    assert items == task.items()
    assert all(item.meta["options"][item.truth] in ("red", "left") for item in items)
    assert len(Counter(item.truth for item in items if item.meta["part"] == "attribute")) == 4


def test_an_option_is_named_by_its_letter_or_its_text(tmp_path: Path) -> None:
    task = VStar(folder_of(tmp_path), ask="letter")
    item = task.items(1)[0]
    letter = "ABCD"[item.truth]
    for text in (letter, f"({letter})", f"{letter}. red", "It is red.", f"The answer is {letter}"):
        assert task.parse(item, text) == item.truth, text
    assert task.parse(item, "A") == 0
    assert f"{letter}. red" in task.prompt(item)


def test_answers_are_scored_against_the_official_folder(tmp_path: Path) -> None:
    task = VStar(folder_of(tmp_path), ask="letter")
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps({"id": i.id, "text": "ABCD"[i.truth]}) for i in task.items()))
    assert score_file(load_task("vstar", variant="letter"), path, tmp_path).metrics["accuracy"] == 100.0


def test_records_with_their_own_options_need_no_data(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    records = [
        {"category": "direct_attributes", "options": ["a", "b"], "label": "B", "text": "B"},
        {"category": "relative_position", "options": ["a", "b"], "label": "A", "text": "(B)"},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    assert score_file(load_task("vstar"), path).metrics == {"accuracy": 50.0, "attribute": 100.0, "spatial": 0.0}


def test_missing_data_are_named_with_their_source(tmp_path: Path) -> None:
    with pytest.raises(TaskDataMissing, match=r"direct_attributes.*huggingface"):
        VStar(tmp_path).items()


@pytest.mark.parametrize(("count", "refused"), [(1, True), (2, False), (len(LETTERS), False), (len(LETTERS) + 1, True)])
def test_there_is_a_letter_for_every_option(tmp_path: Path, count: int, refused: bool) -> None:
    file = folder_of(tmp_path) / "direct_attributes/sa_0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"options": [f"color {i}" for i in range(count)]}))
    if refused:
        with pytest.raises(ValueError, match=f"options, not {count}"):
            VStar(tmp_path).items()
    else:
        assert VStar(tmp_path).items()
