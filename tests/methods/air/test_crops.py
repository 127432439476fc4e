"""Laws of the crop plans."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from airvlm.methods.evidence.crops import Box, crop_boxes, crops

sizes = st.tuples(st.integers(1, 3000), st.integers(1, 3000))
SHAPES = [(640, 480), (480, 640), (336, 336), (2000, 90), (50, 1500), (7, 5), (1, 1)]


@settings(deadline=None)
@given(sizes, st.integers(0, 60), st.sampled_from(["windows", "random"]), st.integers(0, 99))
def test_any_count_of_boxes_lies_inside_any_image(size, n, plan, seed):
    boxes = crop_boxes(size, n, plan, seed)
    assert len(boxes) == n
    for x0, y0, x1, y1 in boxes:
        assert 0 <= x0 < x1 <= size[0] and 0 <= y0 < y1 <= size[1]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 12, 13, 30])
@pytest.mark.parametrize("size", SHAPES)
def test_windows_cover_every_pixel(size, n):
    seen = np.zeros((size[1], size[0]), dtype=int)
    for x0, y0, x1, y1 in crop_boxes(size, n):
        seen[y0:y1, x0:x1] += 1
    assert seen.min() >= 1


def test_twelve_windows_come_in_two_scales_and_overlap():
    boxes = crop_boxes((640, 480))
    assert len(boxes) == len(set(boxes)) == 12
    areas = sorted({w * h / (640 * 480) for w, h in (box.size for box in boxes)}, reverse=True)
    assert areas[0] >= 2 * areas[-1] and areas[0] < 1
    seen = np.zeros((480, 640), dtype=int)
    for x0, y0, x1, y1 in boxes:
        seen[y0:y1, x0:x1] += 1
    assert seen.min() >= 2  # each of the two scales covers the image
    assert seen.max() > 3


@pytest.mark.parametrize("size", [(640, 480), (480, 640), (1800, 300), (300, 1800)])
def test_windows_are_nearly_square_whatever_the_image(size):
    for w, h in (box.size for box in crop_boxes(size)):
        assert 1 / 3 < w / h < 3


def test_plans_are_deterministic_and_random_ones_follow_their_seed():
    assert crop_boxes((640, 480)) == crop_boxes((640, 480))
    first, second = (crop_boxes((640, 480), 12, "random", seed) for seed in (1, 2))
    assert first == crop_boxes((640, 480), 12, "random", 1)
    assert first != second


def test_random_crops_keep_their_scale_and_ratio():
    for w, h in (box.size for box in crop_boxes((1000, 1000), 200, "random", 3)):
        assert w * h / 1e6 > 0.07 and 0.7 < w / h < 1.4


def test_a_crop_is_the_pixels_of_its_box():
    image = Image.fromarray(np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3))
    (crop,) = crops(image, [Box(3, 5, 17, 11)])
    np.testing.assert_array_equal(np.asarray(crop), np.asarray(image)[5:11, 3:17])
    assert crops(image, []) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0, 5), 3), "nothing to crop"),
        (((5, 5), -1), "negative"),
        (((5, 5), 3, "grid"), "'grid' is unknown"),
    ],
)
def test_a_senseless_plan_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        crop_boxes(*arguments)
