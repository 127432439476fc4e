"""Controls: what they change, and that they raise where they would change nothing."""

from dataclasses import fields
from typing import Any

import pytest
import torch

from airvlm.methods import (
    AIR,
    VAF,
    AIRMemory,
    Composed,
    CropBlend,
    FarthestCrops,
    MeanToken,
    Method,
    NoisyCrops,
    OtherImage,
    RandomCrops,
    ShrunkCrops,
)
from airvlm.testing import small_models
from tests.methods.generated import generate

CONTROLS = (RandomCrops, FarthestCrops, NoisyCrops, MeanToken, OtherImage, ShrunkCrops)
BASES = (
    CropBlend(num_crops=12, keep=3, weight=0.5, num_prototypes=8),
    AIR(keep=3, strength=0.5, num_prototypes=8),
    AIRMemory(keep=3, strength=0.5, num_prototypes=8, threshold=0.0),
)
every_control = pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)


@every_control
@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_every_control_acts_and_differs_from_what_it_controls(control: Any, base: Method) -> None:
    out, own = generate(control(base)), generate(base)
    assert out.report.fired
    assert not torch.equal(torch.stack(out.logits), torch.stack(own.logits))


@every_control
def test_a_report_carries_the_name_of_the_control_and_of_the_method(control: Any) -> None:
    report = generate(control(CropBlend(keep=2))).report
    assert report.method == control(CropBlend(keep=2)).to_json()
    assert all(row.method["name"] == control.name for row in report.rows)
    assert str(report).startswith(f"{control.name}(crop-blend): acted")


def test_selecting_controls_keep_as_many_crops_as_the_method() -> None:
    own, random, farthest = (
        generate(method).report.crops
        for method in (CropBlend(keep=2), RandomCrops(CropBlend(keep=2)), FarthestCrops(CropBlend(keep=2)))
    )
    for images in (own, random, farthest):
        assert [sum(crop.kept for crop in image) for image in images] == [2, 2, 2, 2]
    for near, far in zip(own, farthest, strict=True):
        assert [crop.kept for crop in far] == [not crop.kept for crop in near]
    assert random != own


def test_a_random_choice_and_noise_follow_their_seeds() -> None:
    for control in (RandomCrops, NoisyCrops):
        base = CropBlend(num_crops=12, keep=3, weight=0.9)
        one, again, other = (torch.stack(generate(control(base, seed=seed)).logits) for seed in (0, 0, 1))
        assert torch.equal(one, again) and not torch.equal(one, other)


def test_more_noise_changes_more() -> None:
    base = torch.stack(generate(CropBlend(weight=0.9)).logits)
    small, large = (torch.stack(generate(NoisyCrops(CropBlend(weight=0.9), std=std)).logits) for std in (0.1, 3.0))
    assert (small - base)[0].norm() < (large - base)[0].norm()


# -- a control that would change nothing raises


@every_control
@pytest.mark.parametrize(
    ("method", "message"),
    [
        (VAF(), r"\(vaf\): vaf uses no crops, so there is nothing to control"),
        (Composed(CropBlend(keep=2), VAF()), "composed uses no crops"),
        (CropBlend(weight=0.0), "does nothing, because its weight is 0"),
        (AIR(strength=0.0), "does nothing, because its strength is 0"),
        (CropBlend(num_crops=0), "uses no crops with these options"),
        (CropBlend(keep=0), "uses no crops with these options"),
        (MeanToken(CropBlend(keep=2)), "mean-token is a control itself; wrap the method inside it"),
    ],
)
def test_a_control_of_a_method_without_crops_raises(control: Any, method: Method, message: str) -> None:
    with pytest.raises(ValueError, match=f"{control.name}.*{message}"):
        control(method)


@pytest.mark.parametrize("control", [RandomCrops, FarthestCrops])
@pytest.mark.parametrize("method", [CropBlend(), CropBlend(keep=4), AIR(keep=12), AIR(quantile=1.0)])
def test_selecting_other_crops_where_all_are_kept_raises(control: Any, method: Any) -> None:
    with pytest.raises(ValueError, match=f"{method.name} keeps all {method.num_crops} crops here") as caught:
        control(method)
    assert f"as in {control.name}({method.name}:keep={method.num_crops // 2})" in str(caught.value)


def test_noise_of_deviation_0_is_refused() -> None:
    with pytest.raises(ValueError, match="std"):
        NoisyCrops(CropBlend(), std=0.0)


def test_the_crops_of_another_image_need_another_image() -> None:
    with pytest.raises(ValueError, match="give a batch with two different images"):
        generate(OtherImage(CropBlend()), rows=small_models.sample_rows()[:1])


def test_shrinking_raises_where_the_image_has_the_models_own_size() -> None:
    rows = [("USER: <image> what ? ASSISTANT:", [small_models.sample_image(1, (32, 32))])]
    with pytest.raises(ValueError, match="shrinking changes nothing"):
        generate(ShrunkCrops(CropBlend()), rows=rows)


def test_shrinking_raises_where_crops_are_cut_from_the_models_own_pixels() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    with pytest.raises(ValueError, match="cut from the model's own pixels already"):
        with ShrunkCrops(CropBlend())(model, processor), torch.no_grad():
            model(**batch)


# -- what a control takes over from its method


@every_control
def test_a_control_asks_of_a_model_what_its_method_asks(control: Any) -> None:
    method = control(AIR(keep=3))
    assert method.needs_images and not method.needs_pixels and method.decoding == AIR.decoding
    assert method.disabled_reason is None
    assert fields(control)[0].name == "method"


def test_two_controls_of_one_batch_are_composed_with_other_methods() -> None:
    report = generate(Composed(RandomCrops(CropBlend(keep=2)), VAF())).report
    assert [part.method["name"] for part in report.parts] == ["random-crops", "vaf"] and report.fired
