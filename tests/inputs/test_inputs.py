"""Pixels that are kept: the model is given what it would have been given, and an image is processed once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from airvlm.inputs.builder import Encoder, Request
from airvlm.inputs.images import LoadedImage
from airvlm.models.parts import ModelParts
from airvlm.vlm import VLM
from tests import tiny_models
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
    images = tuple(LoadedImage(tiny_models.sample_image(seed, size), f"{seed} {size}") for seed in seeds)
    return Request(images, f"{'<image> ' * len(seeds)}{text}")


def batches() -> list[list[Request]]:
    """Images come again in the same batch, in another one, beside others, and in other shapes."""
    return [
        [request("what ?", 1), request("how many ?", 2)],
        [request("is there a dog ?", 1), request("is there a cat ?", 1), request("what ?", 3)],
        [request("left and right ?", 3, 1), request("what ?", 2, size=(40, 64)), request("what ?", 1)],
        [request("what ?", 2, size=(40, 64))],
    ]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_the_inputs_are_those_of_the_processor_bit_for_bit(family: str) -> None:
    model, processor = tiny_models.shared(family)
    encoder = Encoder(model, processor, ModelParts.of(model))
    encoder.forget()
    before = encoder.cache.computed["pixels"]
    for rows in batches():
        given = encoder.inputs(rows, pixels=True)
        expected = processor(
            text=[row.prompt for row in rows], images=[[one.rgb for one in row.images] for row in rows]
        )
        assert set(given) == set(expected)
        assert all(torch.equal(given[name], expected[name]) for name in expected)
    assert encoder.pixels.possible is (family in OWN_PIXELS)
    if family in OWN_PIXELS:
        assert encoder.cache.computed["pixels"] - before == 4


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
    requests = [(tiny_models.sample_image(seed), "what ?") for seed in (1, 1, 2, 1, 2)]
    first = [answer.text for answer in vlm.batch(requests, batch_size=2, max_new_tokens=4, progress=False)]
    assert counting.images == 2
    assert vlm.processor.image_processor is counting  # whoever holds the processor finds it unchanged
    vlm.builder.forget()
    assert [vlm.ask(*one, max_new_tokens=4).text for one in requests] == first
    assert counting.images == 4


def test_other_settings_of_the_image_processor_are_other_pixels(folder: Path) -> None:
    encoder = VLM.load(folder).builder
    image = tiny_models.sample_image(1)
    lent = encoder.pixels.lend(encoder.processor, {id(image): "1"}).image_processor
    plain = lent(images=[image], return_tensors="pt")["pixel_values"]
    raw = lent(images=[image], return_tensors="pt", do_normalize=False)["pixel_values"]
    assert not torch.equal(plain, raw)
    assert torch.equal(plain, lent([[image]], return_tensors="pt")["pixel_values"])
    assert encoder.cache.computed["pixels"] == 2


def test_an_image_that_requests_share_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airvlm.inputs import inputs as encoding

    read: list[Image.Image] = []
    load = encoding.read_image
    monkeypatch.setattr(encoding, "read_image", lambda source, **given: read.append(source) or load(source))
    one, two = tiny_models.sample_image(1), tiny_models.sample_image(2)
    encoder = VLM.load(folder).builder
    rows = encoder.read_all([(one, "what ?"), ([two, one], "what ?"), (None, "what ?"), (one, "how many ?")])
    assert read == [one, two]
    assert [len(row.images) for row in rows] == [1, 2, 0, 1]
    assert rows == [
        builder.read(one, "what ?"),
        builder.read([two, one], "what ?"),
        builder.read(None, "what ?"),
        builder.read(one, "how many ?"),
    ]
