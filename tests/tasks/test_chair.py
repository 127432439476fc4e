"""CHAIR: what counts as a mention, which images are asked about, and how files are read.

That the published figures come out, on the captions they were made from, is shown through the command line
(tests/cli/test_score_golden.py).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from airvlm.tasks import load_task
from airvlm.tasks.base import Item, Scores, TaskDataMissing
from airvlm.tasks.chair import Chair, complete_sentences, seeded_images
from airvlm.tasks.files.coco import image_id, read_captions, read_objects
from tests.golden import golden

NAMES = ("CHAIR_S", "CHAIR_I", "recall")


@cache
def _truth() -> Path:
    return golden("chair", "gt_objects_coco2014_trainval.json.gz")


@cache
def _rescored(path: Path, variant: str) -> Scores:
    return load_task("chair", variant=variant).rescore(path, _truth())


@pytest.mark.parametrize(
    ("variant", "expected"), [("pattern", (18.6, 5.8, 65.0)), ("pattern-complete", (13.2, 5.0, 59.6))]
)
def test_dropping_the_last_sentence_is_worth_five_points(
    tmp_path: Path, variant: str, expected: tuple[float, float, float]
) -> None:
    cut = tmp_path / "cut.jsonl"
    with cut.open("w") as file:
        for one in read_captions(golden("chair", "opera_captions", "llava-1.5_greedy.jsonl")):
            cut_text = " ".join(one.value.split()[:48])
            file.write(json.dumps({"image_id": one.key, "caption": cut_text}) + "\n")
    metrics = _rescored(cut, variant).metrics
    assert tuple(round(metrics[name], 1) for name in NAMES) == expected


def test_repeats_count_every_time_and_objects_once() -> None:
    counts = Chair().score(_one(["dog"]), ["A dog and a dog, two cats."]).per_item[0]
    assert (counts["mentions"], counts["hallucinated"], counts["found"], counts["objects"]) == (3, 1, 1, 1)


def test_a_description_without_objects_is_clean_and_a_missing_one_does_not_count() -> None:
    scores = Chair().score(_one(["dog"]) * 2, ["Nothing here.", None])
    assert (scores.n, scores.metrics["CHAIR_S"], scores.metrics["recall"]) == (1, 0.0, 0.0)


def test_hallucinated_words_are_told_for_the_browser_of_answers() -> None:
    assert Chair().score(_one(["dog"]), ["A puppy and a kitten."]).details[0]["hallucinated_words"] == ["kitten"]


def _one(objects: list[str]) -> list[Item]:
    return [Item("1", None, "", objects)]


def test_an_unfinished_description_has_no_complete_sentence() -> None:
    assert complete_sentences("A dog. A cat on a") == "A dog."
    assert complete_sentences("A dog on a") == ""


def test_the_list_of_images_is_fixed_by_its_seed_alone_and_splits_are_disjoint() -> None:
    ids = [str(i) for i in range(4000)]
    test = seeded_images(ids, 0, "test")
    assert test == seeded_images(list(reversed(ids)), 0, "test") and len(test) == 500
    assert test[:3] == ["3473", "3089", "3222"]  # for ever
    assert not set(test) & set(seeded_images(ids, 0, "validation")) & set(seeded_images(ids, 0, "calibration"))
    assert seeded_images(ids, 1, "test") != test


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """A COCO folder of three images."""
    notes = tmp_path / "annotations"
    notes.mkdir()
    (tmp_path / "val2014").mkdir()
    images = [{"id": i, "file_name": f"COCO_val2014_{i:012d}.jpg"} for i in (1, 2, 3)]
    for image in images:
        (tmp_path / "val2014" / str(image["file_name"])).write_bytes(b"")
    instances = {
        "images": images,
        "categories": [{"id": 18, "name": "dog"}, {"id": 62, "name": "chair"}],
        "annotations": [{"image_id": 1, "category_id": 18}, {"image_id": 2, "category_id": 62}],
    }
    captions = {
        "annotations": [
            {"image_id": 1, "caption": "A dog on a bus"},
            {"image_id": 2, "caption": "People seated."},
            {"image_id": 3, "caption": "Nothing."},
        ]
    }
    (notes / "instances_val2014.json").write_text(json.dumps(instances))
    (notes / "captions_val2014.json").write_text(json.dumps(captions))
    return tmp_path


def test_objects_of_an_image_are_its_instances_and_what_its_captions_name(coco: Path) -> None:
    assert read_objects(coco, "pattern") == {"1": {"dog"}, "2": {"chair", "person"}, "3": set()}
    assert read_objects(coco / "annotations", "wordnet")["1"] == {"dog", "bus"}


def test_items_come_from_the_users_folder_and_the_list_is_in_the_settings(coco: Path) -> None:
    task = Chair(coco)
    items = task.items()
    assert sorted(item.id for item in items) == ["1", "2", "3"] == sorted(task.settings()["images"])
    assert all(Path(item.image).exists() for item in items)
    by_id = {item.id: item for item in items}
    assert by_id["2"].truth == ["chair", "person"] and by_id["1"].meta["references"] == ["A dog on a bus"]
    assert "BLEU" in task.score(items, ["A dog."] * 3).metrics


def test_descriptions_are_scored_against_a_folder_or_a_file_of_names(coco: Path, tmp_path: Path) -> None:
    answers, names = tmp_path / "answers.jsonl", tmp_path / "names.json"
    answers.write_text('{"image": "COCO_val2014_000000000001.jpg", "text": "A dog and a cat"}\n')
    names.write_text(json.dumps({"1": ["puppy"]}))
    assert Chair().rescore(answers, coco).metrics["CHAIR_I"] == 50
    assert Chair().rescore(answers, names).metrics["recall"] == 100


def test_an_image_that_the_truth_does_not_know_is_an_error(tmp_path: Path) -> None:
    answers, names = tmp_path / "answers.jsonl", tmp_path / "names.json"
    answers.write_text('{"image_id": 5, "caption": "A dog"}\n')
    names.write_text('{"6": ["dog"]}')
    with pytest.raises(ValueError, match="knows none of the images"):
        Chair().rescore(answers, names)
    names.write_text('{"5": ["unicorn"]}')
    with pytest.raises(ValueError, match="'unicorn' is no COCO category"):
        Chair().rescore(answers, names)


def test_without_truth_only_the_objects_are_listed(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"caption": "A dog"}\n')
    scores = Chair().rescore(answers)
    assert list(scores.metrics) == ["length"] and scores.details[0]["objects"] == ["dog"]
    assert "no ground truth" in scores.notes[0]


def test_a_store_with_several_methods_is_not_scored_as_one(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    rows = [{"item": "1", "text": "A dog", "fingerprint": "f", "method": m} for m in (None, {"name": "air"})]
    answers.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match="several methods"):
        Chair().rescore(answers)


def test_a_folder_without_annotations_says_what_to_download(tmp_path: Path) -> None:
    with pytest.raises(TaskDataMissing, match="annotations_trainval2014"):
        Chair(tmp_path).items()


def test_image_ids_are_read_from_numbers_and_file_names() -> None:
    assert [image_id(x) for x in (42, "42", "COCO_val2014_000000000042.jpg")] == ["42"] * 3
    assert image_id("images/picture.jpg") == "picture"
