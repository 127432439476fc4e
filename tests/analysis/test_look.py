"""The drawing: kept crops are marked, and it is drawn for any image and any report."""

import numpy as np
import pytest
from PIL import Image, ImageColor

from airvlm.analysis.changed import TokenChanges
from airvlm.analysis.look import KEPT, draw_look
from airvlm.report import Crop, NormRatio, Report

GREY = Image.new("RGB", (200, 120), (128, 128, 128))
BOXES = [(0, 0, 100, 60), (100, 60, 200, 120)]


def report(kept: tuple[bool, bool], **more: object) -> Report:
    crops = tuple(Crop(box, 0.1 * i, keep) for i, (box, keep) in enumerate(zip(BOXES, kept, strict=True)))
    return Report({"name": "air"}, fired=any(kept), crops=(crops,), **more)  # type: ignore[arg-type]


def marked(drawing: Image.Image) -> int:
    return int((np.asarray(drawing) == ImageColor.getrgb(KEPT)).all(-1).sum())


def test_the_more_crops_are_kept_the_more_is_marked() -> None:
    none, one, both = (marked(draw_look(GREY, report(kept))) for kept in [(False, False), (True, False), (True, True)])
    assert none == 0
    assert 0 < one < both


def test_the_chart_has_a_bar_for_each_layer() -> None:
    bars = [
        marked(draw_look(GREY, report((False, False), norm_ratio=NormRatio(0.1, 0.2, layers))))
        for layers in ({-1: 0.2}, {-1: 0.2, 4: 0.2})
    ]
    assert 0 < bars[0] < bars[1]


@pytest.mark.parametrize("size", [(1, 1), (4000, 10), (10, 2000)])
def test_any_image_can_be_drawn(size: tuple[int, int]) -> None:
    crop = Crop((0, 0, *size), 0.2, True)
    drawing = draw_look(Image.new("RGB", size), Report({"name": "air"}, fired=True, crops=((crop,),)))
    assert drawing.height > 100


def halves(drawing: Image.Image) -> tuple[float, float]:
    """The mean brightness of the left and the right half of the heat map, which is the middle panel."""
    pixels = np.asarray(drawing).astype(float)
    first, middle, last = (round(share * drawing.width) for share in (0.375, 0.48, 0.585))
    return float(pixels[:, first:middle].mean()), float(pixels[:, middle:last].mean())


def test_the_heat_map_is_bright_where_tokens_were_changed() -> None:
    left = TokenChanges(-1, ((0.5, 0.5, 0.0, 0.0) * 4,))
    right = TokenChanges(-1, ((0.0, 0.0, 0.5, 0.5) * 4,))
    a, b = halves(draw_look(GREY, report((False, False)), changes=left))
    assert a > b
    a, b = halves(draw_look(GREY, report((False, False)), changes=right))
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
    from airvlm.analysis.look import _grid

    grid = _grid([0.0] * count, Image.new("RGB", size))
    assert (None if grid is None else (len(grid), len(grid[0]))) == shape


def test_a_report_without_crops_says_why() -> None:
    drawing = draw_look(GREY, Report({"name": "air"}, fired=False, reason="no crop is near"))
    assert drawing.width > 600
