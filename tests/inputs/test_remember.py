"""A wrapped processor remembers the images of its inputs: never wrong ones, and no longer than the inputs live."""

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import airvlm
from airvlm import CropBlend, WrongImages, tiny
from airvlm.inputs.remember import _IMAGES, is_wrapped, remembered_images
from airvlm.testing import small_models
from tests.all_families import FAMILIES

GREEDY = {"max_new_tokens": 3, "do_sample": False}
BLEND = CropBlend(weight=0.5, num_crops=3)
ROWS = [
    ("USER: <image> is there a fork in the image ? ASSISTANT:", [small_models.sample_image(1)]),
    ("USER: how many . ASSISTANT:", []),
    ("USER: <image> <image> what is left ASSISTANT:", [small_models.sample_image(2), small_models.sample_image(3)]),
]


def wrapped(family: str) -> tuple[Any, Any]:
    model, processor = small_models.shared_model(family)
    return model, airvlm.wrap(copy.copy(processor))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_images_are_needed_and_the_answer_is_the_same(family: str) -> None:
    model, processor = wrapped(family)
    inputs = processor(text=[text for text, _ in ROWS], images=[images for _, images in ROWS])
    with BLEND(model, processor, images=[images for _, images in ROWS]) as run:
        expected = model.generate(**inputs, **GREEDY, output_scores=True, return_dict_in_generate=True)
    given = run.report
    with BLEND(model, processor) as run:
        found = model.generate(**inputs, **GREEDY, output_scores=True, return_dict_in_generate=True)
    assert all(torch.equal(a, b) for a, b in zip(found.scores, expected.scores, strict=True))
    assert (run.report.tokens, run.report.crops) == (given.tokens, given.crops)


def test_each_call_of_a_block_has_its_own_images() -> None:
    model, processor = wrapped("qwen2_vl")
    calls = [processor(text=[text], images=[images]) for text, images in (ROWS[0], ROWS[2])]
    alone = []
    for inputs in calls:
        with BLEND(model, processor) as run:
            alone.append(model.generate(**inputs, **GREEDY))
    with BLEND(model, processor) as run:
        for inputs, expected in zip([*calls, calls[0]], [*alone, alone[0]], strict=True):
            assert torch.equal(model.generate(**inputs, **GREEDY), expected)
    assert [len(report.crops) for report in run.reports] == [1, 2, 1]


def test_a_plain_pass_finds_them_too() -> None:
    model, processor = wrapped("qwen2_vl")
    inputs = processor(text=[ROWS[0][0]], images=[ROWS[0][1]])
    with torch.no_grad(), BLEND(model, processor) as run:
        model(**inputs)
    assert run.report.fired


def test_images_that_are_given_all_the_same_must_be_those() -> None:
    model, processor = wrapped("qwen2_vl")
    inputs = processor(text=[ROWS[0][0]], images=[ROWS[0][1]])
    with pytest.raises(WrongImages, match="the processor made these inputs from"):
        with BLEND(model, processor, images=[small_models.sample_image(9)]):
            model.generate(**inputs, **GREEDY)


def test_inputs_that_are_not_the_processors_own_are_refused() -> None:
    model, processor = wrapped("qwen2_vl")
    inputs = dict(processor(text=[ROWS[0][0]], images=[ROWS[0][1]]))
    changed = inputs["pixel_values"].clone()
    assert remembered_images(changed) is None
    with pytest.raises(ValueError, match=r"airvlm\.wrap"):
        with BLEND(model, processor):
            model.generate(**{**inputs, "pixel_values": changed}, **GREEDY)
    inputs["pixel_values"] += 0.1  # in place: no longer what the processor made
    assert remembered_images(inputs["pixel_values"]) is None


def test_moving_the_batch_keeps_them() -> None:
    _, processor = wrapped("llava")
    inputs = processor(text=[ROWS[0][0]], images=[ROWS[0][1]])
    before = inputs["pixel_values"]
    moved = inputs.to(torch.bfloat16)
    assert moved["pixel_values"] is not before
    found = remembered_images(moved["pixel_values"])
    assert found is not None
    assert found[0][0].tobytes() == ROWS[0][1][0].tobytes()


def test_nothing_is_kept_longer_than_the_inputs() -> None:
    _, processor = wrapped("llava")
    image = small_models.sample_image(8)
    gc.collect()
    before = len(_IMAGES)
    inputs = processor(text=[ROWS[0][0]], images=[[image]])
    rows = remembered_images(inputs["pixel_values"])
    assert rows is not None
    kept = weakref.ref(rows[0][0])
    del rows, inputs
    gc.collect()
    assert kept() is None
    assert len(_IMAGES) == before


def test_an_image_that_is_drawn_on_later_is_remembered_as_it_was() -> None:
    _, processor = wrapped("llava")
    image = small_models.sample_image(8)
    before = image.tobytes()
    inputs = processor(text=[ROWS[0][0]], images=[[image]])
    image.paste((0, 0, 0), (0, 0, 48, 40))
    rows = remembered_images(inputs["pixel_values"])
    assert rows is not None
    assert rows[0][0].tobytes() == before


class FlatProcessor:
    """Takes images as one list for all texts, as many processors do."""

    image_processor = object()
    image_token = "<image>"

    def __call__(self, images: Any = None, text: Any = None, **_: Any) -> Any:
        from transformers import BatchFeature

        return BatchFeature({"pixel_values": torch.zeros(1)})


def test_a_flat_list_is_divided_by_the_texts_placeholders() -> None:
    processor = airvlm.wrap(FlatProcessor())
    A, B, C = (small_models.sample_image(seed) for seed in (1, 2, 3))
    inputs = processor([A, B, C], ["<image> <image> what", "nothing", "<image> there"])
    rows = remembered_images(inputs["pixel_values"])
    assert rows is not None
    assert [[image.tobytes() for image in row] for row in rows] == [[A.tobytes(), B.tobytes()], [], [C.tobytes()]]


def test_tensors_and_arrays_are_read_as_images() -> None:
    processor = airvlm.wrap(FlatProcessor())
    array = np.asarray(small_models.sample_image(1))
    for image in (torch.from_numpy(array.transpose(2, 0, 1).copy()), array, array.transpose(2, 0, 1)):
        inputs = processor(images=[image], text="<image>")
        rows = remembered_images(inputs["pixel_values"])
        assert rows is not None
        assert np.array_equal(np.asarray(rows[0][0]), array)


def test_copies_and_pickles_are_plain_and_unwrap_undoes_it() -> None:
    processor = FlatProcessor()
    airvlm.wrap(processor)
    airvlm.wrap(processor)
    assert is_wrapped(processor)
    assert isinstance(processor, FlatProcessor)
    assert type(processor).__name__ == "FlatProcessor"
    for other in (copy.copy(processor), copy.deepcopy(processor), pickle.loads(pickle.dumps(processor))):
        assert type(other) is FlatProcessor
    airvlm.unwrap(processor)
    assert type(processor) is FlatProcessor
    airvlm.unwrap(processor)


def test_a_tokenizer_is_refused() -> None:
    with pytest.raises(TypeError, match="wrap takes a model's processor"):
        airvlm.wrap(small_models.build_tokenizer())


def test_a_real_processor_and_its_chat_template(tmp_path: Any) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    path = tiny.model_path()
    model = AutoModelForImageTextToText.from_pretrained(path).eval()
    processor = airvlm.wrap(AutoProcessor.from_pretrained(path))
    scene = next(iter(tiny.scenes("test"))).path
    content = [
        {"type": "image", "image": str(scene)},
        {"type": "text", "text": "Please describe this image in detail."},
    ]
    chat = [{"role": "user", "content": content}]
    inputs = processor.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    ).to(model.device)
    with CropBlend()(model, processor, images=[scene]):
        expected = model.generate(**inputs, max_new_tokens=16, do_sample=False)
    with CropBlend()(model, processor) as run:
        assert torch.equal(model.generate(**inputs, max_new_tokens=16, do_sample=False), expected)
    assert run.report.crops
    with Image.open(scene) as image:
        rows = remembered_images(inputs["pixel_values"])
        assert rows is not None
        assert rows[0][0].size == image.size
    processor.save_pretrained(tmp_path)
    assert type(AutoProcessor.from_pretrained(tmp_path)).__name__ == type(processor).__name__
