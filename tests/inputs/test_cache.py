"""What is kept of images: one identity, one store a model, bounded in bytes, never stale."""

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from airvlm.inputs import load
from airvlm.inputs.cache import ImageCache, cache_of, nbytes, serial, weights_state
from airvlm.inputs.images import content_key
from airvlm.methods import AIR, AIRMemory, Composed, CropBlend
from airvlm.methods.air import evidence
from airvlm.vlm import VLM
from tests import tiny_models
from tests.checkpoints import save_llava

QUESTION = "is there a fork in the image ?"
METHODS = {"transported": CropBlend(), "paper": AIR(keep=2, layers=(0, 3)), "lineage": AIRMemory(keep=2)}


@pytest.fixture
def vlm(tmp_path: Path) -> VLM:
    return VLM.load(save_llava(tmp_path / "llava"))


def test_identity_follows_content() -> None:
    one = tiny_models.sample_image(1)
    assert content_key(one) == content_key(one.copy()) != content_key(tiny_models.sample_image(2))
    assert content_key(Image.new("RGB", (4, 8))) != content_key(Image.new("RGB", (8, 4)))
    pixels = torch.rand(3, 4, 4)
    assert content_key(pixels) == content_key(pixels.clone()) != content_key(pixels + 1)
    assert content_key(pixels.bfloat16()) != content_key(pixels)


def test_what_is_kept_stays_within_its_bytes_and_the_latest_stays() -> None:
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


def test_a_model_takes_its_cache_along() -> None:
    model = torch.nn.Linear(1, 1)
    assert cache_of(model) is cache_of(model)
    cache_of(model).put("pixels", "a", kept := torch.zeros(1))
    del model
    gc.collect()
    assert len(gc.get_referrers(kept)) <= 1  # this frame


def test_no_two_processors_share_a_number() -> None:
    one = torch.nn.Linear(1, 1)
    first = serial(one)
    assert serial(one) == first
    del one
    gc.collect()
    assert serial(torch.nn.Linear(1, 1)) != first


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_second_question_encodes_and_transports_nothing(
    vlm: VLM, method: AIR, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = vlm.ask(tiny_models.sample_image(1), "what ?", method=method, max_new_tokens=6)
    vlm.builder.forget()
    vlm.ask(tiny_models.sample_image(1), QUESTION, method=method, max_new_tokens=6)
    before = dict(vlm.builder.cache.computed)
    monkeypatch.setattr(evidence, "gather", None)
    monkeypatch.setattr(evidence, "encode_crops", None)
    monkeypatch.setattr(vlm.model.base_model, "get_image_features", None)
    again = vlm.ask(tiny_models.sample_image(1), "what ?", method=method, max_new_tokens=6)
    assert vlm.builder.cache.computed == before
    assert again.text == fresh.text
    assert again.report is not None and fresh.report is not None
    assert (again.report.crops, again.report.tokens) == (fresh.report.crops, fresh.report.tokens)


def test_evidence_serves_every_weight_and_no_other_recipe(vlm: VLM) -> None:
    computed = vlm.builder.cache.computed
    for method in (CropBlend(), CropBlend(weight=0.5), CropBlend(weight=0.1)):
        vlm.ask(tiny_models.sample_image(1), QUESTION, method=method, max_new_tokens=1)
    assert (computed["crops"], computed["evidence"]) == (1, 1)
    vlm.ask(tiny_models.sample_image(1), QUESTION, method=CropBlend(eps=0.2), max_new_tokens=1)
    assert (computed["crops"], computed["evidence"]) == (1, 2)
    vlm.ask(tiny_models.sample_image(1), QUESTION, method=CropBlend(num_crops=4), max_new_tokens=1)
    assert (computed["crops"], computed["evidence"]) == (2, 3)


def test_tokens_that_another_method_changed_are_not_taken_for_the_images(vlm: VLM) -> None:
    image, second = tiny_models.sample_image(1), CropBlend(weight=0.5)
    alone = vlm.ask(image, QUESTION, method=second, max_new_tokens=8)  # keeps evidence of the plain tokens
    both = Composed(CropBlend(weight=0.9), second)
    warm = vlm.ask(image, QUESTION, method=both, max_new_tokens=8)
    vlm.builder.forget()
    cold = vlm.ask(image, QUESTION, method=both, max_new_tokens=8)
    assert warm.text == cold.text
    assert warm.report is not None and cold.report is not None and alone.report is not None
    crops = [part.crops for part in warm.report.parts]
    assert crops == [part.crops for part in cold.report.parts]
    assert crops[1] != alone.report.crops


def test_nothing_kept_outlives_the_weights_it_came_from(vlm: VLM) -> None:
    image = tiny_models.sample_image(1)
    state = weights_state(vlm.model)
    vlm.ask(image, QUESTION, method=CropBlend(), max_new_tokens=1)
    with torch.no_grad():
        next(vlm.model.base_model.multi_modal_projector.parameters()).mul_(2)
    assert weights_state(vlm.model) != state
    changed = vlm.likelihood(image, QUESTION, ["yes", "no"], method=CropBlend())
    vlm.builder.forget()
    assert vlm.likelihood(image, QUESTION, ["yes", "no"], method=CropBlend()) == changed


@pytest.mark.parametrize("method", [None, CropBlend()], ids=["vanilla", "air"])
def test_an_image_is_loaded_and_hashed_once_a_call(
    vlm: VLM, method: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loads: list[Any] = []
    hashes: list[Any] = []
    load_image, key = load.load_image, load.content_key
    monkeypatch.setattr(load, "load_image", lambda *a, **k: loads.append(a) or load_image(*a, **k))
    monkeypatch.setattr(load, "content_key", lambda image: hashes.append(image) or key(image))
    path = tmp_path / "scene.png"
    tiny_models.sample_image(1).save(path)
    vlm.ask(path, QUESTION, method=method, max_new_tokens=2)
    assert (len(loads), len(hashes)) == (1, 1)
    list(vlm.batch([(path, "what ?"), (path, QUESTION)], method=method, max_new_tokens=2, progress=False))
    assert (len(loads), len(hashes)) == (2, 2)


def test_a_value_of_other_tokens_under_the_same_key_is_computed_anew() -> None:
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
