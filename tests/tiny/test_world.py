"""A seed gives the same scene everywhere, and what is said of it is true."""

import random
from itertools import combinations

import numpy as np
import pytest

from airvlm.tasks.words.objects import CATEGORIES
from airvlm.tiny import drawing, grammar
from airvlm.tiny.world import CONTEXTS, OBJECTS, PALETTES, SPRITES, Scene, compose
from experiments.train.tiny.questions import absent_object, other_question

SEEDS = range(300)


def test_a_seed_is_a_scene() -> None:
    assert [compose(seed) for seed in SEEDS] == [compose(seed) for seed in SEEDS]
    assert compose(7) != compose(8)


def test_a_scene_survives_json() -> None:
    scene = compose(3)
    assert Scene.from_json(scene.to_json()) == scene


def test_objects_are_coco_s_and_every_context_knows_its_own() -> None:
    assert 40 <= len(OBJECTS) <= 66
    assert set(OBJECTS) <= set(CATEGORIES)
    assert all(set(frequent) <= set(OBJECTS) for frequent in CONTEXTS.values())
    assert set(CONTEXTS) == set(PALETTES)
    assert len(CONTEXTS) >= 15


def test_scenes_hold_two_to_eight_objects_of_the_stated_sizes() -> None:
    scenes = [compose(seed) for seed in SEEDS]
    numbers = {len(scene.objects) for scene in scenes}
    assert numbers == set(range(2, 9))
    assert all(0.10 <= o.size <= 0.45 for scene in scenes for o in scene.objects)
    assert any(o.flipped for o in scenes[0].objects + scenes[1].objects)


def test_some_objects_are_partly_hidden_and_none_mostly() -> None:
    def overlap(scene: Scene) -> float:
        worst = 0.0
        for below, above in combinations(scene.objects, 2):  # in the order of painting
            a, b = below.box, above.box
            w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            if w > 0 and h > 0:
                worst = max(worst, w * h / below.size**2)
        return worst

    worst = [overlap(compose(seed)) for seed in SEEDS]
    assert max(worst) <= 0.46
    assert sum(w > 0.15 for w in worst) > 30


def test_a_context_skews_what_is_in_it_and_lets_strangers_in() -> None:
    kitchens = [compose(seed, "kitchen") for seed in SEEDS]
    names = [name for scene in kitchens for name in scene.names]
    first, last = (names.count(CONTEXTS["kitchen"][k]) for k in (0, -1))
    strangers = sum(name not in CONTEXTS["kitchen"] for name in names) / len(names)
    assert first > 2 * last
    assert 0.03 < strangers < 0.25


def test_an_unknown_context_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="kitchen"):
        compose(1, "moon")


def test_a_description_names_every_object_and_nothing_else() -> None:
    from airvlm.tasks import load_task
    from airvlm.tasks.base import Item

    task = load_task("tiny-chair")
    for seed in SEEDS:
        scene = compose(seed)
        text = grammar.description(scene, random.Random(seed))
        scores = task.score([Item("x", None, "", sorted(scene.names))], [text])
        assert scores.metrics["CHAIR_S"] == 0, text
        assert scores.metrics["recall"] == 100, text


def test_answers_to_closed_questions_are_true() -> None:
    for seed in SEEDS:
        scene, draw = compose(seed), random.Random(seed)
        absent = absent_object(scene, draw)
        assert absent not in scene.names
        for _ in range(5):
            asked = other_question(scene, draw)
            if asked.kind == "color" and asked.answer in ("Yes", "No"):
                assert (scene.color in asked.question) == (asked.answer == "Yes")
            if asked.kind == "count" and asked.question.startswith("How many"):
                n = sum(o.name == asked.subject for o in scene.objects)
                assert asked.answer.lower() == grammar.NUMBERS[n]


def test_plurals_are_english() -> None:
    forms = {"cup": "cups", "bus": "buses", "sheep": "sheep", "person": "people", "skis": "pairs of skis"}
    assert {name: grammar.plural(name) for name in forms} == forms
    assert grammar.count_phrase("apple", 1) == "an apple"
    assert grammar.count_phrase("mouse", 3) == "three mice"


def test_a_seed_is_an_image_byte_for_byte() -> None:
    scene = compose(11)
    assert drawing.draw(scene).tobytes() == drawing.draw(scene).tobytes()
    assert drawing.draw(scene).size == (448, 448)


def test_every_object_shows_at_least_half_of_itself() -> None:
    for seed in range(20):
        scene = compose(seed)
        cover = drawing.draw_with_cover(scene)[1]
        assert set(np.unique(cover)) - {0} == set(range(1, len(scene.objects) + 1))


def test_each_object_has_a_character_of_its_own() -> None:
    characters = [c for line in SPRITES.values() for c in line]
    assert len(characters) == len(set(characters))
    assert all(drawing.sprite(c).getbbox() for c in characters)
