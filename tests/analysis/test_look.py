"""The drawing: kept crops are marked, and it is drawn for any picture and any report."""

import numpy as np
import pytest
from PIL import Image

from airvlm.analysis.look import KEPT, draw_look
from airvlm.report import Crop, NormRatio, Report

GREY = Image.new("RGB", (200, 120), (128, 128, 128))
BOXES = [(0, 0, 100, 60), (100, 60, 200, 120)]


def report(kept: tuple[bool, bool], **more: object) -> Report:
    crops = tuple(Crop(box, 0.1 * i, keep) for i, (box, keep) in enumerate(zip(BOXES, kept, strict=True)))
    return Report({"name": "air"}, fired=any(kept), crops=(crops,), **more)  # type: ignore[arg-type]


def marked(drawing: Image.Image) -> int:
    return int((np.asarray(drawing) == KEPT).all(-1).sum())


def test_the_more_crops_are_kept_the_more_is_marked() -> None:
    none, one, both = (
        marked(draw_look(GREY, report(kept))) for kept in [(False, False), (True, False), (True, True)]
    )
    assert none == 0
    assert 0 < one < both


def test_the_chart_has_a_bar_for_each_layer() -> None:
    without = marked(draw_look(GREY, report((False, False))))
    ratios = NormRatio(0.1, 0.2, {-1: 0.1, 4: 0.2})
    assert marked(draw_look(GREY, report((False, False), norm_ratio=ratios))) > without


@pytest.mark.parametrize("size", [(1, 1), (4000, 10), (10, 2000)])
def test_any_picture_can_be_drawn(size: tuple[int, int]) -> None:
    crop = Crop((0, 0, *size), 0.2, True)
    drawing = draw_look(Image.new("RGB", size), Report({"name": "air"}, fired=True, crops=((crop,),)))
    assert drawing.height > 100


def test_a_report_without_crops_says_why() -> None:
    drawing = draw_look(GREY, Report({"name": "air"}, fired=False, reason="no crop is near"))
    assert drawing.width > 600
