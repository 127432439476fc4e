"""What is asked: digests of images, disturbed images, batches."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from airvlm.evaluation.plan import TOGETHER, Asked, ModelFacts, batches, chunks, image_digest, noisy
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
    moved = np.asarray(noisy(grey, 16 / 255)).astype(int) - 128
    assert set(np.unique(moved)) == {-16, 16} and abs(moved.mean()) < 3
    assert np.array_equal(np.asarray(noisy(grey, 16 / 255)), np.asarray(noisy(grey, 16 / 255)))
    assert noisy(None, 0.1) is None and len(noisy([grey, grey], 0.1)) == 2


def test_noise_and_token_cap_change_every_key():
    task = load_task("fake-captions")
    model = ModelFacts("fake", "f")
    keys = [
        {key for batch in batches(asked, "vanilla", None, model, 16) for key in batch.keys}
        for asked in (
            Asked.of("fake-captions", task),
            Asked.of("fake-captions", task, noise=16 / 255),
            Asked.of("fake-captions", task, max_new_tokens=3),
        )
    ]
    assert all(len(k) == 40 for k in keys) and len(set.union(*keys)) == 120


@pytest.mark.parametrize("size", [1, 7, 16, 100])
def test_batches_hold_every_item_once_and_like_lengths_together(size):
    asked = Asked.of("fake-questions", load_task("fake-questions"))
    made = batches(asked, "vanilla", None, ModelFacts("fake", "f"), size)
    ids = [job.question.item for batch in made for job in batch.jobs]
    assert sorted(ids) == sorted(item.id for item in asked.items)
    assert all(len(batch.jobs) == size for batch in made[:-1])
    lengths = [len(job.question.prompt) // 16 for batch in made for job in batch.jobs]
    assert lengths == sorted(lengths)


def test_a_tasks_settings_are_read_once_for_all_methods_and_without_its_list_of_images(monkeypatch):
    """A list of thousands of images in every record was nearly all of a store's bytes."""
    asked, read = Asked.of("fake-questions", load_task("fake-questions")), []
    settings = type(asked.task).settings
    monkeypatch.setattr(
        type(asked.task),
        "settings",
        lambda self: read.append(1) or settings(self) | {"images": ["1", "2"]},
    )
    made = chunks(asked, {"one": None, "two": None, "three": None}, ModelFacts("fake", "f"), 7)
    assert len(read) == 1
    assert all(job.settings == settings(asked.task) for chunk in made for batch in chunk for job in batch.jobs)


def test_all_methods_answer_a_chunk_before_the_next_and_images_stay_near():
    asked = Asked.of("fake-questions", load_task("fake-questions"))
    made = chunks(asked, {"one": None, "two": None}, ModelFacts("fake", "f"), 7)
    assert [[batch.label for batch in chunk] for chunk in made] == [["one", "two"]] * 9
    for chunk in made:
        assert len({tuple(job.question.item for job in batch.jobs) for batch in chunk}) == 1
        assert len({batch.chunk for batch in chunk}) == 1
    alone = batches(asked, "one", None, ModelFacts("fake", "f"), 7)
    assert {tuple(chunk[0].keys) for chunk in made} == {tuple(batch.keys) for batch in alone}
    firsts = [min(int(job.question.item.split("-")[1]) // 2 for job in chunk[0].jobs) for chunk in made]
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
    asked = Asked("pope", load_task("tiny-pope"), items)
    made = batches(asked, "vanilla", None, ModelFacts("model", "1"), size)
    of_batch = [{job.question.image for job in batch.jobs} for batch in made]
    # each batch has two images, which the control with another image's crops needs, and no image is in many batches
    assert all(len(own) > 1 for own in of_batch)
    straddling = 1
    most = -(-TOGETHER * 6 // size) + straddling
    assert max(sum(image in own for own in of_batch) for image in of_batch[0]) <= most
