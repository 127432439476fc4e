"""Images become the original's pixels bit for bit; prompts and images are matched row by row."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from PIL import Image

from airvlm.models.glm_4v.processing import Glm4VProcessor
from airvlm.models.ported.processing import SquareImageProcessor
from airvlm.models.qwen_vl.processing import QwenVLProcessor
from airvlm.testing.small_models import sample_image
from tests.models.ported import golden_cases as golden
from tests.models.ported import tiny_checkpoints as tiny

PROCESSORS = {"qwen": QwenVLProcessor, "chatglm": Glm4VProcessor}
model_types = pytest.mark.parametrize("model_type", tiny.MODELS)


@pytest.mark.skipif(
    int(PIL.__version__.split(".")[0]) < 13, reason="the golden pixels are of Pillow 13's bicubic filter"
)
@pytest.mark.parametrize("model", ["qwen_vl", "glm_4v"])
def test_pixels_equal_the_original_bit_for_bit(model: str) -> None:
    folder = golden.folder(model)
    compared = 0
    for key, wanted in golden.tensors(model, "preprocess.safetensors").items():
        file, kind = key.split(".png.")
        source = Image.open(folder / "images" / f"{file}.png")
        if kind == "pixel_values":
            pixels = SquareImageProcessor(size=wanted.shape[-1])(source)["pixel_values"][0]
        else:  # "448_rows_0_100_447": some rows at the real size
            size, _, *rows = kind.split("_")
            pixels = SquareImageProcessor(size=int(size))(source)["pixel_values"][0][:, [int(r) for r in rows]]
        assert torch.equal(pixels, wanted), key
        compared += 1
    assert compared


def test_arrays_and_nested_lists_are_images_too() -> None:
    processor, one = SquareImageProcessor(size=16), sample_image(1)
    wanted = processor(one)["pixel_values"]
    assert torch.equal(processor([[np.asarray(one)], [one]])["pixel_values"], wanted.repeat(2, 1, 1, 1))


@cache
def folder_of(model_type: str, root: Path) -> Path:
    return tiny.save(root / model_type, model_type)


@pytest.fixture
def processor(model_type: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.getbasetemp() / "processors"
    return PROCESSORS[model_type].from_pretrained(folder_of(model_type, root))


def prompt(processor: Any, question: str, images: int) -> str:
    content = [{"type": "image"}] * images + [{"type": "text", "text": question}]
    text: str = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return text


@model_types
def test_a_batch_is_padded_on_the_left_and_equals_its_rows(processor: Any) -> None:
    prompts = [prompt(processor, "Is there a dog?", 1), prompt(processor, "Yes", 0)]
    batch = processor(text=prompts, images=[[sample_image(1)], []], padding=True, return_tensors="pt")
    assert batch["pixel_values"].shape[0] == 1
    for i, images in enumerate(([sample_image(1)], None)):
        alone = processor(text=prompts[i], images=images, return_tensors="pt")
        mask = batch["attention_mask"][i].bool()
        assert batch["input_ids"][i][mask].tolist() == alone["input_ids"][0].tolist()
        assert mask.tolist() == sorted(mask.tolist())  # padding first
        count = int((alone["input_ids"] == processor.image_token_id).sum())
        assert count == (processor.num_image_tokens if images else 0)


@model_types
def test_a_template_call_reads_the_image_itself(processor: Any) -> None:
    content = [{"type": "image", "image": sample_image(1)}, {"type": "text", "text": "Is there a dog?"}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    wanted = processor(text=prompt(processor, "Is there a dog?", 1), images=sample_image(1), return_tensors="pt")
    assert torch.equal(inputs["input_ids"], wanted["input_ids"])
    assert torch.equal(inputs["pixel_values"], wanted["pixel_values"])


@model_types
def test_images_and_places_must_agree(processor: Any) -> None:
    one, none = prompt(processor, "dog?", 1), prompt(processor, "dog?", 0)
    with pytest.raises(ValueError, match="places for 1 images and 0 images were given"):
        processor(text=one)
    with pytest.raises(ValueError, match="places for 0 images and 1 images were given"):
        processor(text=none, images=sample_image(1))
    with pytest.raises(ValueError, match="Row 0 has places for 1 images and 0 were given"):
        processor(text=[one, none], images=[[], [sample_image(1)]])


@pytest.mark.parametrize("model_type", ["qwen"])
def test_qwen_takes_several_images_and_reads_no_path(processor: Any) -> None:
    text = "<img>/no/such/file.png</img> and <img></img>: compare"
    inputs = processor(text=text, images=[sample_image(1), sample_image(2)], return_tensors="pt")
    assert int((inputs["input_ids"] == processor.image_token_id).sum()) == 2 * processor.num_image_tokens
    assert inputs["pixel_values"].shape[0] == 2


@pytest.mark.parametrize("model_type", ["chatglm"])
def test_glm_takes_one_image_a_prompt_in_either_form(processor: Any) -> None:
    ours = processor(text=prompt(processor, "dog?", 1), images=sample_image(1))
    text = "[gMASK]<sop><|user|>\n<|begin_of_image|><|endoftext|><|end_of_image|>dog?<|assistant|>"
    assert processor(text=text, images=sample_image(1))["input_ids"] == ours["input_ids"]
    with pytest.raises(ValueError, match="one image per prompt"):
        processor(text=2 * processor.placeholder, images=[sample_image(1), sample_image(2)])
