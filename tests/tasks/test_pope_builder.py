"""POPE's questions made from any annotated images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airvlm.tasks import load_task
from airvlm.tasks.pope_builder import SETTINGS, Setting, annotated_objects, build_questions, pope_question

WORLD = {
    "1": ["dog", "person", "car"],
    "2": ["dog", "person", "frisbee"],
    "3": ["person", "car", "bus"],
    "4": ["cat", "couch", "tv"],
    "5": ["cat"],
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_built_questions_are_true_and_balanced(setting: Setting) -> None:
    records = build_questions(WORLD, setting)
    assert {record["image"] for record in records} == {"1", "2", "3", "4"}  # "5" has too few objects
    assert [record["question_id"] for record in records] == list(range(1, 25))
    for record in records:
        name = record["text"].removeprefix("Is there a ").removesuffix(" in the image?")
        assert (name in WORLD[record["image"]]) == (record["label"] == "yes")
    for image in "1234":
        mine = [record for record in records if record["image"] == image]
        assert len({record["text"] for record in mine}) == 6
        assert sum(record["label"] == "yes" for record in mine) == 3


def test_popular_asks_for_the_frequent_and_adversarial_for_companions() -> None:
    wrong = {s: [r["text"] for r in build_questions(WORLD, s) if r["label"] == "no"] for s in SETTINGS}
    assert wrong["popular"][-3] == "Is there a person in the image?"
    assert wrong["adversarial"][0] == "Is there a frisbee in the image?"  # with image 1's dog in image 2


def test_built_questions_depend_on_the_seed_alone() -> None:
    assert build_questions(WORLD, "random") == build_questions(WORLD, "random", seed=0)
    assert build_questions(WORLD, "random") != build_questions(WORLD, "random", seed=1)


def test_questions_have_the_right_article() -> None:
    assert pope_question("apple") == "Is there an apple in the image?"
    assert pope_question("dog") == "Is there a dog in the image?"


def test_objects_come_from_a_file_or_from_cocos_instances_by_area(tmp_path: Path) -> None:
    notes = {
        "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
        "categories": [{"id": i, "name": name} for i, name in enumerate(["dog", "cat", "car"])],
        "annotations": [{"image_id": 1, "category_id": i, "area": i + 1} for i in range(3)],
    }
    (tmp_path / "instances_val2014.json").write_text(json.dumps(notes))
    assert annotated_objects(tmp_path) == {"a.jpg": ["car", "cat", "dog"]}  # b.jpg shows too little
    (tmp_path / "objects.json").write_text(json.dumps(WORLD))
    assert set(annotated_objects(tmp_path)) == {"1", "2", "3", "4"}


def test_made_questions_are_a_task_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "objects.json").write_text(json.dumps({f"{k}.jpg": names for k, names in WORLD.items()}))
    for key in WORLD:
        (tmp_path / f"{key}.jpg").write_bytes(b"")
    task = load_task("pope-annotated", tmp_path)
    items = task.items()
    assert len(items) == 72 and len({item.id for item in items}) == 72
    assert task.score(items, [item.truth for item in items]).metrics["accuracy"] == 100
