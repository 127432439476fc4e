"""The controls: what they change, and how methods are spelled."""

import pytest
import torch

from airvlm.methods import AIR, METHODS, VAF, AIRMemory, Composed, CropBlend, parse_method
from airvlm.methods.biases import EOSBias
from airvlm.methods.controls import CONTROLS, control
from tests import tiny_models
from tests.methods.generated import GREEDY, generated


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize(
    "base", [CropBlend(keep=3, weight=0.5, num_prototypes=0.5), AIR(keep=3, strength=0.5, num_prototypes=8)]
)
def test_every_control_acts_and_differs_from_what_it_controls(name: str, base: AIR) -> None:
    changed = control(name, base)
    assert changed != base
    out, own = generated(changed), generated(base)
    assert out.report.fired
    assert not torch.equal(torch.stack(out.logits), torch.stack(own.logits))


def test_another_images_crops_need_another_image() -> None:
    model, processor = tiny_models.shared("llava")
    rows = tiny_models.rows()[:1]
    with pytest.raises(ValueError, match="two unlike images"):
        with CropBlend(source="other")(model, processor, images=[rows[0][1]]):
            model.generate(**tiny_models.inputs(processor, rows), **GREEDY)


# -- the registry


@pytest.mark.parametrize("name", METHODS)
def test_every_name_is_parsed_and_described(name: str) -> None:
    assert parse_method(name) == METHODS[name].default
    assert METHODS[name].summary


def test_fields_are_spelled_after_a_colon() -> None:
    assert parse_method("air-paper:keep=3,strength=0.2") == AIR(keep=3, strength=0.2)
    assert parse_method("air-paper:layers=(2,4), phi=identity") == AIR(layers=(2, 4), phi="identity")
    assert parse_method("air-lineage:layers=2-4,strength=none") == AIRMemory(layers=(2, 4), strength=None)
    assert parse_method("air:num_prototypes=64") == CropBlend(num_prototypes=64)
    assert parse_method("eos-bias:bias=-1.5") == EOSBias(-1.5)
    assert parse_method("air-other-image:weight=0.3") == CropBlend(weight=0.3, source="other")


def test_methods_joined_by_plus_are_composed_in_order() -> None:
    assert parse_method("air:keep=3+vaf") == Composed(CropBlend(keep=3), VAF())
    assert parse_method("vaf+air-paper:memory=prototypes+crops") == Composed(VAF(), AIR(memory="prototypes+crops"))


@pytest.mark.parametrize("text", ["vanilla", "none"])
def test_the_model_as_it_is_is_no_method(text: str) -> None:
    assert parse_method(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("magic", "unknown method 'magic'; known: vanilla, air"),
        ("air:magic=1", "air has no field 'magic'; it has reading, patches"),
        ("air:keep", "name=value"),
        ("vanilla:keep=1", "no fields"),
        ("air:keep=2,tau=0.1", "at most one of"),
    ],
)
def test_a_wrong_spelling_says_what_is_known(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(text)


def test_a_former_name_still_works_with_a_warning_and_is_not_listed() -> None:
    with pytest.warns(DeprecationWarning, match="air-other-picture is now called air-other-image"):
        assert parse_method("air-other-picture:weight=0.3") == CropBlend(weight=0.3, source="other")
    with pytest.warns(DeprecationWarning):
        assert parse_method("vaf+air-other-picture") == Composed(VAF(), CropBlend(source="other"))
    assert control("other-picture", CropBlend()) == control("other-image", CropBlend())
    assert "air-other-picture" in METHODS and "air-other-picture" not in list(METHODS)
