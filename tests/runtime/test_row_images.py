"""Which image is where: by runs of image tokens, by equal shares, or together."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from airvlm.methods import VAF, CropBlend
from airvlm.methods.names import get_method
from airvlm.models.parts import ModelParts
from airvlm.runtime.image_check import ImagesNotCheckedWarning, WrongImages, _process
from airvlm.runtime.intervention import ForwardPass
from airvlm.runtime.row_images import RowImages, _assign_rows, split_positions
from airvlm.testing import small_models
from airvlm.testing.small_configs import IMAGE_PROCESSORS
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


def test_images_that_were_compared_warn_of_nothing() -> None:
    model, processor, batch = build_question("llava", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with BLEND(model, processor, images=[small_models.sample_image(1)]) as run:
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


# -- images of another shape, too few, too many


def ask_about(family: str, *images: Any) -> tuple[Any, Any, Any]:
    """A model, its processor, and the inputs of one question about all of these images."""
    model, processor = small_models.shared_model(family)
    text = "USER: " + "<image> " * len(images) + "is there a fork ? ASSISTANT:"
    return model, processor, dict(small_models.build_inputs(processor, [(text, list(images))]))


ONE = small_models.sample_image(1)
OTHER_SHAPES = (
    small_models.sample_image(3, (200, 30)),
    Image.new("RGB", (300, 40)),
    small_models.sample_image(4, (40, 64)),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_of_another_shape_is_refused(family: str) -> None:
    model, processor, batch = ask_about(family, ONE)
    for other in OTHER_SHAPES:
        with pytest.raises(WrongImages, match="not the images that the model was given"):
            with BLEND(model, processor, images=[other]):
                model.generate(**batch, **GREEDY)


@pytest.mark.parametrize("family", FAMILIES)
def test_too_few_and_too_many_images_are_refused(family: str) -> None:
    wide = small_models.sample_image(5, (200, 30))
    for shown in ([ONE, small_models.sample_image(2)], [ONE, wide]):
        model, processor, batch = ask_about(family, *shown)
        for given in ([shown[0]], [shown[1]], [wide.rotate(90)], [*shown, shown[0]], [*shown, shown[1]]):
            with pytest.raises(WrongImages):
                with BLEND(model, processor, images=given):
                    model.generate(**batch, **GREEDY)
        with BLEND(model, processor, images=shown) as run:
            model.generate(**batch, **GREEDY)
        assert run.report.fired
    model, processor, batch = ask_about(family, ONE)
    for given in ([ONE, wide], [ONE, ONE], [wide, ONE]):
        with pytest.raises(WrongImages):
            with BLEND(model, processor, images=given):
                model.generate(**batch, **GREEDY)


def test_the_numbers_are_told() -> None:
    model, processor, batch = ask_about("qwen2_5_vl", ONE, small_models.sample_image(2))
    with pytest.raises(WrongImages, match=r"the inputs show 2 images, and images= has 1\..*check_images=False"):
        with BLEND(model, processor, images=[ONE]):
            model.generate(**batch, **GREEDY)


def test_one_wrong_image_among_many_is_found() -> None:
    seeds = list(range(40))
    model, processor, batch = build_question("llava", *seeds)
    wrong = [small_models.sample_image(seed) for seed in seeds]
    wrong[-1] = small_models.sample_image(99)
    with pytest.raises(WrongImages):
        with BLEND(model, processor, images=wrong):
            model.generate(**batch, **GREEDY)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_images_given_to_another_row_are_refused(family: str) -> None:
    model, processor = small_models.shared_model(family)
    A, B, C = (small_models.sample_image(seed) for seed in (1, 2, 3))
    rows = [("USER: <image> <image> what ASSISTANT:", [A, B]), ("USER: <image> is there a fork ? ASSISTANT:", [C])]
    batch = dict(small_models.build_inputs(processor, rows))
    with pytest.raises(WrongImages, match="for row 0"):
        with BLEND(model, processor, images=[[A], [B, C]]):
            model.generate(**batch, **GREEDY)
    with BLEND(model, processor, images=[[A, B], [C]]) as run:
        model.generate(**batch, **GREEDY)
    assert run.report.fired


def build_processor(family: str, **settings: Any) -> Any:
    """A family's processor with other settings of its image processor."""
    processor = small_models.SmallProcessor(family, small_models.shared_model(family)[0])
    processor.image_processor = type(processor.image_processor)(**{**IMAGE_PROCESSORS[family][1], **settings})
    return processor


PAN = {"pan_and_scan_min_crop_size": 8, "pan_and_scan_max_num_crops": 2, "pan_and_scan_min_ratio_to_activate": 1.2}
OTHER_SETTINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [  # the processor's, and those of the call
    ("qwen2_vl", {}, {"size": {"shortest_edge": 16 * 16, "longest_edge": 32 * 64}}),
    ("glm4v", {}, {"size": {"shortest_edge": 16 * 16, "longest_edge": 48 * 64}}),
    ("internvl", {}, {"max_patches": 6}),
    ("gemma3", PAN, {"do_pan_and_scan": True}),
    ("smolvlm", {}, {"do_image_splitting": False}),
    ("mistral3", {}, {"size": {"longest_edge": 16}}),
]


@pytest.mark.parametrize(("family", "own", "call"), OTHER_SETTINGS, ids=[family for family, *_ in OTHER_SETTINGS])
def test_other_settings_of_the_processor_are_not_taken_for_another_image(
    family: str, own: dict[str, Any], call: dict[str, Any]
) -> None:
    image = small_models.sample_image(6, (120, 40))
    model, processor = small_models.shared_model(family)[0], build_processor(family, **own)
    rows = [("USER: <image> is there a fork ? ASSISTANT:", [image])]
    batch = dict(small_models.build_inputs(build_processor(family, **own, **call), rows))
    usual = dict(small_models.build_inputs(processor, rows))
    assert batch["pixel_values"].shape != usual["pixel_values"].shape, "the settings change nothing"
    with BLEND(model, processor, images=[image]) as run:
        model.generate(**batch, **GREEDY)
    assert run.report.fired
    with pytest.raises(WrongImages):
        with BLEND(model, processor, images=[small_models.sample_image(7, (120, 40))]):
            model.generate(**batch, **GREEDY)


def test_images_are_processed_with_and_without_several_views() -> None:
    image = small_models.sample_image(6, (120, 40))
    parts = ModelParts.of(small_models.shared_model("smolvlm")[0])
    views = [
        {own["pixel_values"].shape[1] for own in _process(parts, build_processor("smolvlm", **own), [[image]], [image])}
        for own in ({}, {"do_image_splitting": False})
    ]
    assert views[0] == views[1] and len(views[0]) == 2


def test_what_cannot_be_compared_is_said_once() -> None:
    wide = small_models.sample_image(1, (200, 30))  # several tiles, whose features do not tell which image they are of
    model, processor, batch = ask_about("internvl", wide)
    with torch.no_grad():
        encoded = model.base_model.get_image_features(batch["pixel_values"], return_dict=True)
    features = {k: v for k, v in batch.items() if k != "pixel_values"} | {"mm_encoder_outputs": {"image": encoded}}
    with pytest.warns(ImagesNotCheckedWarning, match="features") as told:
        with BLEND(model, processor, images=[wide]) as run:
            for _ in range(2):
                model.generate(**{**features, "mm_encoder_outputs": {"image": encoded}}, **GREEDY)
    assert sum(issubclass(one.category, ImagesNotCheckedWarning) for one in told) == 1
    assert "features" in str(run.report.images_not_checked)
    assert "images not checked" in str(run.report)
    assert all(report.images_not_checked for report in run.reports)
    with get_method("crop-blend+eos-bias:bias=-1")(model, processor, images=[wide]) as run:
        with pytest.warns(ImagesNotCheckedWarning, match="features"):
            model.generate(**features, **GREEDY)
    assert "features" in str(run.report.images_not_checked) and "images not checked" in str(run.report)
    with BLEND(model, processor, images=[wide]) as run:
        model.generate(**batch, **GREEDY)
    assert run.report.images_not_checked is None


def test_without_images_and_without_plain_pixels_the_error_says_what_to_pass() -> None:
    model, processor, batch = build_question("llava", 1, features=True)  # features in place of pixels
    for call in (model.generate, model):
        with pytest.raises(ValueError, match=r"needs the original images.*airvlm\.wrap.*images=\["), torch.no_grad():
            with BLEND(model, processor):
                call(**batch)


def test_pixels_of_another_layout_are_not_cut_into_crops() -> None:
    model, _, batch = build_question("llava", 1)
    rows = RowImages("crop-blend", ModelParts.of(model), None, None, check=True)
    tiles = batch["pixel_values"][None]  # (1, 1, 3, H, W)
    with pytest.raises(ValueError, match="needs the original images"):
        rows._by_row([16], SimpleNamespace(generating=False, inputs={"pixel_values": tiles}))  # type: ignore[arg-type]
    found = rows._by_row([16], SimpleNamespace(generating=False, inputs=batch))  # type: ignore[arg-type]
    assert [len(row) for row in found] == [1]


def test_images_that_cannot_be_told_apart_are_located_together() -> None:
    parts = ModelParts.of(small_models.shared_model("llava")[0])
    rows = RowImages("crop-blend", parts, None, [images((8, 8), (8, 4))], check=False)
    visual = torch.zeros(1, 10, dtype=torch.bool)
    visual[0, [0, 1, 4, 5, 8, 9]] = True
    fp = ForwardPass(visual, None, 10, 1, 1, True, False, 9, 0, {}, generating=True, visual_on_cpu=visual)
    [found] = rows.locate(fp)
    assert found.positions.tolist() == [0, 1, 4, 5, 8, 9] and len(found.images) == 2
