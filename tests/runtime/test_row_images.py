"""Which image is where: by runs of image tokens, by equal shares, or together."""

from typing import Any

import pytest
import torch
from PIL import Image

from airvlm.methods import VAF, CropBlend
from airvlm.runtime.row_images import WrongImages, _assign_rows, split_positions
from airvlm.testing import small_models
from tests.all_families import FAMILIES


def images(*sizes: tuple[int, int]) -> list[Any]:
    return [Image.new("RGB", size) for size in sizes]


def test_each_run_of_image_tokens_is_an_image() -> None:
    parts = split_positions(torch.tensor([1, 2, 3, 6, 7]), images((8, 8), (4, 4)))
    assert parts is not None
    assert [part.tolist() for part in parts] == [[1, 2, 3], [6, 7]]


def test_images_side_by_side_of_one_size_share_their_tokens_equally() -> None:
    parts = split_positions(torch.arange(6), images((8, 8), (8, 8)))
    assert parts is not None
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5]]


def test_tiles_of_images_of_different_shapes_stay_together() -> None:
    assert split_positions(torch.tensor([0, 1, 4, 5, 8, 9]), images((8, 8), (8, 4))) is None


@pytest.mark.parametrize(
    ("given", "counts", "expected"),
    [
        ([1, 0, 2], [5, 0, 9], [1, 0, 2]),  # one entry per row
        ([1, 2], [5, 0, 9], [1, 0, 2]),  # one per row with image tokens
        ([1, 1], [9], [2]),  # all of the only row
    ],
)
def test_entries_are_assigned_to_rows(given: list[int], counts: list[int], expected: list[int]) -> None:
    items = [images(*[(8, 8)] * n) for n in given]
    assert [len(row) for row in _assign_rows(items, counts)] == expected


# -- are they what the model was given?

GREEDY = {"max_new_tokens": 2, "do_sample": False}
BLEND = CropBlend(weight=0.5, num_crops=3)


def build_question(family: str, *seeds: int, features: bool = False) -> tuple[Any, Any, Any]:
    """A model, its processor, and the inputs of one question about each image."""
    model, processor = small_models.shared_model(family)
    rows = [("USER: <image> is there a fork ? ASSISTANT:", [small_models.sample_image(seed)]) for seed in seeds]
    batch = dict(small_models.build_inputs(processor, rows))
    if features:
        given = {k: v for k, v in batch.items() if k in ("pixel_values", "image_grid_thw")}
        with torch.no_grad():
            encoded = model.base_model.get_image_features(**given, return_dict=True)
        batch = {k: v for k, v in batch.items() if k != "pixel_values"} | {"mm_encoder_outputs": {"image": encoded}}
    return model, processor, batch


@pytest.mark.parametrize("family", FAMILIES)
def test_images_other_than_those_of_the_inputs_raise_before_any_token(family: str) -> None:
    model, processor, batch = build_question(family, 1, 2)
    for wrong in ([3, 4], [2, 1], [1, 3]):
        with pytest.raises(WrongImages, match="not the images that the model was given"):
            with BLEND(model, processor, images=[small_models.sample_image(seed) for seed in wrong]):
                model.generate(**batch, **GREEDY)
    with BLEND(model, processor, images=[small_models.sample_image(1), small_models.sample_image(2)]) as run:
        model.generate(**batch, **GREEDY)
    assert run.report.fired


def test_a_plain_pass_is_compared_too() -> None:
    model, processor, batch = build_question("llava", 1)
    with pytest.raises(WrongImages), torch.no_grad():
        with BLEND(model, processor, images=[small_models.sample_image(2)]):
            model(**batch)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_features_are_compared_with_those_of_the_images(family: str) -> None:
    model, processor, batch = build_question(family, 1, 2, features=True)
    with pytest.raises(WrongImages):
        with BLEND(model, processor, images=[small_models.sample_image(2), small_models.sample_image(1)]):
            model.generate(**batch, **GREEDY)
    with BLEND(model, processor, images=[small_models.sample_image(1), small_models.sample_image(2)]) as run:
        model.generate(**batch, **GREEDY)
    assert run.report.fired


def test_a_second_call_with_other_images_needs_them_to_be_set() -> None:
    model, processor, first = build_question("llava", 1)
    _, _, second = build_question("llava", 2)
    with BLEND(model, processor, images=[small_models.sample_image(2)]) as run:
        expected = model.generate(**second, **GREEDY)
    with BLEND(model, processor, images=[small_models.sample_image(1)]) as run:
        model.generate(**first, **GREEDY)
        with pytest.raises(WrongImages, match=r"set run\.images"):
            model.generate(**second, **GREEDY)
        run.images = [small_models.sample_image(2)]
        assert torch.equal(model.generate(**second, **GREEDY), expected)


def test_half_precision_is_not_taken_for_another_image() -> None:
    model, processor = small_models.shared_model("llava", dtype=torch.bfloat16)
    batch = small_models.build_inputs(processor, [("USER: <image> what ? ASSISTANT:", [small_models.sample_image(1)])])
    batch = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in batch.items()}
    with BLEND(model, processor, images=[small_models.sample_image(1)]) as run:
        model.generate(**batch, **GREEDY)
    assert run.report.fired


def test_a_method_that_reads_no_image_compares_nothing() -> None:
    model, processor, batch = build_question("llava", 1)
    with VAF()(model, processor, images=[small_models.sample_image(2)]) as run:
        model.generate(**batch, **GREEDY)
    assert run.report.fired


def test_the_comparison_can_be_turned_off() -> None:
    model, processor, batch = build_question("llava", 1)
    with BLEND(model, processor, images=[small_models.sample_image(2)], check_images=False) as run:
        model.generate(**batch, **GREEDY)
    assert run.report.fired
