"""COCO's annotations, label files, and the names of images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airvlm.tasks.files.coco import get_image_key, read_labels, read_objects, read_references


def test_an_image_is_named_by_its_coco_id_or_its_file_name() -> None:
    names = {
        "COCO_val2014_000000226988.jpg": "226988",
        "000000000007": "7",
        "a/cat.jpg": "cat",
        "my.black.cat.JPEG": "my.black.cat",
        "v1.2": "v1.2",
        "x_1_2.png": "x_1_2",
    }
    assert {name: get_image_key(name) for name in names} == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "JSON object of image"),
        ({}, "JSON object of image"),
        ({"a": "cat"}, "field 'a'"),
        ({"a": [1]}, "field 'a'"),
        ({"7": ["cat"], "007.jpg": ["dog"]}, "duplicate image 7"),
    ],
)
def test_an_unusable_label_file_is_an_error(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "labels.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_labels(tmp_path / "labels.json")


def test_labels_are_read_alone_and_inside_of_a_file_of_objects(tmp_path: Path) -> None:
    labels = {"007.jpg": [" cat "], "b.png": []}
    for content in (labels, {"objects": labels, "split": {}}):
        (tmp_path / "labels.json").write_text(json.dumps(content))
        assert read_labels(tmp_path / "labels.json") == {"7": ["cat"], "b": []}
        assert read_labels(tmp_path / "labels.json", keep_names=True) == {"007.jpg": ["cat"], "b.png": []}


def test_image_ids_are_read_from_numbers_and_file_names() -> None:
    assert [get_image_key(x) for x in (42, "42", "COCO_val2014_000000000042.jpg")] == ["42"] * 3
    assert get_image_key("images/picture.jpg") == "picture"


def test_objects_of_an_image_are_its_instances_and_what_its_captions_name(coco: Path) -> None:
    assert read_objects(coco, "pattern") == {"1": {"dog"}, "2": {"chair", "person"}, "3": set()}
    assert read_objects(coco / "annotations", "wordnet-rules")["1"] == {"dog", "bus"}


def test_an_annotation_of_an_unknown_category_is_an_error(coco: Path) -> None:
    file = coco / "annotations/instances_val2014.json"
    content = json.loads(file.read_text())
    content["annotations"][1]["category_id"] = 99
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"annotation 2, field category_id: the file has no category 99"):
        read_objects(coco)


def test_only_the_images_that_are_wanted_are_read(coco: Path) -> None:
    assert read_objects(coco, "pattern", {"1"}) == {"1": {"dog"}}


def test_objects_that_are_no_list_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "objects.json").write_text(json.dumps({"a": "cat"}))
    with pytest.raises(ValueError, match="field a: expected a list of object names, not 'cat'"):
        read_objects(tmp_path / "objects.json")


def test_captions_come_from_coco_or_from_either_form_of_a_mapping(tmp_path: Path, coco: Path) -> None:
    captions = {"1": ["a dog", "a hound"], "000000000002.jpg": ["a chair"]}
    for name, content in {"plain": captions, "refs": {"refs": captions}}.items():
        (tmp_path / name).write_text(json.dumps(content))
        assert read_references(tmp_path / name) == {"1": ["a dog", "a hound"], "2": ["a chair"]}
        assert read_references(tmp_path / name, {"2"}) == {"2": ["a chair"]}
    (tmp_path / "refs").write_text(json.dumps({"refs": {"1": "a dog"}}))
    with pytest.raises(ValueError, match=r"field refs\.1: expected a list of captions, not 'a dog'"):
        read_references(tmp_path / "refs")
