"""Large images: crops are cut from a copy that is shrunk once, and give the same tokens."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from airvlm.inputs.images import load_image
from airvlm.inputs.shrink import decode_side, reduce_for_crops, reduction_factor, usable_side
from airvlm.methods import CropBlend
from airvlm.methods.evidence.crops import CropPlan, CropQueue, crop_boxes
from airvlm.vlm import VLM


def photograph(width: int, height: int) -> Image.Image:
    """Shapes of all sizes, as in a photograph: the detail of a crop is finer than any encoder reads."""
    rng = np.random.default_rng(0)
    image = np.zeros((height, width, 3), dtype=np.float32)
    for cells in (6, 24, 96):
        coarse = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        image += np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)) / 3
    return Image.fromarray(image.astype(np.uint8))


@pytest.mark.parametrize(
    ("settings", "side"),
    [
        ({"size": {"height": 112, "width": 112}}, 112),
        ({"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}, 336),
        ({"size": {"shortest_edge": 336}, "image_grid_pinpoints": [[336, 672], [1008, 336]]}, 1008),
        ({"size": {"height": 112, "width": 112}, "do_resize": False}, None),
        ({}, None),
    ],
)
def test_the_usable_side_is_the_longest_that_the_image_processor_makes(
    settings: dict[str, Any], side: int | None
) -> None:
    processor = SimpleNamespace(image_processor=SimpleNamespace(**settings))
    assert usable_side(processor) == side


def test_the_smallest_crop_keeps_twice_what_the_encoder_reads() -> None:
    boxes = crop_boxes((4000, 3000), 12)
    k = reduction_factor((4000, 3000), boxes, 112)
    assert k == 6
    small, inside = reduce_for_crops(Image.new("RGB", (4000, 3000)), boxes, 112)
    assert small.size == (667, 500)
    assert all(min(x1 - x0, y1 - y0) >= 2 * 112 for x0, y0, x1, y1 in inside)
    assert all(0 <= x0 < x1 <= 667 and 0 <= y0 < y1 <= 500 for x0, y0, x1, y1 in inside)


@pytest.mark.parametrize("size", [(448, 448), (1200, 900)])
def test_small_images_are_left_as_they_are(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size)
    small, inside = reduce_for_crops(image, crop_boxes(size, 12), 112)
    assert small is image and inside == [tuple(box) for box in crop_boxes(size, 12)]
    assert reduction_factor((9000, 9000), [(0, 0, 9000, 9000)], None) == 1


@pytest.mark.slow
def test_the_evidence_of_a_photograph_is_the_same_to_within_resampling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vlm, image = VLM.load("tiny"), photograph(2400, 1800)
    parts = (vlm.parts, vlm.processor, {"photograph": image}, CropPlan())
    assert usable_side(vlm.processor) == 112
    shrunk = CropQueue(*parts).finish()["photograph"]
    quick = vlm.describe(image, method=CropBlend(num_crops=12), max_new_tokens=16)
    vlm.builder.cache.clear()
    monkeypatch.setattr("airvlm.methods.evidence.crops.reduce_for_crops", lambda image, boxes, side: (image, boxes))
    whole = CropQueue(*parts).finish()["photograph"]
    exact = vlm.describe(image, method=CropBlend(num_crops=12), max_new_tokens=16)
    assert shrunk.boxes == whole.boxes and shrunk.size == whole.size
    alike = torch.cosine_similarity(shrunk.tokens, whole.tokens, dim=-1)  # (M, N)
    assert 0.99 < float(alike.mean()) < 1.0 - 1e-6  # it was shrunk, and that hardly shows
    assert quick.report is not None and exact.report is not None
    near = [[crop.distance for crop in report.crops[0]] for report in (quick.report, exact.report)]
    assert near[0] == pytest.approx(near[1], abs=0.01)
    assert quick.report.crops[0][0].box == exact.report.crops[0][0].box


def test_an_image_is_decoded_large_enough_for_crops_of_half_its_side() -> None:
    assert decode_side(112) == 448 and decode_side(None) is None


def test_the_evidence_of_a_draft_is_the_same_to_within_resampling(tmp_path: Path) -> None:
    vlm, path = VLM.load("tiny"), tmp_path / "large.jpg"
    photograph(2400, 1800).save(path, quality=92)
    whole, quick = load_image(path), load_image(path, decode_side=decode_side(usable_side(vlm.processor)))
    assert quick.size == (600, 450)
    seen = [np.asarray(image.resize((112, 112), Image.Resampling.BICUBIC), dtype=float) for image in (whole, quick)]
    assert np.abs(seen[0] - seen[1]).max() <= 3
    crops = CropQueue(vlm.parts, vlm.processor, {"whole": whole, "quick": quick}, CropPlan()).finish()
    alike = torch.cosine_similarity(crops["whole"].tokens, crops["quick"].tokens, dim=-1)  # (M, N)
    assert 0.99 < float(alike.mean()) < 1.0 - 1e-6
    reports = [vlm.describe(image, method=CropBlend(), max_new_tokens=16).report for image in (whole, quick)]
    assert reports[0] is not None and reports[1] is not None
    near = [[crop.distance for crop in report.crops[0]] for report in reports if report is not None]
    assert near[0] == pytest.approx(near[1], abs=0.02)
