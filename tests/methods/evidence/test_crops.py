"""Crops: where they are, and the visual tokens that the encoder makes of them."""

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from airvlm.inputs.cache import cache_of
from airvlm.inputs.images import content_key
from airvlm.methods.crop_blend import CropBlend
from airvlm.methods.evidence.crops import (
    Box,
    CropPlan,
    CropQueue,
    CropTokens,
    _shrink_to_input,
    crop_boxes,
    fit_area,
)
from airvlm.models.parts import ModelParts
from airvlm.testing import small_models
from airvlm.vlm import VLM

sizes = st.tuples(st.integers(1, 3000), st.integers(1, 3000))
SHAPES = [(640, 480), (480, 640), (336, 336), (2000, 90), (50, 1500), (7, 5), (1, 1)]


@settings(deadline=None)
@given(sizes, st.integers(0, 60), st.sampled_from(["windows", "random"]), st.integers(0, 99))
def test_any_number_of_boxes_lies_inside_any_image(size, n, layout, seed):
    boxes = crop_boxes(size, n, layout, seed)
    assert len(boxes) == n
    for x0, y0, x1, y1 in boxes:
        assert 0 <= x0 < x1 <= size[0] and 0 <= y0 < y1 <= size[1]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 12, 13, 30])
@pytest.mark.parametrize("size", SHAPES)
def test_windows_cover_every_pixel(size, n):
    seen = np.zeros((size[1], size[0]), dtype=int)
    for x0, y0, x1, y1 in crop_boxes(size, n):
        seen[y0:y1, x0:x1] += 1
    assert seen.min() >= 1


def test_twelve_windows_come_in_two_scales_and_overlap():
    boxes = crop_boxes((640, 480))
    assert len(boxes) == len(set(boxes)) == 12
    areas = sorted({w * h / (640 * 480) for w, h in (box.size for box in boxes)}, reverse=True)
    assert areas[0] >= 2 * areas[-1] and areas[0] < 1
    seen = np.zeros((480, 640), dtype=int)
    for x0, y0, x1, y1 in boxes:
        seen[y0:y1, x0:x1] += 1
    assert seen.min() >= 2  # each of the two scales covers the image
    assert seen.max() > 3


@pytest.mark.parametrize("size", [(640, 480), (480, 640), (1800, 300), (300, 1800)])
def test_windows_are_nearly_square_whatever_the_image(size):
    for w, h in (box.size for box in crop_boxes(size)):
        assert 1 / 3 < w / h < 3


def test_layouts_are_deterministic_and_random_ones_follow_their_seed():
    assert crop_boxes((640, 480)) == crop_boxes((640, 480))
    first, second = (crop_boxes((640, 480), 12, "random", seed) for seed in (1, 2))
    assert first == crop_boxes((640, 480), 12, "random", 1)
    assert first != second


def test_random_crops_keep_their_scale_and_ratio():
    for w, h in (box.size for box in crop_boxes((1000, 1000), 200, "random", 3)):
        assert w * h / 1e6 > 0.07 and 0.7 < w / h < 1.4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0, 5), 3), "cannot be cropped"),
        (((5, 0), 3), "cannot be cropped"),
        (((5, 5), -1), "negative"),
        (((5, 5), 3, "grid"), "unknown crop layout 'grid'"),
    ],
)
def test_a_wrong_layout_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        crop_boxes(*arguments)


# -- crops as visual tokens

PLAN = CropPlan(num_crops=5)


@pytest.fixture
def llava() -> Any:
    model, processor = small_models.build("llava")
    return ModelParts.of(model), processor


def tokens_of(llava: Any, images: list[Any], plan: CropPlan = PLAN) -> list[CropTokens]:
    parts, processor = llava
    keys = [content_key(image) for image in images]
    found = CropQueue(parts, processor, dict(zip(keys, images, strict=True)), plan).finish()
    return [found[key] for key in keys]


def count_encoded(llava: Any) -> int:
    return cache_of(llava[0].model).computed["crops"]


def test_crop_tokens_are_what_the_encoder_makes_of_the_crop(llava: Any) -> None:
    parts, processor = llava
    image = small_models.sample_image(1)
    [found] = tokens_of(llava, [image])
    assert found.boxes == tuple(crop_boxes(image.size, 5))
    for tokens, crop in zip(found.tokens, map(image.crop, found.boxes), strict=True):
        [alone] = parts.encode(parts.pixels(processor, [crop]))
        torch.testing.assert_close(tokens, alone, rtol=1e-4, atol=1e-5)


def test_an_image_is_encoded_once_for_many_questions(llava: Any) -> None:
    first = tokens_of(llava, [small_models.sample_image(1), small_models.sample_image(2), small_models.sample_image(1)])
    assert count_encoded(llava) == 2
    assert first[0] is first[2]
    again = tokens_of(llava, [small_models.sample_image(2)])
    assert count_encoded(llava) == 2 and again[0] is first[1]


def test_another_plan_is_encoded_again(llava: Any) -> None:
    tokens_of(llava, [small_models.sample_image(1)])
    tokens_of(llava, [small_models.sample_image(1)], replace(PLAN, layout="random", seed=3))
    assert count_encoded(llava) == 2


def test_changed_weights_are_encoded_again(llava: Any) -> None:
    [before] = tokens_of(llava, [small_models.sample_image(1)])
    with torch.no_grad():
        next(llava[0].model.base_model.multi_modal_projector.parameters()).mul_(2)
    [after] = tokens_of(llava, [small_models.sample_image(1)])
    assert not torch.equal(before.tokens, after.tokens)


def test_small_batches_change_nothing(llava: Any) -> None:
    images = [small_models.sample_image(i) for i in range(3)]
    whole = tokens_of(llava, images)
    cache_of(llava[0].model).clear()
    parts, processor = llava
    small = replace(parts, max_crop_batch=4)
    for one, other in zip(whole, tokens_of((small, processor), images), strict=True):
        torch.testing.assert_close(one.tokens, other.tokens, rtol=1e-4, atol=1e-5)


def test_crops_of_a_pixel_tensor_are_windows_of_it(llava: Any) -> None:
    parts, processor = llava
    pixels = parts.pixels(processor, [small_models.sample_image(1)])["pixel_values"][0]
    [found] = tokens_of(llava, [pixels], CropPlan(num_crops=1))
    assert found.boxes[0] == (0, 0, 32, 32)  # one window shows all
    [whole] = parts.encode({"pixel_values": pixels[None]})
    torch.testing.assert_close(found.tokens[0], whole, rtol=1e-3, atol=1e-3)


def test_crops_of_different_sizes_are_padded_and_masked() -> None:
    model, processor = small_models.build("qwen2_5_vl")
    [found] = tokens_of(
        (ModelParts.of(model), processor), [small_models.sample_image(1, (160, 60))], CropPlan(20, "random")
    )
    assert found.mask is not None
    assert found.mask.shape == found.tokens.shape[:2]
    assert (found.tokens[~found.mask] == 0).all()
    assert len(set(found.mask.sum(1).tolist())) > 1


def test_shrunk_crops_have_no_detail_that_the_model_does_not_see(llava: Any) -> None:
    stripes = Image.new("RGB", (256, 256))
    for x in range(0, 256, 2):  # finer than 32 pixels can show
        stripes.paste((255, 255, 255), (x, 0, x + 1, 256))
    flat = Image.new("RGB", (256, 256), (127, 127, 127))

    def difference(plan: CropPlan) -> float:
        [one], [other] = tokens_of(llava, [stripes], plan), tokens_of(llava, [flat], plan)
        return float((one.tokens - other.tokens).norm())

    assert difference(replace(PLAN, shrunk=True)) < 0.5 * difference(PLAN)


def test_a_model_of_native_resolution_has_nothing_to_shrink_to() -> None:
    model, processor = small_models.shared_model("qwen2_5_vl")
    with pytest.raises(ValueError, match="nothing to shrink to"):
        tokens_of((ModelParts.of(model), processor), [small_models.sample_image(1)], replace(PLAN, shrunk=True))


def test_joined_crops_hold_all_and_mask_the_shorter_ones() -> None:
    one = CropTokens((Box(0, 0, 1, 1),), (8, 8), torch.ones(1, 3, 2), None)
    two = CropTokens((Box(0, 0, 2, 2),) * 2, (8, 4), torch.ones(2, 2, 2), torch.tensor([[True, True], [True, False]]))
    both = CropTokens.join([one, two])
    assert both.tokens.shape == (3, 3, 2) and len(both.boxes) == 3
    assert both.mask is not None
    assert both.mask.sum(1).tolist() == [3, 2, 1]


def test_shrinking_an_image_of_the_models_own_size_is_refused(llava: Any) -> None:
    with pytest.raises(ValueError, match="shrinking changes nothing"):
        tokens_of(llava, [small_models.sample_image(1, (32, 32))], replace(PLAN, shrunk=True))


def test_a_sliver_at_any_edge_is_one_pixel_of_the_shrunk_image(llava: Any) -> None:
    boxes = [Box(315, 315, 320, 320), Box(0, 0, 2, 2), Box(310, 0, 320, 160), Box(40, 80, 160, 240)]
    shrunk, found = _shrink_to_input(*llava, small_models.sample_image(1, (320, 320)), boxes)
    assert shrunk.size == (32, 32)
    assert found == [Box(31, 31, 32, 32), Box(0, 0, 1, 1), Box(31, 0, 32, 16), Box(4, 8, 16, 24)]


# -- crops at other sizes


def test_native_resolution_encodes_crops_at_most_as_large_as_asked() -> None:
    model, processor = small_models.build("qwen2_5_vl")
    parts, image = ModelParts.of(model), small_models.sample_image(1, (160, 120))
    [whole] = tokens_of((parts, processor), [image])
    [small] = tokens_of((parts, processor), [image], replace(PLAN, side=16))
    assert small.boxes == whole.boxes and small.tokens.shape[1] < whole.tokens.shape[1]
    crop = image.crop(small.boxes[0])
    assert fit_area(crop, 16).width * fit_area(crop, 16).height <= 1.1 * 16 * 16
    [expected] = parts.encode(parts.pixels(processor, [fit_area(crop, 16)]))
    torch.testing.assert_close(small.tokens[0, : len(expected)], expected, rtol=1e-4, atol=1e-5)
    assert fit_area(crop, 400) is crop  # never enlarged


def test_a_convolutional_tower_encodes_crops_in_its_steps() -> None:
    vlm, image = VLM.load("photo"), small_models.sample_image(1, (160, 120))
    plan = CropPlan(num_crops=2, side=128)
    [found] = tokens_of((vlm.parts, vlm.processor), [image], plan)
    assert found.tokens.shape[1] == 16  # 64 at its own 256 pixels
    pixels = vlm.processor.image_processor(
        images=[image.crop(found.boxes[0])],
        size={"height": 128, "width": 128},
        crop_size={"height": 128, "width": 128},
        return_tensors="pt",
    )
    [expected] = vlm.parts.encode(pixels)
    torch.testing.assert_close(found.tokens[0], expected, rtol=1e-4, atol=1e-5)
    assert vlm.processor.image_processor.size["height"] == 256  # the processor is as it was
    whole = vlm.parts.pixels(vlm.processor, [image])["pixel_values"][0]
    [cut] = tokens_of((vlm.parts, vlm.processor), [whole], plan)  # from the model's own pixels
    assert cut.tokens.shape == found.tokens.shape
    with pytest.raises(ValueError, match=r"crop_size = 100: .* multiples of 32"):
        vlm.ask(image, "what ?", method="crop-blend:crop_size=100")


def test_a_tower_of_one_size_refuses_another(llava: Any) -> None:
    parts, processor = llava
    message = "crop_size = 64: the tower of this llava takes images of one size"
    with pytest.raises(ValueError, match=message):
        CropBlend(crop_size=64)(parts.model, processor, images=[small_models.sample_image(1)])
    with pytest.raises(ValueError, match=message):
        tokens_of(llava, [small_models.sample_image(1)], replace(PLAN, side=64))


def test_crops_that_were_prepared_in_another_thread_are_not_cut_again(
    llava: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, processor = llava
    images = [small_models.sample_image(i) for i in (1, 2)]
    expected = tokens_of(llava, images)
    cache_of(parts.model).clear()
    by_key = {content_key(image): image for image in images}
    first = dict(list(by_key.items())[:1])
    thread = threading.Thread(target=CropQueue(parts, processor, first, PLAN).prepare)
    thread.start()
    thread.join()
    cut: list[Any] = []
    crops = CropQueue._crops
    monkeypatch.setattr(CropQueue, "_crops", lambda self, image, boxes: cut.append(image) or crops(self, image, boxes))
    found = CropQueue(parts, processor, by_key, PLAN).finish()
    assert cut == [images[1]]  # the first one was ready
    for key, one in zip(by_key, expected, strict=True):
        torch.testing.assert_close(found[key].tokens, one.tokens, rtol=1e-4, atol=1e-5)
        assert found[key].boxes == one.boxes
