"""Crops as visual tokens: each image once, known ones from the cache."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from airvlm.inputs.cache import cache_of
from airvlm.inputs.images import content_key
from airvlm.methods.evidence.crops import Box, Cropping, CropTokens, crop_boxes, crops, encode_crops
from airvlm.models.parts import ModelParts
from tests import tiny_models

CROPPING = Cropping(num_crops=5)


@pytest.fixture
def llava() -> Any:
    model, processor = tiny_models.build("llava")
    return ModelParts.of(model), processor


def tokens_of(llava: Any, images: list[Any], cropping: Cropping = CROPPING) -> list[CropTokens]:
    parts, processor = llava
    return encode_crops(parts, processor, images, [content_key(p) for p in images], cropping)


def encoded(llava: Any) -> int:
    return cache_of(llava[0].model).computed["crops"]


def test_a_view_is_what_the_encoder_makes_of_the_crop(llava: Any) -> None:
    parts, processor = llava
    image = tiny_models.sample_image(1)
    [found] = tokens_of(llava, [image])
    assert found.boxes == tuple(crop_boxes(image.size, 5))
    for tokens, crop in zip(found.tokens, crops(image, found.boxes), strict=True):
        [alone] = parts.encode(parts.pixels(processor, [crop]))
        torch.testing.assert_close(tokens, alone, rtol=1e-4, atol=1e-5)


def test_an_image_is_encoded_once_however_often_it_is_asked_about(llava: Any) -> None:
    first = tokens_of(llava, [tiny_models.sample_image(1), tiny_models.sample_image(2), tiny_models.sample_image(1)])
    assert encoded(llava) == 2
    assert first[0] is first[2]
    again = tokens_of(llava, [tiny_models.sample_image(2)])
    assert encoded(llava) == 2 and again[0] is first[1]


def test_other_crops_are_other_views(llava: Any) -> None:
    tokens_of(llava, [tiny_models.sample_image(1)])
    tokens_of(llava, [tiny_models.sample_image(1)], replace(CROPPING, layout="random", seed=3))
    assert encoded(llava) == 2


def test_changed_weights_are_encoded_anew(llava: Any) -> None:
    [before] = tokens_of(llava, [tiny_models.sample_image(1)])
    with torch.no_grad():
        next(llava[0].model.base_model.multi_modal_projector.parameters()).mul_(2)
    [after] = tokens_of(llava, [tiny_models.sample_image(1)])
    assert not torch.equal(before.tokens, after.tokens)


def test_chunks_change_nothing(llava: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [tiny_models.sample_image(i) for i in range(3)]
    whole = tokens_of(llava, images)
    cache_of(llava[0].model).clear()
    monkeypatch.setattr("airvlm.methods.evidence.crops.CHUNK", 4)
    for one, other in zip(whole, tokens_of(llava, images), strict=True):
        torch.testing.assert_close(one.tokens, other.tokens, rtol=1e-4, atol=1e-5)


def test_crops_of_a_pixel_tensor_are_windows_of_it(llava: Any) -> None:
    parts, processor = llava
    pixels = parts.pixels(processor, [tiny_models.sample_image(1)])["pixel_values"][0]
    [found] = tokens_of(llava, [pixels], Cropping(num_crops=1))
    assert found.boxes[0] == (0, 0, 32, 32)  # one window shows all
    [whole] = parts.encode({"pixel_values": pixels[None]})
    torch.testing.assert_close(found.tokens[0], whole, rtol=1e-3, atol=1e-3)


def test_crops_of_unlike_sizes_are_padded_and_masked() -> None:
    model, processor = tiny_models.build("qwen2_5_vl")
    [found] = tokens_of(
        (ModelParts.of(model), processor), [tiny_models.sample_image(1, (160, 60))], Cropping(20, "random")
    )
    assert found.mask is not None
    assert found.mask.shape == found.tokens.shape[:2]
    assert (found.tokens[~found.mask] == 0).all()
    assert len(set(found.mask.sum(1).tolist())) > 1


def test_shrunk_crops_hold_no_detail_that_the_model_did_not_get(llava: Any) -> None:
    stripes = Image.new("RGB", (256, 256))
    for x in range(0, 256, 2):  # finer than 32 pixels can show
        stripes.paste((255, 255, 255), (x, 0, x + 1, 256))
    flat = Image.new("RGB", (256, 256), (127, 127, 127))

    def apart(cropping: Cropping) -> float:
        [one], [other] = tokens_of(llava, [stripes], cropping), tokens_of(llava, [flat], cropping)
        return float((one.tokens - other.tokens).norm())

    assert apart(replace(CROPPING, shrunk=True)) < 0.5 * apart(CROPPING)


def test_native_resolution_has_no_shrunk_image() -> None:
    model, processor = tiny_models.shared("qwen2_5_vl")
    with pytest.raises(ValueError, match="no shrunk one"):
        tokens_of((ModelParts.of(model), processor), [tiny_models.sample_image(1)], replace(CROPPING, shrunk=True))


def test_joined_crops_hold_all_and_mask_the_shorter_ones() -> None:
    one = CropTokens((Box(0, 0, 1, 1),), (8, 8), torch.ones(1, 3, 2), None)
    two = CropTokens((Box(0, 0, 2, 2),) * 2, (8, 4), torch.ones(2, 2, 2), torch.tensor([[True, True], [True, False]]))
    both = CropTokens.joined([one, two])
    assert both.tokens.shape == (3, 3, 2) and len(both.boxes) == 3
    assert both.mask is not None
    assert both.mask.sum(1).tolist() == [3, 2, 1]
