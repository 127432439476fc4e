"""CHAIR and POPE on a folder of one's own images with one's own labels (`--objects FILE`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from airvlm.tasks import TaskDataMissing, load_task
from airvlm.tasks.files.labels import image_key, read_labels
from airvlm.tasks.pope_builder import annotated_objects

LABELS = {
    "cat.jpg": ["cat", "couch", "book"],
    "000000000007": ["dog", "person", "car"],
    "sub/bus": ["bus", "person", "traffic light"],
    "not there.jpg": ["zebra"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for name in ("cat.jpg", "000000000007.png", "sub/bus.jpg"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    (tmp_path / "labels.json").write_text(json.dumps(LABELS))
    return tmp_path


def test_an_image_is_called_by_its_coco_id_or_its_name() -> None:
    names = {
        "COCO_val2014_000000226988.jpg": "226988",
        "000000000007": "7",
        "a/cat.jpg": "cat",
        "x_1_2.png": "x_1_2",
    }
    assert {name: image_key(name) for name in names} == names


def test_chair_describes_the_labelled_images_that_are_there(folder: Path) -> None:
    task = load_task("chair", folder, objects=folder / "labels.json")
    truth = {item.id: item.truth for item in task.items()}
    assert truth == {"cat": ["book", "cat", "couch"], "7": ["car", "dog", "person"],
                     "bus": ["bus", "person", "traffic light"]}  # fmt: skip
    assert all(Path(item.image).is_file() for item in task.items())
    assert sorted(task.settings()["images"]) == ["7", "bus", "cat"]
    scores = task.score(task.items(), ["A cat, a dog."] * 3)
    assert scores.metrics["CHAIR_S"] == 100.0 and scores.totals["mentions"] == 6


def test_labels_that_are_written_anew_are_read_anew(folder: Path) -> None:
    labels = folder / "labels.json"
    task = load_task("chair", folder, objects=labels)
    assert task.items()[0].truth
    labels.write_text(json.dumps({name: ["zebra"] for name in LABELS}))
    os.utime(labels, ns=(0, 1))
    assert {tuple(item.truth) for item in task.items()} == {("zebra",)}


@pytest.mark.parametrize("name", ["pope", "pope-annotated"])
def test_pope_asks_about_the_labels(folder: Path, name: str) -> None:
    items = load_task(name, folder, objects=str(folder / "labels.json")).items()
    assert len(items) == 3 * 3 * 6 and {item.truth for item in items} == {"yes", "no"}
    asked = {item.question for item in items if item.group == "cat.jpg" and item.truth == "yes"}
    assert asked == {f"Is there a {name} in the image?" for name in LABELS["cat.jpg"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "JSON object of image"),
        ({}, "JSON object of image"),
        ({"a": "cat"}, "field 'a'"),
        ({"a": [1]}, "field 'a'"),
        ({"7": ["cat"], "007.jpg": ["dog"]}, "twice"),
    ],
)
def test_labels_that_cannot_be_used_are_named(tmp_path: Path, content: Any, said: str) -> None:
    (tmp_path / "labels.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=said):
        read_labels(tmp_path / "labels.json")


def test_names_that_chair_cannot_count_and_folders_without_images_are_errors(folder: Path, tmp_path: Path) -> None:
    (folder / "labels.json").write_text('{"cat.jpg": ["unicorn"]}')
    with pytest.raises(ValueError, match="'unicorn' is no COCO category"):
        load_task("chair", folder, objects=folder / "labels.json").items()
    (folder / "labels.json").write_text('{"elsewhere.jpg": ["cat", "dog", "car"]}')
    for name in ("chair", "pope"):
        with pytest.raises(TaskDataMissing, match="none of the images"):
            load_task(name, folder, objects=folder / "labels.json").items()
    with pytest.raises(ValueError, match="--objects is for chair and pope"):
        load_task("tiny-chair", objects=folder / "labels.json")


def test_splits_that_the_labels_name_are_asked_as_a_whole_in_their_order(folder: Path) -> None:
    file = folder / "split.json"
    splits = {"test": ["sub/bus", "not there.jpg", "cat.jpg"], "calibration": ["000000000007"]}
    file.write_text(json.dumps({"objects": LABELS, "splits": splits}))
    chair, pope = (
        load_task("chair", folder, objects=file, count=1),
        load_task("pope", folder, objects=file, count=1),
    )
    assert [item.id for item in chair.items()] == ["bus", "cat"]
    assert [item.id for item in chair.items(split="calibration")] == ["7"]
    assert {item.group for item in pope.items()} == {"sub/bus.jpg", "cat.jpg"}
    assert list(annotated_objects(folder, split="calibration", labels=file)) == ["000000000007.png"]
    for task in (chair, pope):
        with pytest.raises(ValueError, match="no list of images for the validation split; there are test, calibration"):
            task.items(split="validation")
