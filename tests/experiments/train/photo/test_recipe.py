"""The recipe of the photograph model: disjoint splits, true sentences, exactly folded weights."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from airvlm.photo.tower import SameConv
from airvlm.tasks.words.objects import CATEGORIES, find_mentions
from experiments.train.photo import distil, grammar, imagenet, objects
from experiments.train.photo.labels import Labels
from experiments.train.photo.pooled import mean_average_precision
from experiments.train.photo.recipe import RECIPES

NAMES = list(CATEGORIES)


@pytest.fixture(scope="module")
def world() -> grammar.World:
    present = np.random.default_rng(0).random((200, len(NAMES))) < 0.1
    return grammar.World.of(NAMES, present)


def test_no_photograph_is_in_two_splits_and_excluded_ones_are_in_none() -> None:
    numbers = range(1, 20_000)
    splits = objects.split_all(numbers, never_trained={5, 66, 100})
    listed = [n for own in splits.values() for n in own]
    assert len(listed) == len(set(listed))
    assert set(listed) == {n for n in numbers if n % 59 != 7}
    assert splits["pope"] == [5, 100]  # 66 is excluded
    assert [len(splits[name]) for name in ("test", "calibration", "validation")] == [5000, 1000, 1000]


def test_a_photograph_stays_in_its_place_whatever_order_they_are_listed_in() -> None:
    numbers = list(range(1, 9_000))
    mixed = random.Random(0).sample(numbers, len(numbers))
    assert objects.split_all(numbers) == objects.split_all(mixed)


def test_objects_come_from_boxes_and_from_captions() -> None:
    instances = {
        "images": [{"id": 1}, {"id": 2}],
        "categories": [{"id": 18, "name": "dog"}],
        "annotations": [{"image_id": 1, "category_id": 18}],
    }
    captions = {"annotations": [{"image_id": 1, "caption": "A puppy beside two bikes."}]}
    assert objects.from_coco([instances], [captions]) == {1: {"dog", "bicycle"}, 2: set()}


def test_labels_put_the_most_frequent_object_of_training_first(tmp_path: Path) -> None:
    table = {
        "objects": {"a": ["cat"], "b": ["dog", "cat"], "c": ["dog"], "d": ["dog"]},
        "splits": {"test": ["a"], "train": ["b", "c", "d"]},
    }
    (tmp_path / "objects.json").write_text(json.dumps(table))
    labels = Labels.read(tmp_path / "objects.json")
    assert labels.names == ["dog", "cat"]
    assert labels.stems == ["a", "b", "c", "d"]
    assert labels.present.tolist() == [[False, True], [True, True], [True, False], [True, False]]
    assert labels.train_range((0.0, 1.0)) == (1, 4)


@pytest.mark.parametrize("seed", range(40))
def test_a_description_names_every_object_once_and_no_other(seed: int) -> None:
    draw = random.Random(seed)
    names = draw.sample(NAMES, draw.randint(0, 12))
    said = [mention.category for mention in find_mentions(grammar.description(names, draw), "exact")]
    assert said == names


@pytest.mark.parametrize("seed", range(40))
def test_questions_are_answered_truly(world: grammar.World, seed: int) -> None:
    draw = random.Random(seed)
    names = draw.sample(NAMES, 4)
    assert world.absent(names, draw) not in names
    asked = grammar.other_question(names, world, draw)
    said = {mention.category for mention in find_mentions(asked.answer, "exact")}
    assert said
    assert said <= set(names)


def test_every_object_can_be_asked_for_as_pope_does(world: grammar.World) -> None:
    asked = {grammar.existence(name, True, random.Random(k)).question for name in NAMES for k in range(8)}
    assert {f"Is there {grammar.article(name)} in the image?" for name in NAMES} <= asked


def test_a_folded_convolution_computes_what_convolution_and_normalization_did() -> None:
    torch.manual_seed(0)
    conv, norm, folded = (
        nn.Conv2d(3, 5, 1, bias=False),
        nn.BatchNorm2d(5, eps=imagenet.EPS),
        SameConv(3, 5, 1),
    )
    for tensor in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
        nn.init.uniform_(tensor, 0.5, 2.0)  # type: ignore[arg-type]
    state = {f"c.{k}": v for k, v in conv.state_dict().items()} | {f"n.{k}": v for k, v in norm.state_dict().items()}
    with torch.no_grad():
        imagenet._copy_folded(folded, state, "c", "n")
        x = torch.randn(2, 3, 4, 4)
        assert torch.allclose(folded(x), norm.eval()(conv(x)), atol=1e-5)


def test_average_precision_is_one_where_the_order_is_right() -> None:
    present = np.array([[True, False], [False, True], [False, False]])
    assert mean_average_precision(np.array([[3.0, 0.0], [1.0, 2.0], [0.0, 1.0]]), present) == 1.0
    assert mean_average_precision(np.array([[1.0, 0.0], [3.0, 2.0], [2.0, 1.0]]), present) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_a_distilled_tower_gives_its_teachers_tokens_and_learns_them() -> None:
    recipe = replace(RECIPES["second"], image_side=64)
    torch.manual_seed(0)
    images, wanted = torch.randn(4, 3, 64, 64), torch.randn(4, recipe.visual_tokens, recipe.vision_width)
    student = distil.Student(recipe, wanted)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        loss = nn.functional.mse_loss(student(images), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
