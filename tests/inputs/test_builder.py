"""InputBuilder: the inputs are those of the processor, and an image is read and processed once."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from airvlm.inputs import builder as module
from airvlm.inputs.builder import InputBuilder, Request, _CachedPixels, group_by_length, read_windows
from airvlm.inputs.images import BadImage, LoadedImage
from airvlm.methods.crop_blend import CropBlend
from airvlm.models.families import MAX_CROP_BATCH
from airvlm.models.parts import ModelParts
from airvlm.testing import small_models
from airvlm.vlm import VLM, Answer
from tests.all_families import FAMILIES
from tests.checkpoints import save_llava

OWN_PIXELS = {  # each image's pixels are its own: a row of them, or patches with their grid
    "llava",
    "vipllava",
    "paligemma",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "glm4v",
    "glm46v",
    "glm4v_moe",
    "qwen",
    "chatglm",
}


def request(text: str, *seeds: int, size: tuple[int, int] = (48, 40)) -> Request:
    images = tuple(LoadedImage(small_models.sample_image(seed, size), f"{seed} {size}") for seed in seeds)
    return Request(images, f"{'<image> ' * len(seeds)}{text}")


def batches() -> list[list[Request]]:
    """Images come again in the same batch, in another one, beside others, and in other shapes."""
    return [
        [request("what ?", 1), request("how many ?", 2)],
        [request("is there a dog ?", 1), request("is there a cat ?", 1), request("what ?", 3)],
        [request("left and right ?", 3, 1), request("what ?", 2, size=(40, 64)), request("what ?", 1)],
        [request("what ?", 2, size=(40, 64))],
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_inputs_are_those_of_the_processor_bit_for_bit(family: str) -> None:
    model, processor = small_models.shared_model(family)
    builder = InputBuilder(model, processor, ModelParts.of(model))
    builder.cache.clear()
    before = builder.cache.computed["pixels"]
    for rows in batches():
        given = builder.build(rows, pixels=True)
        expected = processor(
            text=[row.prompt for row in rows], images=[[one.rgb for one in row.images] for row in rows]
        )
        assert set(given) == set(expected)
        assert all(torch.equal(given[name], expected[name]) for name in expected)
    assert builder._pixels_cached is (family in OWN_PIXELS)
    if family in OWN_PIXELS:
        assert builder.cache.computed["pixels"] - before == 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llava(tmp_path_factory.mktemp("llava"))


class Counting:
    """An image processor that counts the images it is given."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.images = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, images: Any, **options: Any) -> Any:
        output = self.inner(images, **options)
        self.images += len(output["pixel_values"])
        return output


def test_many_questions_about_one_image_process_it_once(folder: Path) -> None:
    vlm = VLM.load(folder)
    counting = vlm.processor.image_processor = Counting(vlm.processor.image_processor)
    requests = [(small_models.sample_image(seed), "what ?") for seed in (1, 1, 2, 1, 2)]
    first = [answer.text for answer in vlm.batch(requests, batch_size=2, max_new_tokens=4, progress=False)]
    assert counting.images == 2
    assert vlm.processor.image_processor is counting  # the processor itself stays as it was
    vlm.builder.cache.clear()
    assert [vlm.ask(*one, max_new_tokens=4).text for one in requests] == first
    assert counting.images == 4


def test_other_settings_of_the_image_processor_are_other_pixels(folder: Path) -> None:
    builder = VLM.load(folder).builder
    image = small_models.sample_image(1)
    cached = _CachedPixels(builder.processor.image_processor, builder, {id(image): "1"})
    plain = cached(images=[image], return_tensors="pt")["pixel_values"]
    raw = cached(images=[image], return_tensors="pt", do_normalize=False)["pixel_values"]
    assert not torch.equal(plain, raw)
    assert torch.equal(plain, cached([[image]], return_tensors="pt")["pixel_values"])
    assert builder.cache.computed["pixels"] == 2


def test_an_image_that_requests_share_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Image.Image] = []
    read_image = module.read_image
    monkeypatch.setattr(module, "read_image", lambda source, **given: read.append(source) or read_image(source))
    one, two = small_models.sample_image(1), small_models.sample_image(2)
    builder = VLM.load(folder).builder
    rows = builder.read_each([(one, "what ?"), ([two, one], "what ?"), (None, "what ?"), (one, "how many ?")])
    assert read == [one, two]
    assert [len(row.images) for row in rows if isinstance(row, Request)] == [1, 2, 0, 1]
    assert rows == [
        builder.read(one, "what ?"),
        builder.read([two, one], "what ?"),
        builder.read(None, "what ?"),
        builder.read(one, "how many ?"),
    ]


def test_a_request_that_cannot_be_read_is_an_error_in_its_place(folder: Path) -> None:
    builder = VLM.load(folder).builder
    good = (small_models.sample_image(1), "what ?")
    [window] = read_windows(builder, [good, ("nowhere.png", "what ?"), (None, " ")], batch_size=4)
    assert isinstance(window[0], Request)
    assert isinstance(window[1], BadImage) and "request 1: nowhere.png does not exist" in str(window[1])
    assert isinstance(window[2], ValueError) and "request 2: the question is empty" in str(window[2])
    with pytest.raises(BadImage, match=r"nowhere\.png"):
        builder.read("nowhere.png", "what ?")


def test_groups_have_images_or_none_and_the_longest_come_first() -> None:
    rows = dict(enumerate([request("a b", 1), request("a"), request("a b c", 1), request("a", 1, 2), request("a b")]))
    assert list(group_by_length(rows, 2)) == [[3, 2], [0], [4, 1]]


# -- crops in the images' own call of the vision tower


@pytest.fixture
def tower(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Builds a small model of a family; `calls` are the images and crops of each call of its vision tower."""

    def build(family: str, **changes: Any) -> tuple[VLM, list[int]]:
        model, processor = small_models.build(family)
        vlm = VLM(model, processor, parts=replace(ModelParts.of(model), **changes))
        calls: list[int] = []
        encode, encode_crops = vlm.builder._encode, vlm.parts.encode
        assert encode is not None

        def count(**inputs: Any) -> Any:
            calls.append(len(inputs.get("image_grid_thw", inputs["pixel_values"])))
            return encode(**inputs)

        def count_crops(inputs: Any) -> Any:
            calls.append(len(inputs.get("image_grid_thw", inputs["pixel_values"])))
            return encode_crops(inputs)

        count.__signature__ = inspect.signature(encode)  # type: ignore[attr-defined]
        monkeypatch.setattr(vlm.builder, "_encode", count)
        vlm.parts = vlm.builder.parts = replace(vlm.parts, encode=count_crops)
        return vlm, calls

    return build


def ask(vlm: VLM, *seeds: int, method: Any = "crop-blend", **options: Any) -> list[Answer]:
    rows = [vlm.builder.read(small_models.sample_image(seed), "what ?") for seed in seeds]
    return vlm.answer_rows(rows, method, max_new_tokens=4, **options)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "internvl", "gemma3"])
def test_images_and_their_crops_are_encoded_in_one_call(family: str, tower: Any) -> None:
    vlm, calls = tower(family)
    (first,) = ask(vlm, 1)
    assert calls == [5]
    assert first.report is not None and first.report.fired and first.report.seconds["crops"] > 0
    ask(vlm, 1, 2, 3)  # the first image is known
    assert calls == [5, 10]
    ask(vlm, 3, 1, 2)
    assert calls == [5, 10]


def test_crops_of_another_shape_are_encoded_in_a_call_of_their_own(tower: Any) -> None:
    vlm, calls = tower("llava_next")  # an image has more tiles than its crops
    ask(vlm, 1)
    assert calls == [4, 1]
    ask(vlm, 1)
    assert calls == [4, 1]


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "internvl", "llava_next"])
def test_one_call_gives_the_answers_of_many(family: str, tower: Any) -> None:
    vlm, _ = tower(family)
    together = ask(vlm, 1, 2, 3)
    for alone in (tower(family)[0], tower(family, max_crop_batch=1)[0], tower(family, max_crop_batch=3)[0]):
        assert [ask(alone, seed)[0].text for seed in (1, 2, 3)] == [answer.text for answer in together]
    separate, _ = tower(family)
    ask(separate, 1, 2, 3, method=None)  # features without crops: these are in calls of their own
    for one, other in zip(ask(separate, 1, 2, 3), together, strict=True):
        assert one.text == other.text
        assert one.report is not None and other.report is not None
        distances = [[crop.distance for crop in own.crops[0]] for own in (one.report, other.report)]
        torch.testing.assert_close(*map(torch.tensor, distances), rtol=1e-3, atol=1e-4)


def test_a_bound_on_the_crops_in_one_call_is_kept(tower: Any) -> None:
    vlm, calls = tower("llava", max_crop_batch=3)
    ask(vlm, 1)
    assert calls == [3, 2]
    calls.clear()
    ask(vlm, 2, 3)
    assert calls == [3, 3, 3, 1]
    native, calls = tower("qwen2_5_vl", max_crop_batch=4)
    assert native.parts.count_views([(525, 700)]) == [2]
    native.ask(small_models.sample_image(1, (1400, 700)), "what ?", method="crop-blend", max_new_tokens=1)
    assert calls == [2, 2, 1]
    calls.clear()
    assert native.parts.count_views([(1050, 1050)]) == [6]  # too large for any call but one of its own
    native.ask(small_models.sample_image(1, (1400, 1400)), "what ?", method="crop-blend", max_new_tokens=1)
    assert calls == [1, 1, 1, 1, 1]


def test_the_bound_is_an_option_of_the_model() -> None:
    model, processor = small_models.shared_model("llava")
    assert VLM(model, processor).parts.max_crop_batch == MAX_CROP_BATCH
    assert VLM(model, processor, max_crop_batch=7).builder.parts.max_crop_batch == 7
    with pytest.raises(ValueError, match="max_crop_batch = 0: give at least 1"):
        VLM(model, processor, max_crop_batch=0)


def test_vanilla_never_gets_features_that_were_encoded_beside_crops(tower: Any) -> None:
    vlm, calls = tower("llava")
    ask(vlm, 1)
    for method in (None, "crop-blend:weight=0"):
        inputs = vlm._build([vlm.builder.read(small_models.sample_image(1), "what ?")], method and CropBlend(weight=0))
        fresh, _ = tower("llava")
        expected = fresh._build([fresh.builder.read(small_models.sample_image(1), "what ?")], None)
        given, wanted = (one["mm_encoder_outputs"]["image"].pooler_output for one in (inputs, expected))
        assert torch.equal(torch.stack(list(given)), torch.stack(list(wanted)))
    assert calls == [5, 1]


def test_requests_are_encoded_ahead_of_their_answers(tower: Any) -> None:
    expected = [answer.text for answer in ask(tower("llava")[0], 1, 2, 3, 4)]
    vlm, calls = tower("llava")
    rows = [vlm.builder.read(small_models.sample_image(seed), "what ?") for seed in (1, 2, 3, 4)]
    vlm.encode_rows(rows, "crop-blend")
    assert calls == [20]
    texts = [
        answer.text for part in (rows[:1], rows[1:]) for answer in vlm.answer_rows(part, "crop-blend", max_new_tokens=4)
    ]
    assert texts == expected
    assert calls == [20]
    vlm.encode_rows(rows, None)
    assert calls == [20, 4]
