"""Methods that use crops: where the images come from, what is computed once, and what is told when nothing is done."""

import warnings
from typing import Any

import pytest
import torch

from airvlm.inputs.cache import cache_of
from airvlm.methods import AIR, AIRMemory, CropBlend
from airvlm.methods.base import Method
from airvlm.methods.evidence.crops import crop_boxes
from airvlm.runtime.session import MethodInactiveWarning, MethodNotApplied, Session
from airvlm.testing import small_models

GREEDY = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}


def generate(family: str, method: Method, images: Any, rows: Any = None, processor: bool = True) -> tuple[Any, Session]:
    model, own = small_models.shared_model(family)
    batch = small_models.build_inputs(own, small_models.sample_rows() if rows is None else rows)
    with method(model, own if processor else None, images=images) as run:
        out = model.generate(**batch, **GREEDY, return_dict_in_generate=True, output_logits=True)
    return torch.stack(out.logits), run


def test_images_may_be_flat_nested_or_without_the_rows_that_have_none() -> None:
    rows = small_models.sample_rows()
    one, two, last = rows[0][1][0], list(rows[2][1]), rows[3][1][0]
    expected, _ = generate("llava", CropBlend(), [[one], [], two, [last]])
    for images in ([one, None, two, last], [one, two, last]):
        assert torch.equal(generate("llava", CropBlend(), images)[0], expected)
    alone, _ = generate("llava", CropBlend(), [two], rows[2:3])
    assert torch.equal(generate("llava", CropBlend(), two, rows[2:3])[0], alone)


def test_a_wrong_number_of_images_says_how_to_give_them() -> None:
    with pytest.raises(ValueError, match="4 images, and images= has 2"):
        generate("llava", CropBlend(), [small_models.sample_image(1), small_models.sample_image(2)])
    with pytest.raises(ValueError, match="4 images, and images= has 2"):
        generate("llava", CropBlend(), [small_models.sample_image(1), None, [], small_models.sample_image(2)])


def test_without_images_crops_are_cut_from_the_pixels_of_the_input() -> None:
    _, run = generate("llava", CropBlend(weight=0.5, num_crops=12), None)
    assert [row.fired for row in run.report.rows] == [True, False, True, True]
    assert [crop.box for crop in run.report.rows[0].crops[0]] == crop_boxes((32, 32), 12)


def test_a_plain_forward_pass_uses_its_pixels_too() -> None:
    model, processor = small_models.shared_model("llava")
    with CropBlend()(model) as run, torch.no_grad():
        model(**small_models.build_inputs(processor, small_models.sample_rows()[:1]))
    assert run.report.fired


def test_a_model_without_plain_pixels_needs_the_images_before_any_token() -> None:
    with pytest.raises(ValueError, match="images="):
        generate("qwen2_5_vl", CropBlend(), None)


def test_images_need_the_processor() -> None:
    with pytest.raises(ValueError, match="processor"):
        generate("llava", CropBlend(), [small_models.sample_image(1)], processor=False)


def test_many_questions_about_one_image_encode_its_crops_and_solve_their_transport_once() -> None:
    model, processor = small_models.build("llava")
    image = small_models.sample_image(7)
    rows = [(f"USER: <image> is there a {name} ? ASSISTANT:", [image]) for name in ("dog", "cat", "fork")]
    for batch in (rows, rows[:1], rows[1:]):
        with CropBlend()(model, processor, images=[[image.copy()] for _ in batch]):
            model.generate(**small_models.build_inputs(processor, batch), **GREEDY)
    assert cache_of(model).computed == {"crops": 1, "evidence": 1}


@pytest.mark.parametrize("method", [CropBlend(weight=0.0), AIR(strength=0.0), AIRMemory(strength=0.0)])
def test_strength_0_warns_of_nothing_and_encodes_nothing(method: Method) -> None:
    model, processor = small_models.build("llava")
    rows = small_models.sample_rows()[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", MethodInactiveWarning)
        with method(model, processor, images=[rows[0][1]]) as run:
            model.generate(**small_models.build_inputs(processor, rows), **GREEDY)
    assert not run.report.fired and run.report.expected
    assert run.report.rows[0].reason == method.disabled_reason
    assert not cache_of(model).computed


def test_a_text_only_batch_raises() -> None:
    with pytest.raises(MethodNotApplied, match="image token"):
        generate("llava", CropBlend(), [None], small_models.sample_rows()[1:2])


def test_no_crops_is_a_reason() -> None:
    with pytest.warns(MethodInactiveWarning, match="num_crops = 0: there are no crops"):
        rows = small_models.sample_rows()[:1]
        generate("llava", CropBlend(num_crops=0), [rows[0][1]], rows)


def test_random_crops_follow_their_seed() -> None:
    rows = small_models.sample_rows()[:1]
    boxes = [
        [crop.box for crop in generate("llava", method, [rows[0][1]], rows)[1].report.crops[0]]
        for method in (CropBlend(crop_layout="random"), CropBlend(crop_layout="random", crop_seed=1), CropBlend())
    ]
    assert boxes[0] != boxes[1] and boxes[0] != boxes[2]


@pytest.mark.parametrize(
    ("method", "all_kept"),
    [
        (CropBlend(), True),
        (CropBlend(keep=4), True),
        (CropBlend(keep=3), False),
        (AIR(), False),
        (AIR(keep=12), True),
        (AIR(quantile=0.5), False),
        (AIR(keep=11), False),
    ],
)
def test_a_method_knows_whether_it_keeps_all_its_crops(method: Any, all_kept: bool) -> None:
    assert method.keeps_all_crops is all_kept
