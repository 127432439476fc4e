"""Draft decoding of large JPEGs: never below what crops need, other files as they are, and the same evidence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from airvlm.inputs.images import BadImage, load_image
from airvlm.inputs.shrink import draft_side, usable_side
from airvlm.methods import CropBlend
from airvlm.methods.evidence.crops import Cropping, encode_crops
from airvlm.vlm import VLM
from tests.images.test_shrink import photograph


@pytest.fixture(scope="module")
def jpeg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photographs") / "large.jpg"
    photograph(2400, 1800).save(path, quality=92)
    return path


def test_without_it_every_pixel_is_decoded(jpeg: Path) -> None:
    assert load_image(jpeg).size == (2400, 1800)
    assert VLM.load("tiny").builder.draft is None


@pytest.mark.parametrize(
    ("side", "size"),
    [(100, (300, 225)), (226, (600, 450)), (450, (600, 450)), (451, (1200, 900)), (901, (2400, 1800))],
)
def test_the_shorter_side_stays_at_least_as_long(jpeg: Path, side: int, size: tuple[int, int]) -> None:
    assert load_image(jpeg, draft=side).size == size
    assert load_image(jpeg.read_bytes(), draft=side).size == size


def test_it_is_upright_and_limits_are_those_of_the_whole_image(tmp_path: Path) -> None:
    turned = Image.new("RGB", (1600, 1200), "red")
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert load_image(tmp_path / "turned.jpg", draft=300).size == (300, 400)
    with pytest.raises(BadImage, match="1600 x 1200"):
        load_image(tmp_path / "turned.jpg", draft=300, max_pixels=1_000_000)


def test_other_formats_are_decoded_whole(tmp_path: Path) -> None:
    Image.new("RGB", (1600, 1200), "red").save(tmp_path / "a.png")
    assert load_image(tmp_path / "a.png", draft=100).size == (1600, 1200)


def test_the_evidence_and_the_pixels_are_the_same_to_within_resampling(jpeg: Path) -> None:
    vlm = VLM.load("tiny")
    side = draft_side(usable_side(vlm.processor))
    assert side == 448
    whole, quick = load_image(jpeg), load_image(jpeg, draft=side)
    assert quick.size == (600, 450)
    seen = [np.asarray(image.resize((112, 112), Image.Resampling.BICUBIC), dtype=float) for image in (whole, quick)]
    assert np.abs(seen[0] - seen[1]).max() <= 3
    tokens = [
        encode_crops(vlm.parts, vlm.processor, [image], [name], Cropping())[0].tokens
        for name, image in (("whole", whole), ("quick", quick))
    ]
    alike = torch.cosine_similarity(*tokens, dim=-1)  # (M, N)
    assert 0.99 < float(alike.mean()) < 1.0 - 1e-6
    drafting = VLM(vlm.model, vlm.processor, name="tiny", draft=True)
    said = [one.describe(jpeg, method=CropBlend(), max_new_tokens=16).report for one in (vlm, drafting)]
    assert said[0] is not None
    assert said[1] is not None
    near = [[crop.distance for crop in report.crops[0]] for report in said]
    assert near[0] == pytest.approx(near[1], abs=0.02)
