"""CRG against plain passes with the image and with the image painted by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from airvlm.methods.crg import CRG, black_out
from airvlm.testing import small_models
from tests.methods.reference import TOKENS, answer, check_close, pass_over

BOXES = ((0.0, 0.25, 0.5, 1.0), (0.7, 0.1, 0.9, 0.4))


def painted(family: str, row: int) -> dict[str, Any]:
    """The image inputs with the boxes painted black."""
    _, processor = small_models.shared_model(family)
    images = []
    for image in small_models.sample_rows()[row][1]:
        pixels = np.array(image)
        h, w = pixels.shape[:2]
        for x0, y0, x1, y1 in BOXES:
            pixels[int(y0 * h) : int(np.ceil(y1 * h)), int(x0 * w) : int(np.ceil(x1 * w))] = 0
        images.append(Image.fromarray(pixels))
    return {"pixel_values": processor.image_inputs([images])["pixel_values"]}


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "smolvlm", "internvl"])
@pytest.mark.parametrize("row", [0, 2])
def test_what_is_said_without_the_regions_is_subtracted(family: str, row: int) -> None:
    ids, logits, report = answer(CRG(alpha=0.8, boxes=BOXES), family, row)
    seen = pass_over(ids, family, row)[-TOKENS - 1 : -1]
    blind = pass_over(ids, family, row, **painted(family, row))[-TOKENS - 1 : -1]
    assert not torch.allclose(seen, blind, atol=0.05)
    check_close(logits, 1.8 * seen - 0.8 * blind)
    assert report.extra["cut_off_share"] == 0


def test_a_box_covers_every_pixel_that_it_touches() -> None:
    image = small_models.sample_image(1, (10, 8))
    pixels = np.array(black_out(image, [(0.15, 0.5, 0.45, 1.0)]))
    assert (pixels[4:, 1:5] == 0).all()
    untouched = np.ones(pixels.shape[:2], bool)
    untouched[4:, 1:5] = False
    assert (pixels[untouched] == np.array(image)[untouched]).all()


def test_wrong_boxes_are_refused() -> None:
    model, processor = small_models.shared_model("llava")
    with pytest.raises(ValueError, match="needs regions"):
        CRG()(model, processor)
    for box in (
        (0.5, 0.0, 0.5, 1.0),
        (0.0, 0.9, 1.0, 0.1),
        (-0.1, 0.0, 1.0, 1.0),
        (0.0, -0.1, 1.0, 1.0),
        (0.0, 0.0, 1.1, 1.0),
        (0.0, 0.0, 1.0, 1.1),
    ):
        with pytest.raises(ValueError, match="boxes"):
            CRG(boxes=(box,))
    with pytest.raises(ValueError, match="needs the original images"):
        with CRG(boxes=BOXES)(model, processor):
            model.generate(**small_models.build_inputs(processor, small_models.sample_rows()[:1]), max_new_tokens=1)
