"""What suits a model and a machine, where nobody says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from airvlm.evaluation import resources
from airvlm.evaluation.resources import (
    CACHE_SHARE,
    MAX_ROWS,
    Resources,
    choose_batch_size,
    choose_resources,
    keep_images,
)
from airvlm.inputs.cache import ImageCache


class Model(torch.nn.Module):
    def __init__(self, megabytes: int, d: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.empty(megabytes * 2**18, device="meta"))
        self.device = "cpu"
        text = SimpleNamespace(hidden_size=d, num_hidden_layers=layers, num_attention_heads=4)
        self.config = SimpleNamespace(text_config=text, image_seq_length=576)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(resources, "count_cores", lambda: 4)
    monkeypatch.setattr(resources, "free_memory", lambda device: 16 * 2.0**30)


def test_a_small_model_gets_a_thread_a_worker_and_a_worker_a_core():
    assert choose_resources(SimpleNamespace(model=Model(20)), 10_000) == Resources(4, 1, MAX_ROWS)


def test_a_few_answers_are_not_worth_another_process():
    assert choose_resources(SimpleNamespace(model=Model(20)), 100).workers == 1
    assert choose_resources(SimpleNamespace(model=Model(20)), 400).workers == 2


def test_a_large_model_stays_in_one_process_with_all_threads():
    found = choose_resources(SimpleNamespace(model=Model(14_000, 4096, 32)), 10_000)
    assert (found.workers, found.threads) == (1, None)


def test_what_was_asked_for_is_what_is_taken():
    assert choose_resources(SimpleNamespace(model=Model(20)), 10_000, workers=1, batch_size=3) == Resources(1, 1, 3)


def test_rows_at_once_follow_the_models_size_and_the_memory(monkeypatch):
    large = SimpleNamespace(model=Model(14_000, 4096, 32))
    found = []
    for gigabytes in (2, 8, 32, 128, 512):
        monkeypatch.setattr(resources, "free_memory", lambda device, g=gigabytes: g * 2.0**30)
        found.append(choose_batch_size(large))
    assert found == sorted(found) and found[0] < found[-1] <= MAX_ROWS and found[0] >= 1
    assert choose_batch_size(SimpleNamespace(model=Model(20))) == MAX_ROWS


@pytest.mark.parametrize(("visual", "tokens"), [(576, 576), (None, 1024)])
def test_a_batch_is_the_largest_power_of_two_whose_keys_values_and_activations_fit(monkeypatch, visual, tokens):
    model = Model(14_000, 4096, 32)
    model.config.image_seq_length = visual
    model.config.text_config.num_key_value_heads = 2  # of 4: half of the keys and values
    row = (tokens + resources.PROMPT) * (2 * 32 * 4096 // 2 * 4 + 16 * 4096 * 4)
    for fraction, rows in ((4.01, 4), (3.99, 2), (8.01, 8)):
        monkeypatch.setattr(resources, "free_memory", lambda device, f=fraction: f * row / resources.BATCH_SHARE)
        assert choose_batch_size(SimpleNamespace(model=model)) == rows


def test_a_model_is_small_up_to_a_size():
    assert choose_resources(SimpleNamespace(model=Model(400)), 10_000).threads == 1
    assert choose_resources(SimpleNamespace(model=Model(401)), 10_000).threads is None


def test_an_evaluation_keeps_more_of_its_images_and_gives_the_memory_back():
    vlm = SimpleNamespace(model=Model(20), builder=SimpleNamespace(cache=ImageCache(limit=100)))
    cache = vlm.builder.cache
    with keep_images(vlm, workers=2):
        for k in range(9):
            cache.put("crops", k, torch.zeros(10))
        assert len(cache) == 9
    assert cache.bytes <= 100 and cache.get("crops", 8) is not None


@pytest.mark.parametrize(("workers", "kept"), [(1, 400), (2, 200), (10, 80)])
def test_workers_share_the_memory_for_images(workers, kept, monkeypatch):
    monkeypatch.setattr(resources, "free_memory", lambda device: 400 / CACHE_SHARE)
    cache = ImageCache(limit=100)
    with keep_images(SimpleNamespace(model=Model(20), builder=SimpleNamespace(cache=cache)), workers=workers):
        for k in range(20):
            cache.put("crops", k, torch.zeros(10))
        assert cache.bytes == kept


def test_two_evaluations_of_one_model_leave_its_memory_as_it_was(monkeypatch):
    """Whichever ends first."""
    monkeypatch.setattr(resources, "free_memory", lambda device: 400 / CACHE_SHARE)
    vlm = SimpleNamespace(model=Model(20), builder=SimpleNamespace(cache=ImageCache(limit=100)))
    first, second = keep_images(vlm), keep_images(vlm)
    cache, held = vlm.builder.cache, []
    first.__enter__(), second.__enter__()
    for leave in (None, first, second):
        if leave is not None:
            leave.__exit__(None, None, None)
        for k in range(20):
            cache.put("crops", k, torch.zeros(10))
        held.append(cache.bytes)
    assert held == [400, 400, 80]


def test_a_device_keeps_what_it_kept():
    vlm = SimpleNamespace(model=Model(20), builder=SimpleNamespace(cache=ImageCache(limit=100)))
    vlm.model.device = "cuda:0"
    with keep_images(vlm):
        for k in range(9):
            vlm.builder.cache.put("crops", k, torch.zeros(10))
        assert vlm.builder.cache.bytes <= 100


def test_without_a_model_at_hand_there_is_still_a_size():
    assert choose_resources(None, 0).batch_size == MAX_ROWS


def test_the_cores_and_the_memory_of_this_machine_are_found():
    assert resources.free_memory("cpu") > 0 and resources.count_cores() >= 1


def test_a_model_without_known_weights_stays_in_one_process():
    for model in (None, object()):
        found = choose_resources(SimpleNamespace(model=model), 10_000, batch_size=1)
        assert (found.workers, found.threads) == (1, None)
