"""Where a method changed the image's tokens, read from the decoder itself."""

import pytest

from airvlm import AIR, VAF, VLM, CropBlend, tiny
from airvlm.analysis.changed import token_changes
from airvlm.inputs.images import load_image

QUESTION = "Is there a cup in the image?"


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return VLM.load("tiny")


def test_the_mean_change_is_the_norm_ratio_that_the_report_tells(vlm: VLM) -> None:
    image = load_image(tiny.scenes("test")[0].path)
    changes = token_changes(vlm, [image], QUESTION, CropBlend())
    report = vlm.ask(image, QUESTION, method=CropBlend()).report
    assert report is not None
    assert report.norm_ratio is not None
    (ratios,) = changes.ratios
    assert changes.layer == -1
    assert len(ratios) == report.tokens == 64
    assert sum(ratios) / 64 == pytest.approx(report.norm_ratio.mean, rel=1e-3)
    assert max(ratios) == pytest.approx(report.norm_ratio.max, rel=1e-3)


def test_tokens_are_told_apart_by_image(vlm: VLM) -> None:
    images = [load_image(scene.path) for scene in tiny.scenes("test")[:2]]
    changes = token_changes(vlm, images, QUESTION, CropBlend(weight=0.5))
    alone = token_changes(vlm, images[:1], QUESTION, CropBlend(weight=0.5))
    assert [len(part) for part in changes.ratios] == [64, 64]
    assert changes.ratios[0] == pytest.approx(alone.ratios[0], rel=1e-3)


def test_a_method_in_the_layers_is_read_where_it_first_acts(vlm: VLM) -> None:
    image = load_image(tiny.scenes("test")[0].path)
    assert token_changes(vlm, [image], QUESTION, AIR(keep=3)).layer == 4


def test_a_method_that_leaves_visual_tokens_alone_says_so(vlm: VLM) -> None:
    image = load_image(tiny.scenes("test")[0].path)
    changes = token_changes(vlm, [image], QUESTION, VAF())
    assert changes.layer is None
    assert changes.place == "no visual token was changed"
    assert not any(changes.ratios[0])
