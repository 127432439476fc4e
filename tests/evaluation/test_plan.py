"""What is asked: digests of images, noise on images, batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes import FakeCaptions, FakeQuestions
from PIL import Image

from airvlm.evaluation.plan import (
    IMAGES_TOGETHER,
    ModelInfo,
    TaskSpec,
    add_noise,
    choose_items,
    image_digest,
    methods_to_json,
    plan_batches,
    split_method,
)
from airvlm.methods import VAF, Composed, CropBlend, EOSBias, Nullu
from airvlm.tasks import load_task
from airvlm.tasks.base import Item

rng = np.random.default_rng(0)
IMAGE = Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))


def test_an_image_is_known_by_its_content_not_by_its_name(tmp_path):
    for name in ("a.png", "b.png"):
        IMAGE.save(tmp_path / name)
    assert image_digest(tmp_path / "a.png") == image_digest(str(tmp_path / "b.png"))
    Image.new("RGB", (20, 30)).save(tmp_path / "a.png")
    assert image_digest(tmp_path / "a.png") != image_digest(tmp_path / "b.png")


def test_every_kind_of_image_has_a_digest_and_none_raises(tmp_path):
    kinds = [
        IMAGE,
        np.asarray(IMAGE),
        b"bytes",
        tmp_path / "missing.png",
        "http://x/y.png",
        [IMAGE, IMAGE],
    ]
    digests = [image_digest(kind) for kind in kinds]
    assert len(set(digests)) == len(kinds) and all(digests)
    assert image_digest(None) == ""


def test_noise_moves_every_value_by_delta_and_always_the_same_way():
    grey = Image.new("RGB", (16, 16), (128, 128, 128))
    moved = np.asarray(add_noise(grey, 16 / 255)).astype(int) - 128
    assert set(np.unique(moved)) == {-16, 16} and abs(moved.mean()) < 3
    assert np.array_equal(np.asarray(add_noise(grey, 16 / 255)), np.asarray(add_noise(grey, 16 / 255)))
    assert add_noise(None, 0.1) is None and len(add_noise([grey, grey], 0.1)) == 2


def test_noise_and_token_cap_change_every_key():
    model = ModelInfo("fake", "f")
    keys = [
        {key for [batch] in plan_batches(spec, {"vanilla": None}, model, 16) for key in batch.keys}
        for spec in (
            TaskSpec.of("fake-captions"),
            TaskSpec.of("fake-captions", noise=16 / 255),
            TaskSpec.of("fake-captions", max_new_tokens=3),
        )
    ]
    assert all(len(k) == 40 for k in keys) and len(set.union(*keys)) == 120


@pytest.mark.parametrize("size", [1, 7, 16, 100])
def test_batches_hold_every_item_once_and_like_lengths_together(size):
    spec = TaskSpec.of("fake-questions")
    made = [batch for [batch] in plan_batches(spec, {"vanilla": None}, ModelInfo("fake", "f"), size)]
    ids = [item.key.item for batch in made for item in batch.items]
    assert sorted(ids) == sorted(item.id for item in spec.items)
    assert sorted(len(batch.items) for batch in made)[1:] == [size] * (len(made) - 1)
    for batch in made:
        lengths = [len(item.key.prompt) // 16 for item in batch.items]
        assert lengths == sorted(lengths)


def test_a_tasks_settings_are_read_once_for_all_methods_and_without_its_list_of_images(monkeypatch):
    """A list of thousands of images in every record was nearly all of a store's bytes."""
    spec, read = TaskSpec.of("fake-questions"), []
    settings = type(spec.task).settings
    monkeypatch.setattr(
        type(spec.task),
        "settings",
        lambda self: read.append(1) or settings(self) | {"images": ["1", "2"]},
    )
    made = plan_batches(spec, {"one": None, "two": None, "three": None}, ModelInfo("fake", "f"), 7)
    assert len(read) == 1
    assert all(item.settings == settings(spec.task) for chunk in made for batch in chunk for item in batch.items)


def test_all_methods_answer_a_chunk_before_the_next_and_images_stay_near():
    spec = TaskSpec.of("fake-questions")
    made = plan_batches(spec, {"one": None, "two": None}, ModelInfo("fake", "f"), 7)
    assert [[batch.label for batch in chunk] for chunk in made] == [["one", "two"]] * 9
    for chunk in made:
        assert len({tuple(item.key.item for item in batch.items) for batch in chunk}) == 1
        assert len({batch.chunk for batch in chunk}) == 1
    assert len({chunk[0].chunk for chunk in made}) == 9
    alone = plan_batches(spec, {"one": None}, ModelInfo("fake", "f"), 7)
    assert [chunk[0].keys for chunk in made] == [batch.keys for [batch] in alone]
    firsts = [min(int(item.key.item.split("-")[1]) // 2 for item in chunk[0].items) for chunk in made]
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("size", [4, 8, 64])
def test_what_is_asked_about_an_image_in_several_settings_runs_together_beside_other_images(size):
    images = 16
    items = [  # as POPE lists them: every image in one setting, then in the next
        Item(f"{setting}-{k}-{n}", f"{k}.png", f"Is there a {thing}?")
        for setting in ("random", "popular", "adversarial")
        for k in range(images)
        for n, thing in enumerate(("cat", "dog"))
    ]
    spec = TaskSpec("pope", load_task("tiny-pope"), items)
    made = plan_batches(spec, {"vanilla": None}, ModelInfo("model", "1"), size)
    of_batch = [{item.key.image for item in batch.items} for [batch] in made]
    # each batch has two images, which the control with another image's crops needs, and no image is in many batches
    assert all(len(own) > 1 for own in of_batch)
    straddling = 1
    most = -(-IMAGES_TOGETHER * 6 // size) + straddling
    assert max(sum(image in own for own in of_batch) for image in of_batch[0]) <= most


def test_a_task_is_given_by_name_as_an_object_or_as_a_spec():
    spec = TaskSpec.of("fake-captions", split="validation", limit=3)
    assert TaskSpec.of(spec) is spec and spec.key == "fake-captions, validation" and len(spec.items) == 3
    own = TaskSpec.of(load_task("fake-captions"), name="mine")
    assert own.key == own.name == "mine" and len(own.items) == 40
    with pytest.raises(TypeError, match="is not a task"):
        TaskSpec.of(7)
    with pytest.raises(ValueError, match="no items in its test split"):
        TaskSpec.of(type(own.task)(n=0))


# -- a part of the images


def test_a_limit_counts_images_and_takes_all_their_questions():
    items, images = choose_items(FakeQuestions(), 5, "test")
    assert images == 30 and len(items) == 10 and len({item.group for item in items}) == 5
    own = [item.id for item in FakeQuestions().items() if item.group == items[0].group]
    assert [item.id for item in items[: len(own)]] == own  # the questions on an image, in the task's order


def test_images_are_drawn_in_a_fixed_order_that_is_not_the_tasks():
    parts = [{item.group for item in choose_items(FakeCaptions(), n, "test")[0]} for n in (5, 20, 40, None)]
    assert parts[0] < parts[1] < parts[2] == parts[3]
    assert parts[0] != {f"test-{i}" for i in range(5)}


def test_a_larger_limit_continues_a_smaller_one_with_the_same_batches() -> None:
    few, many = (choose_items(FakeCaptions(), n, "test")[0] for n in (16, 40))
    assert [item.id for item in many[:16]] == [item.id for item in few]
    assert [item.id for item in few] != sorted(item.id for item in few)  # drawn, not the first ones


def test_a_spec_says_how_many_images_were_left_out():
    assert TaskSpec.of("fake-questions", limit=5).sample_text == (
        "10 items on 5 images (25 of 30 images left out by limit=5)"
    )
    assert TaskSpec.of("fake-questions").sample_text == "60 items on 30 images"


def test_a_control_that_acts_last_is_split_off():
    first, second, control = CropBlend(weight=0.5), VAF(), EOSBias(-1.5)
    assert split_method(first) == (first, "", 0.0)
    assert split_method(control) == (None, "eos-bias", -1.5)
    assert split_method(Composed(first, control)) == (first, "eos-bias", -1.5)
    assert split_method(Composed(first, second, control)) == (Composed(first, second), "eos-bias", -1.5)


def test_an_artifact_is_known_by_its_content(tmp_path: Path) -> None:
    first, same, other = (tmp_path / name / "nullu.safetensors" for name in ("a", "b", "c"))
    for path, content in ((first, b"1"), (same, b"1"), (other, b"2")):
        path.parent.mkdir()
        path.write_bytes(content)
    methods = {
        path.parent.name: Composed(Nullu(artifact=str(path)), EOSBias(bias=-1.0)) for path in (first, same, other)
    }
    found = methods_to_json({**methods, "vanilla": None})
    assert found["vanilla"] is None
    assert found["a"] == found["b"] != found["c"]
    assert str(tmp_path) not in str(found)
    first.write_bytes(b"3 and longer")  # another artifact in its place
    assert methods_to_json(methods)["a"] not in found.values()
    first.unlink()
    assert str(first) in str(methods_to_json(methods)["a"])  # the method says that it is missing


def test_an_approximation_is_asked_of_the_tasks_that_have_one(tmp_path):
    own = {"max_new_tokens": 8, "limit": 2}
    IMAGE.save(tmp_path / "a.png")
    assert TaskSpec.of("tiny-pope", approximate=True, **own).options == {}
