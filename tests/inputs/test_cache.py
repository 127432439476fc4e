"""The cache of what was computed of images: one per model, bounded in bytes, never out of date."""

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from airvlm.inputs import images
from airvlm.inputs.cache import ImageCache, cache_of, nbytes, serial, weights_state
from airvlm.inputs.images import content_key
from airvlm.methods import AIR, AIRMemory, Composed, CropBlend, Method
from airvlm.methods.evidence import base as evidence
from airvlm.testing import small_models
from airvlm.vlm import VLM
from tests.checkpoints import save_llava

QUESTION = "is there a fork in the image ?"
METHODS = {"crop-blend": CropBlend(), "air": AIR(keep=2, layers=(0, 3)), "air-memory": AIRMemory(keep=2)}


@pytest.fixture
def vlm(tmp_path: Path) -> VLM:
    return VLM.load(save_llava(tmp_path / "llava"))


def test_the_key_of_an_image_follows_its_content() -> None:
    one = small_models.sample_image(1)
    assert content_key(one) == content_key(one.copy()) != content_key(small_models.sample_image(2))
    assert content_key(Image.new("RGB", (4, 8))) != content_key(Image.new("RGB", (8, 4)))
    pixels = torch.rand(3, 4, 4)
    assert content_key(pixels) == content_key(pixels.clone()) != content_key(pixels + 1)
    assert content_key(pixels.bfloat16()) != content_key(pixels)


def test_the_oldest_values_are_dropped_until_all_fit() -> None:
    cache = ImageCache(limit=3 * 40)

    def kept() -> str:
        return "".join(name for name in "abcde" if (("pixels", name) in cache._values))

    for name in "abc":
        cache.put("pixels", name, torch.zeros(10))
    assert cache.get("pixels", "a") is not None  # used again: now the latest
    cache.put("pixels", "d", {"one": torch.zeros(5), "two": [torch.zeros(5)]})
    assert kept() == "acd" and cache.bytes == 120
    cache.put("pixels", "e", torch.zeros(1000))  # too large, but what was just computed is there to be used
    assert kept() == "e"
    cache.put("pixels", "a", torch.zeros(10))
    assert kept() == "a" and cache.bytes == 40
    assert cache.get("crops", "a") is None  # another kind is another value


def test_threads_never_lose_count_of_the_bytes() -> None:
    cache = ImageCache(limit=4000)

    def work(seed: int) -> None:
        for i in range(300):
            cache.put("crops", (seed * i) % 37, torch.zeros(1 + i % 50))
            cache.get("crops", i % 37)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.bytes == sum(nbytes(value) for value, _ in cache._values.values()) <= 4000


def test_a_cache_ends_with_its_model() -> None:
    model = torch.nn.Linear(1, 1)
    assert cache_of(model) is cache_of(model)
    cache_of(model).put("pixels", "a", kept := torch.zeros(1))
    del model
    gc.collect()
    assert len(gc.get_referrers(kept)) <= 1  # this frame


def test_no_two_objects_share_a_serial_number() -> None:
    one = torch.nn.Linear(1, 1)
    first = serial(one)
    assert serial(one) == first
    del one
    gc.collect()
    assert serial(torch.nn.Linear(1, 1)) != first


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_second_question_about_an_image_computes_nothing_of_it_again(
    vlm: VLM, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = vlm.ask(small_models.sample_image(1), "what ?", method=method, max_new_tokens=6)
    vlm.builder.cache.clear()
    vlm.ask(small_models.sample_image(1), QUESTION, method=method, max_new_tokens=6)
    before = dict(vlm.builder.cache.computed)
    monkeypatch.setattr(evidence, "gather_evidence", None)
    monkeypatch.setattr(evidence.CropQueue, "finish", None)
    monkeypatch.setattr(vlm.model.base_model, "get_image_features", None)
    again = vlm.ask(small_models.sample_image(1), "what ?", method=method, max_new_tokens=6)
    assert vlm.builder.cache.computed == before
    assert again.text == fresh.text
    assert again.report is not None and fresh.report is not None
    assert (again.report.crops, again.report.tokens) == (fresh.report.crops, fresh.report.tokens)


def test_evidence_is_shared_by_every_weight_but_not_by_other_options(vlm: VLM) -> None:
    computed = vlm.builder.cache.computed
    for method in (CropBlend(), CropBlend(weight=0.5), CropBlend(weight=0.1)):
        vlm.ask(small_models.sample_image(1), QUESTION, method=method, max_new_tokens=1)
    assert (computed["crops"], computed["evidence"]) == (1, 1)
    vlm.ask(small_models.sample_image(1), QUESTION, method=CropBlend(eps=0.2), max_new_tokens=1)
    assert (computed["crops"], computed["evidence"]) == (1, 2)
    vlm.ask(small_models.sample_image(1), QUESTION, method=CropBlend(num_crops=5), max_new_tokens=1)
    assert (computed["crops"], computed["evidence"]) == (2, 3)


def test_tokens_that_another_method_changed_have_evidence_of_their_own(vlm: VLM) -> None:
    image, second = small_models.sample_image(1), CropBlend(weight=0.5)
    alone = vlm.ask(image, QUESTION, method=second, max_new_tokens=8)  # keeps evidence of the plain tokens
    both = Composed(CropBlend(weight=0.9), second)
    warm = vlm.ask(image, QUESTION, method=both, max_new_tokens=8)
    vlm.builder.cache.clear()
    cold = vlm.ask(image, QUESTION, method=both, max_new_tokens=8)
    assert warm.text == cold.text
    assert warm.report is not None and cold.report is not None and alone.report is not None
    crops = [part.crops for part in warm.report.parts]
    assert crops == [part.crops for part in cold.report.parts]
    assert crops[1] != alone.report.crops


def test_no_value_is_used_after_the_weights_have_changed(vlm: VLM) -> None:
    image = small_models.sample_image(1)
    state = weights_state(vlm.model)
    vlm.ask(image, QUESTION, method=CropBlend(), max_new_tokens=1)
    with torch.no_grad():
        next(vlm.model.base_model.multi_modal_projector.parameters()).mul_(2)
    assert weights_state(vlm.model) != state
    changed = vlm.likelihood(image, QUESTION, ["yes", "no"], method=CropBlend())
    vlm.builder.cache.clear()
    assert vlm.likelihood(image, QUESTION, ["yes", "no"], method=CropBlend()) == changed


@pytest.mark.parametrize("method", [None, CropBlend()], ids=["vanilla", "crop-blend"])
def test_an_image_is_loaded_and_hashed_once_per_call(
    vlm: VLM, method: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loads: list[Any] = []
    hashes: list[Any] = []
    load_image, key = images.load_image, images.content_key
    monkeypatch.setattr(images, "load_image", lambda *a, **k: loads.append(a) or load_image(*a, **k))
    monkeypatch.setattr(images, "content_key", lambda image: hashes.append(image) or key(image))
    path = tmp_path / "scene.png"
    small_models.sample_image(1).save(path)
    vlm.ask(path, QUESTION, method=method, max_new_tokens=2)
    assert (len(loads), len(hashes)) == (1, 1)
    list(vlm.batch([(path, "what ?"), (path, QUESTION)], method=method, max_new_tokens=2, progress=False))
    assert (len(loads), len(hashes)) == (2, 2)


def test_a_value_of_other_tokens_under_the_same_key_is_computed_again() -> None:
    cache, computed = ImageCache(), []

    def double(missing: list[int]) -> list[Tensor]:
        computed.append(missing)
        return [2 * tokens[i] for i in missing]

    tokens = [torch.ones(3, 2), torch.ones(3, 2), torch.zeros(3, 2)]
    found = cache.get_with_tokens("evidence", ["a", "a", "b"], tokens, double)
    assert [one.sum().item() for one in found] == [12, 12, 0] and computed == [[0, 2]]
    cache.get_with_tokens("evidence", ["b", "a"], [tokens[2], tokens[0]], double)
    assert computed == [[0, 2]]  # all of it is kept
    tokens = [3 * torch.ones(3, 2)]
    [other] = cache.get_with_tokens("evidence", ["a"], tokens, double)
    assert other.sum().item() == 36 and computed == [[0, 2], [0]]


def test_missing_values_are_computed_together_and_equal_keys_once() -> None:
    cache, computed = ImageCache(), []

    def double(missing: list[int]) -> list[Tensor]:
        computed.append(missing)
        return [torch.tensor(2 * key) for key in missing]

    assert [int(v) for v in cache.get_or_compute("pixels", [3, 1, 3], double)] == [6, 2, 6]
    assert [int(v) for v in cache.get_or_compute("pixels", [1, 4], double)] == [2, 8]
    assert computed == [[3, 1], [4]]


def test_a_larger_limit_counts_inside_its_block_only() -> None:
    cache = ImageCache(limit=40)
    with cache.larger_limit(120):
        for name in "abcd":
            cache.put("pixels", name, torch.zeros(10))
        assert len(cache) == 3
    assert len(cache) == 1 and cache.get("pixels", "d") is not None
