"""CHAIR: what counts as a mention, which images are described, and how files are read.

Published figures on the captions that they were made from are checked in tests/cli/test_score_golden.py.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import pytest

from airvlm.tasks import load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.base import Item, Scores, TaskDataMissing
from airvlm.tasks.chair import Chair, draw_images, drop_unfinished_sentence
from airvlm.tasks.files.coco import read_descriptions
from airvlm.tasks.pope import read_annotated_objects
from airvlm.tasks.words.tagger import TaggerMissing, find_tagger
from tests.golden import golden
from tests.tasks.conftest import LABELS

NAMES = ("CHAIR_S", "CHAIR_I", "recall")


@cache
def _truth() -> Path:
    return golden("chair", "gt_objects_coco2014_trainval.json.gz")


@cache
def _score(path: Path, variant: str) -> Scores:
    return score_file(load_task("chair", variant=variant), path, _truth())


@pytest.mark.parametrize(
    ("variant", "expected"), [("pattern", (18.6, 5.8, 65.0)), ("pattern-complete", (13.2, 5.0, 59.6))]
)
def test_dropping_the_unfinished_sentence_gives_the_published_difference(
    tmp_path: Path, variant: str, expected: tuple[float, float, float]
) -> None:
    cut = tmp_path / "cut.jsonl"
    with cut.open("w") as file:
        for one in read_descriptions(golden("chair", "opera_captions", "llava-1.5_greedy.jsonl")):
            cut_text = " ".join(one.value.split()[:48])
            file.write(json.dumps({"image_id": one.key, "caption": cut_text}) + "\n")
    metrics = _score(cut, variant).metrics
    assert tuple(round(metrics[name], 1) for name in NAMES) == expected


def test_repeats_count_every_time_and_objects_once() -> None:
    counts = Chair().score(_one(["dog"]), ["A dog and a dog, two cats."]).per_item[0]
    assert (counts["mentions"], counts["hallucinated"], counts["found"], counts["objects"]) == (3, 1, 1, 1)


def test_a_description_without_objects_is_clean_and_a_missing_one_does_not_count() -> None:
    scores = Chair().score(_one(["dog"]) * 2, ["Nothing here.", None])
    assert (scores.n, scores.metrics["CHAIR_S"], scores.metrics["recall"]) == (1, 0.0, 0.0)


def test_details_name_the_hallucinated_words() -> None:
    assert Chair().score(_one(["dog"]), ["A puppy and a kitten."]).details[0]["hallucinated_words"] == ["kitten"]


def _one(objects: list[str]) -> list[Item]:
    return [Item("1", None, "", objects)]


def test_a_description_without_a_period_is_dropped() -> None:
    assert drop_unfinished_sentence("A dog. A cat on a") == "A dog."
    assert drop_unfinished_sentence("A dog on a") == ""


def test_the_list_of_images_depends_on_the_seed_alone_and_splits_are_disjoint() -> None:
    ids = [str(i) for i in range(4000)]
    test = draw_images(ids, 0, "test")
    assert test == draw_images(list(reversed(ids)), 0, "test") and len(test) == 500
    assert test[:3] == ["3473", "3089", "3222"]  # must never change
    assert not set(test) & set(draw_images(ids, 0, "validation")) & set(draw_images(ids, 0, "calibration"))
    assert draw_images(ids, 1, "test") != test


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
    assert score_file(Chair(), answers, coco).metrics["CHAIR_I"] == 50
    assert score_file(Chair(), answers, names).metrics["recall"] == 100


def test_an_image_that_the_truth_does_not_know_is_an_error(tmp_path: Path) -> None:
    answers, names = tmp_path / "answers.jsonl", tmp_path / "names.json"
    answers.write_text('{"image_id": 5, "caption": "A dog"}\n')
    names.write_text('{"6": ["dog"]}')
    with pytest.raises(ValueError, match="has none of the images"):
        score_file(Chair(), answers, names)
    names.write_text('{"5": ["unicorn"]}')
    with pytest.raises(ValueError, match="'unicorn' is not a COCO category"):
        score_file(Chair(), answers, names)


def test_without_truth_only_the_objects_are_listed(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"caption": "A dog"}\n')
    scores = score_file(Chair(), answers)
    assert list(scores.metrics) == ["length"] and scores.details[0]["objects"] == ["dog"]
    assert "no ground truth" in scores.notes[0]


def test_stored_answers_of_several_methods_are_refused(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    rows = [{"item": "1", "text": "A dog", "fingerprint": "f", "method": m} for m in (None, {"name": "air"})]
    answers.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match="several methods"):
        score_file(Chair(), answers)


def test_a_folder_without_annotations_says_what_to_download(tmp_path: Path) -> None:
    with pytest.raises(TaskDataMissing, match="annotations_trainval2014"):
        Chair(tmp_path).items()


def test_bleu_is_reported_if_only_some_images_have_references() -> None:
    items = [Item("1", None, "", ["dog"], {"references": ["a dog"]}), Item("2", None, "", ["cat"], {"references": []})]
    scores = Chair().score(items, ["A dog.", "A cat."])
    assert scores.metrics["BLEU-1"] == pytest.approx(100) and scores.totals["bleu_images"] == 1


def test_wordnet_without_nltk_is_an_error_that_names_the_command() -> None:
    if find_tagger() is not None:
        pytest.skip("NLTK's data are installed")
    with pytest.raises(TaggerMissing, match=r"python -m nltk\.downloader .*--approximate"):
        load_task("chair", variant="wordnet").score(_one(["dog"]), ["A dog."])
    with pytest.raises(TaggerMissing):
        load_task("tiny-chair", variant="wordnet").items(1)


def test_every_result_names_its_variant_and_whether_it_is_approximate() -> None:
    def score(variant: str, **options: bool) -> Scores:
        return load_task("chair", variant=variant, **options).score(_one(["dog"]), ["A dog."])

    assert [score(name).variant for name in ("pattern", "exact", "pattern-complete")] == [
        "pattern", "exact", "pattern-complete"
    ]  # fmt: skip
    by_rules = score("wordnet-truth", approximate=True)
    assert by_rules.variant == "wordnet-truth (approximate)"
    assert any(note.startswith("approximate:") for note in by_rules.notes)
    settings = load_task("chair", variant="wordnet", approximate=True).settings()
    assert (settings["variant"], settings["tagger"]) == ("wordnet (approximate)", "rules (approximate)")
    assert load_task("chair").settings()["tagger"] is None


def test_an_option_that_no_variant_names_is_spelled_out() -> None:
    assert Chair(words="exact").variant_name == "words=exact, truth_words=pattern, drop_incomplete=False"


def test_images_that_are_not_described_are_counted(tmp_path: Path) -> None:
    answers, names = tmp_path / "answers.jsonl", tmp_path / "names.json"
    answers.write_text('{"image_id": 1, "caption": "A dog"}\n')
    names.write_text(json.dumps({str(n): ["dog"] for n in range(1, 5)}))
    assert score_file(Chair(), answers, names).coverage.missing == 3


# -- images and labels of one's own


def test_labeled_images_of_the_folder_are_described(labeled: Path) -> None:
    task = load_task("chair", labeled, objects=labeled / "labels.json")
    truth = {item.id: item.truth for item in task.items()}
    assert truth == {"cat": ["book", "cat", "couch"], "7": ["car", "dog", "person"],
                     "bus": ["bus", "person", "traffic light"]}  # fmt: skip
    assert all(Path(item.image).is_file() for item in task.items())
    assert sorted(task.settings()["images"]) == ["7", "bus", "cat"]
    scores = task.score(task.items(), ["A cat, a dog."] * 3)
    assert scores.metrics["CHAIR_S"] == 100.0 and scores.totals["mentions"] == 6


def test_changed_labels_are_read_again(labeled: Path) -> None:
    labels = labeled / "labels.json"
    task = load_task("chair", labeled, objects=labels)
    assert task.items()[0].truth
    labels.write_text(json.dumps({name: ["zebra"] for name in LABELS}))
    os.utime(labels, ns=(0, 1))
    assert {tuple(item.truth) for item in task.items()} == {("zebra",)}


def test_unknown_names_and_folders_without_the_images_are_errors(labeled: Path) -> None:
    (labeled / "labels.json").write_text('{"cat.jpg": ["unicorn"]}')
    with pytest.raises(ValueError, match="'unicorn' is not a COCO category"):
        load_task("chair", labeled, objects=labeled / "labels.json").items()
    (labeled / "labels.json").write_text('{"elsewhere.jpg": ["cat", "dog", "car"]}')
    for name in ("chair", "pope"):
        with pytest.raises(TaskDataMissing, match="none of the images"):
            load_task(name, labeled, objects=labeled / "labels.json").items()
    with pytest.raises(ValueError, match="--objects is for chair and pope"):
        load_task("tiny-chair", objects=labeled / "labels.json")


def test_splits_of_the_label_file_are_used_whole_and_in_order(labeled: Path) -> None:
    file = labeled / "split.json"
    splits = {"test": ["sub/bus", "not there.jpg", "cat.jpg"], "calibration": ["000000000007"]}
    file.write_text(json.dumps({"objects": LABELS, "splits": splits}))
    chair, pope = (
        load_task("chair", labeled, objects=file, count=1),
        load_task("pope", labeled, objects=file, count=1),
    )
    assert [item.id for item in chair.items()] == ["bus", "cat"]
    assert [item.id for item in chair.items(split="calibration")] == ["7"]
    assert {item.group for item in pope.items()} == {"sub/bus.jpg", "cat.jpg"}
    assert list(read_annotated_objects(labeled, split="calibration", labels=file)) == ["000000000007.png"]
    for task in (chair, pope):
        with pytest.raises(ValueError, match="no list of images for the validation split; there are test, calibration"):
            task.items(split="validation")
