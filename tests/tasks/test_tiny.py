"""The built-in tasks: true answers score full marks, and every object that the world names is found."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from airvlm import tiny
from airvlm.tasks import load_task
from airvlm.tasks.pope_builder import SETTINGS
from airvlm.tasks.words.objects import CATEGORIES, mentions
from airvlm.tiny import grammar, world

KINDS = ("existence", "count", "position", "colour")


def test_every_caption_of_the_bundled_scenes_names_exactly_their_objects() -> None:
    for split in tiny.SPLITS:
        task = load_task("tiny-chair")
        items = task.items(split=split)
        captions = [scene.caption for scene in tiny.scenes(split)]
        metrics = task.score(items, captions).metrics
        assert (metrics["CHAIR_S"], metrics["CHAIR_I"], metrics["recall"]) == (0, 0, 100)


def test_every_caption_that_the_grammar_writes_names_exactly_its_scene_s_objects() -> None:
    for seed in range(400):
        scene = world.compose(seed)
        text = grammar.description(scene, random.Random(seed))
        assert {mention.category for mention in mentions(text, "exact")} == set(scene.names), text


@pytest.mark.parametrize("name", world.OBJECTS)
def test_every_object_is_found_in_both_numbers(name: str) -> None:
    assert name in CATEGORIES
    for n in (1, 2):
        text = f"There are {grammar.count_phrase(name, n)} on the left."
        assert [mention.category for mention in mentions(text, "exact")] == [name]


def test_no_place_and_no_colour_is_an_object() -> None:
    for word in [*world.CONTEXTS, *world.COLORS, *grammar.PLACES]:
        assert not mentions(f"This is a picture of a {word}.", "exact")


def test_a_wrong_object_is_a_hallucination() -> None:
    task = load_task("tiny-chair")
    item = task.items(1)[0]
    absent = next(name for name in world.OBJECTS if name not in item.truth)
    scores = task.score([item], [f"There is {grammar.article(absent)}."])
    assert scores.metrics["CHAIR_S"] == 100 and scores.details[0]["hallucinated"] == [absent]


@pytest.mark.parametrize("name", ["tiny-pope", *(f"tiny-pope-{s}" for s in SETTINGS), *(f"tiny-{k}" for k in KINDS)])
def test_true_answers_score_full_marks_and_half_of_them_are_yes(name: str) -> None:
    task = load_task(name)
    items = task.items(split="validation")
    metrics = task.score(items, [item.truth.capitalize() for item in items]).metrics
    assert metrics["accuracy"] == 100 and metrics["yes_ratio"] == 50
    always = task.score(items, ["Yes"] * len(items)).metrics
    assert always["accuracy"] == 50 and always["recall"] == 100


@pytest.mark.parametrize("kind", KINDS)
def test_always_yes_gets_no_image_right(kind: str) -> None:
    task = load_task(f"tiny-{kind}")
    items = task.items(60)
    metrics = task.score(items, ["Yes"] * 60).metrics
    assert metrics["accuracy+"] == 0 and metrics["score"] == 50
    assert len({item.group for item in items}) == 30


def test_pope_has_its_three_kinds_on_the_same_images() -> None:
    items = load_task("tiny-pope").items(30)
    assert [item.meta["setting"] for item in items] == [s for s in SETTINGS for _ in range(10)]
    assert len({item.id for item in items}) == 30
    assert all(Path(item.image).exists() for item in items)
    assert "f1-mean" in load_task("tiny-pope").score(items, ["Yes"] * 30).metrics


def test_splits_share_no_image() -> None:
    ids = [{item.id for item in load_task("tiny-chair").items(split=split)} for split in tiny.SPLITS]
    assert not (ids[0] & ids[1] or ids[1] & ids[2] or ids[0] & ids[2])


def test_answers_are_rescored_by_item_in_whichever_split_they_are(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    for name, split in (("tiny-chair", "test"), ("tiny-pope", "validation"), ("tiny-count", "calibration")):
        task = load_task(name)
        items = task.items(10, split=split)
        answers = ["A dog." if name == "tiny-chair" else "Yes"] * len(items)
        file.write_text("\n".join(json.dumps({"item": i.id, "text": a}) for i, a in zip(items, answers, strict=True)))
        assert task.rescore(file).metrics == pytest.approx(task.score(items, answers).metrics, nan_ok=True)
    file.write_text('{"item": "nowhere", "text": "Yes"}')
    with pytest.raises(ValueError, match="no answer has the id of an item"):
        load_task("tiny-pope").rescore(file)
