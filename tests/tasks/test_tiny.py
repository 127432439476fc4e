"""The built-in tasks: right answers score 100, and every object of the scenes is found in descriptions."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from airvlm import tiny
from airvlm.tasks import load_task
from airvlm.tasks.answers import score_file
from airvlm.tasks.pope import SETTINGS
from airvlm.tasks.words.objects import CATEGORIES, find_mentions
from airvlm.tiny import grammar, world

KINDS = ("existence", "count", "position", "color")


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
        assert {mention.category for mention in find_mentions(text, "exact")} == set(scene.names), text


@pytest.mark.parametrize("name", world.OBJECTS)
def test_every_object_is_found_in_singular_and_plural(name: str) -> None:
    assert name in CATEGORIES
    for n in (1, 2):
        text = f"There are {grammar.count_phrase(name, n)} on the left."
        assert [mention.category for mention in find_mentions(text, "exact")] == [name]


def test_no_place_and_no_color_is_an_object() -> None:
    for word in [*world.CONTEXTS, *world.COLORS, *grammar.PLACES]:
        assert not find_mentions(f"This is a picture of a {word}.", "exact")


def test_a_wrong_object_is_a_hallucination() -> None:
    task = load_task("tiny-chair")
    item = task.items(1)[0]
    absent = next(name for name in world.OBJECTS if name not in item.truth)
    scores = task.score([item], [f"There is {grammar.article(absent)}."])
    assert scores.metrics["CHAIR_S"] == 100 and scores.details[0]["hallucinated"] == [absent]


@pytest.mark.parametrize("name", ["tiny-pope", *(f"tiny-pope-{s}" for s in SETTINGS), *(f"tiny-{k}" for k in KINDS)])
def test_right_answers_score_100_and_half_of_them_are_yes(name: str) -> None:
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


def test_pope_has_three_settings_on_the_same_images() -> None:
    items = load_task("tiny-pope").items(30)
    assert [item.meta["setting"] for item in items] == [s for s in SETTINGS for _ in range(10)]
    assert len({item.id for item in items}) == 30
    assert all(Path(item.image).exists() for item in items)
    assert "f1-mean" in load_task("tiny-pope").score(items, ["Yes"] * 30).metrics


def test_splits_share_no_image() -> None:
    ids = [{item.id for item in load_task("tiny-chair").items(split=split)} for split in tiny.SPLITS]
    assert not (ids[0] & ids[1] or ids[1] & ids[2] or ids[0] & ids[2])


def test_files_of_answers_are_scored_in_the_split_that_has_their_items(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    for name, split in (("tiny-chair", "test"), ("tiny-pope", "validation"), ("tiny-count", "calibration")):
        task = load_task(name)
        items = task.items(10, split=split)
        answers = ["A dog." if name == "tiny-chair" else "Yes"] * len(items)
        file.write_text("\n".join(json.dumps({"item": i.id, "text": a}) for i, a in zip(items, answers, strict=True)))
        assert score_file(task, file).metrics == pytest.approx(task.score(items, answers).metrics, nan_ok=True)
    file.write_text('{"item": "nowhere", "text": "Yes"}')
    with pytest.raises(ValueError, match="no answer has the id of an item"):
        score_file(load_task("tiny-pope"), file)


def test_the_questions_about_color_are_those_of_the_published_figures() -> None:
    questions = [item.question for item in load_task("tiny-color").items(6)]
    colors = ["white", "green", "pink", "yellow", "grey", "pink"]
    assert questions == [f"Is the background {color}?" for color in colors]
