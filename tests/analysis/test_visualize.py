"""The drawing of what a method did, and the token changes that it shows."""

import numpy as np
import pytest
from PIL import Image, ImageColor

from airvlm import AIR, VAF, VCD, VLM, CropBlend, tiny
from airvlm.analysis.visualize import USED, TokenChanges, draw_report, measure_token_changes, token_grid
from airvlm.inputs.images import load_image
from airvlm.report import Crop, NormRatio, Report

QUESTION = "Is there a cup in the image?"
GRAY = Image.new("RGB", (200, 120), (128, 128, 128))
BOXES = [(0, 0, 100, 60), (100, 60, 200, 120)]


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    return [load_image(scene.path) for scene in tiny.scenes("test")[:2]]


# -- measuring


def test_the_mean_change_is_the_norm_ratio_of_the_report(vlm: VLM, images: list[Image.Image]) -> None:
    changes = measure_token_changes(vlm, images[:1], QUESTION, CropBlend())
    report = vlm.ask(images[0], QUESTION, method=CropBlend()).report
    assert report is not None
    assert report.norm_ratio is not None
    (ratios,) = changes.ratios
    assert changes.layer == -1
    assert len(ratios) == report.tokens == 64
    assert sum(ratios) / 64 == pytest.approx(report.norm_ratio.mean, rel=1e-3)
    assert max(ratios) == pytest.approx(report.norm_ratio.max, rel=1e-3)


def test_each_image_has_its_own_tokens(vlm: VLM, images: list[Image.Image]) -> None:
    both = measure_token_changes(vlm, images, QUESTION, CropBlend(weight=0.5))
    alone = measure_token_changes(vlm, images[:1], QUESTION, CropBlend(weight=0.5))
    assert [len(part) for part in both.ratios] == [64, 64]
    assert both.ratios[0] == pytest.approx(alone.ratios[0], rel=1e-3)


def test_a_method_in_the_layers_is_measured_where_it_first_acts(vlm: VLM, images: list[Image.Image]) -> None:
    assert measure_token_changes(vlm, images[:1], QUESTION, AIR(keep=3)).place == "layer 4"


@pytest.mark.parametrize("method", [VAF(), VCD()], ids=str)
def test_a_method_that_changes_no_visual_token_is_not_said_to(
    vlm: VLM, images: list[Image.Image], method: VAF | VCD
) -> None:
    changes = measure_token_changes(vlm, images[:1], QUESTION, method)
    assert changes.layer is None
    assert changes.place == "no visual token was changed"
    assert not any(changes.ratios[0])


# -- drawing


def report(used: tuple[bool, bool], **more: object) -> Report:
    crops = tuple(Crop(box, 0.1 * i, one) for i, (box, one) in enumerate(zip(BOXES, used, strict=True)))
    return Report({"name": "air"}, fired=any(used), crops=(crops,), **more)  # type: ignore[arg-type]


def count_used(drawing: Image.Image) -> int:
    """Pixels in the color of what was used."""
    return int((np.asarray(drawing) == ImageColor.getrgb(USED)).all(-1).sum())


def test_the_more_crops_are_used_the_more_is_marked() -> None:
    pairs = [(False, False), (True, False), (True, True)]
    none, one, both = (count_used(draw_report(GRAY, report(used))) for used in pairs)
    assert none == 0
    assert 0 < one < both


def test_the_chart_has_a_bar_per_layer() -> None:
    bars = [
        count_used(draw_report(GRAY, report((False, False), norm_ratio=NormRatio(0.1, 0.2, layers))))
        for layers in ({-1: 0.2}, {-1: 0.2, 4: 0.2})
    ]
    assert 0 < bars[0] < bars[1]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 1), (4000, 10), (10, 2000)])
def test_any_image_can_be_drawn(size: tuple[int, int]) -> None:
    crop = Crop((0, 0, *size), 0.2, True)
    drawing = draw_report(Image.new("RGB", size), Report({"name": "air"}, fired=True, crops=((crop,),)))
    assert drawing.height > 100


def halves(drawing: Image.Image) -> tuple[float, float]:
    """The mean brightness of the left and the right half of the heat map, which is the middle panel."""
    pixels = np.asarray(drawing).astype(float)
    first, middle, last = (round(share * drawing.width) for share in (0.375, 0.48, 0.585))
    return float(pixels[:, first:middle].mean()), float(pixels[:, middle:last].mean())


def test_the_heat_map_is_bright_where_tokens_were_changed() -> None:
    left = TokenChanges(-1, ((0.5, 0.5, 0.0, 0.0) * 4,))
    right = TokenChanges(-1, ((0.0, 0.0, 0.5, 0.5) * 4,))
    a, b = halves(draw_report(GRAY, report((False, False)), changes=left))
    assert a > b
    a, b = halves(draw_report(GRAY, report((False, False)), changes=right))
    assert a < b


@pytest.mark.parametrize(
    ("count", "size", "shape"),
    [
        (64, (448, 448), (8, 8)),
        (64, (800, 400), (8, 8)),
        (24, (600, 400), (4, 6)),
        (7, (100, 100), None),
        (0, (9, 9), None),
    ],
)
def test_tokens_form_the_grid_that_fits_the_image(
    count: int, size: tuple[int, int], shape: tuple[int, int] | None
) -> None:
    grid = token_grid([0.0] * count, Image.new("RGB", size))
    assert (None if grid is None else (len(grid), len(grid[0]))) == shape


def test_a_report_without_crops_can_be_drawn() -> None:
    drawing = draw_report(GRAY, Report({"name": "air"}, fired=False, reason="no crop is near"))
    assert drawing.width > 600
