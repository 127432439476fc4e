"""Object HalBench: rates over answers and over objects, with words or with a judge as the extractor."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from airvlm.tasks.answers import score_file
from airvlm.tasks.base import Item
from airvlm.tasks.judges.judge import Judge
from airvlm.tasks.object_halbench import FILE, REQUESTS, ObjectHalBench, find_objects, parse_list
from tests.fake_judge import FakeJudge

ITEMS = [Item(str(i), None, REQUESTS[0], ["dog", "person"]) for i in range(4)]
ANSWERS = ["There is a dog and a dog here.", "A pedestrian with a big cat.", "Nothing much to see.", "A cat."]


def test_objects_count_once_per_answer_and_answers_without_objects_are_left_out() -> None:
    scores = ObjectHalBench().score(ITEMS, ANSWERS)
    assert scores.metrics["Resp"] == 50  # of the two answers that name an object; "A cat." is too short
    assert scores.metrics["Ment"] == pytest.approx(100 / 3)
    assert scores.details[1]["hallucinated"] == ["cat"]


def test_more_words_count_than_in_chair() -> None:
    named = {mention.category for mention in find_objects("My brothers on motor bikes eat cheesecake.")}
    assert named == {"person", "motorcycle", "cake"}


def test_a_missing_answer_is_left_out() -> None:
    scores = ObjectHalBench().score(ITEMS, [*ANSWERS[:3], None])
    assert (scores.n, scores.missing) == (3, 1)


def test_the_judge_lists_the_objects_and_an_unreadable_list_is_missing() -> None:
    with FakeJudge(lambda prompt, n: '["dogs"]' if "and a dog" in prompt else "I cannot say") as fake:
        judge = Judge(fake.url, "m", pause=0.01, attempts=2)
        scores = ObjectHalBench(extractor="judge", judge=judge).score(ITEMS[:2], ANSWERS[:2])
    assert scores.missing == 1 and scores.metrics["Resp"] == 0
    assert scores.details[0]["objects"] == ["dog"] and scores.details[0]["verdict"] == '["dogs"]'


@pytest.mark.parametrize(
    ("verdict", "words"),
    [('["dog"]', ["dog"]), ('Sure: ["a", "b"].', ["a", "b"]), ("[]", []), ("none", None), ("[dog]", None)],
)
def test_a_list_of_the_judge_is_parsed_or_refused(verdict: str, words: list[str] | None) -> None:
    assert parse_list(verdict) == words


def _coco(folder: Path) -> Path:
    (folder / "annotations").mkdir()
    (folder / "val2014").mkdir()
    images = [{"id": i, "file_name": f"{i}.jpg"} for i in range(1, 11)]
    for i in range(1, 11):
        (folder / "val2014" / f"{i}.jpg").write_bytes(b"")
    notes = {"images": images, "categories": [{"id": 1, "name": "dog"}], "annotations": []}
    (folder / "annotations" / "instances_val2014.json").write_text(json.dumps(notes))
    captions = {"annotations": [{"image_id": 3, "caption": "a bus"}]}
    (folder / "annotations" / "captions_val2014.json").write_text(json.dumps(captions))
    return folder


def test_without_the_official_file_our_own_requests_are_asked_in_turn(tmp_path: Path) -> None:
    items = ObjectHalBench(_coco(tmp_path)).items()
    assert [item.question for item in items] == [REQUESTS[i % 8] for i in range(10)]
    assert {item.id: item.truth for item in items}["3"] == ["bus"]


def test_the_official_file_is_used_where_it_is(tmp_path: Path) -> None:
    record = {"image_id": 3, "question": "What is here?", "image": base64.b64encode(b"picture").decode()}
    (_coco(tmp_path) / FILE).write_text(json.dumps(record))
    (item,) = ObjectHalBench(tmp_path).items()
    assert (item.question, item.image, item.truth) == ("What is here?", b"picture", ["bus"])


def test_descriptions_of_others_are_scored(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"image_id": 3, "caption": "A bus and a small car."}')
    assert score_file(ObjectHalBench(), answers, _coco(tmp_path)).metrics["Ment"] == 50
    assert score_file(ObjectHalBench(tmp_path), answers).metrics["Ment"] == 50  # the benchmark's own folder


def test_only_the_empty_one_of_two_descriptions_is_unreadable(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"image_id": 3, "caption": "A bus and a small car."}\n{"image_id": 3, "caption": " "}')
    assert score_file(ObjectHalBench(), answers, _coco(tmp_path)).coverage.unreadable == 1
