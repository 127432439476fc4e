"""Composition: defined order, own reports, and the same as nested blocks."""

from contextlib import ExitStack
from typing import Any

import pytest
import torch

from airvlm import AIR, CropBlend
from airvlm.methods.base import Method
from airvlm.methods.biases import EOSBias, YesBias
from airvlm.methods.composed import Composed
from airvlm.methods.memvr import MemVR
from airvlm.methods.vaf import VAF
from airvlm.methods.vcd import VCD
from airvlm.runtime.session import MethodInactiveWarning, MethodNotApplied
from airvlm.testing import small_models

REINFORCE = AIR(layers=(1, 4), num_prototypes=8, keep=2, num_crops=3, strength=0.5)
BLEND = CropBlend(num_crops=3, weight=0.5)
MEMVR = MemVR(alpha=0.3, threshold=0.0, layers=(1, 4))
AMPLIFY = VAF(enhance=0.8, layers=(1, 4))
CONTRAST = VCD(beta=0.0)


def images() -> list[Any]:
    return [list(own) for _, own in small_models.sample_rows()]


def generate(*methods: Method, family: str = "llava") -> tuple[Any, list[Any]]:
    """Logits (TOKENS, B, V) with the methods in nested blocks, the first innermost, and their runs."""
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, small_models.sample_rows())
    with ExitStack() as stack:
        runs = [stack.enter_context(method(model, processor, images=images())) for method in methods]
        out = model.generate(
            **batch,
            max_new_tokens=3,
            min_new_tokens=3,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    return torch.stack(out.logits), runs


@pytest.mark.parametrize(
    "methods",
    [(REINFORCE, AMPLIFY), (BLEND, MEMVR), (MEMVR, CONTRAST), (BLEND, AMPLIFY, CONTRAST)],
    ids=lambda m: "+".join(p.name for p in m),
)
def test_a_composition_is_its_methods_in_nested_blocks(methods: tuple[Method, ...]) -> None:
    together, (run,) = generate(Composed(*methods))
    nested, runs = generate(*methods)
    assert torch.equal(together, nested)
    assert [part.fired for part in run.report.parts] == [one.report.fired for one in runs]
    for part, one in zip(run.report.parts, runs, strict=True):
        assert part.method == one.report.method and part.layers == one.report.layers
        assert part.tokens == one.report.tokens


def test_each_part_has_its_own_report_for_every_row() -> None:
    _, (run,) = generate(Composed(BLEND, AMPLIFY))
    report = run.report
    assert report.fired and [part.method["name"] for part in report.parts] == ["crop-blend", "vaf"]
    assert len(report.rows) == len(small_models.sample_rows())
    for row, (_, images) in zip(report.rows, small_models.sample_rows(), strict=True):
        assert row.fired is bool(images) and len(row.parts) == 2
    assert report.crops == report.parts[0].crops


def test_the_order_matters_and_is_the_one_given() -> None:
    strong = AIR(layers=(1, 4), num_prototypes=8, keep=2, num_crops=3, strength=2.0)
    one, _ = generate(Composed(strong, MEMVR))
    other, _ = generate(Composed(MEMVR, strong))
    assert not torch.equal(one, other)


def test_a_part_that_is_off_changes_nothing_and_says_so() -> None:
    alone, _ = generate(AMPLIFY)
    together, (run,) = generate(Composed(AMPLIFY, MemVR(alpha=0.0)))
    assert torch.equal(alone, together)
    assert run.report.fired and "memvr: its alpha is 0" in str(run.report.reason)


def test_a_composition_of_which_no_part_acts_warns_like_one_method() -> None:
    with pytest.warns(MethodInactiveWarning, match="entropy"):
        generate(Composed(MemVR(threshold=1.1), MemVR(alpha=0.0)))


def test_a_composition_without_an_image_raises() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[1:2])
    with pytest.raises(MethodNotApplied, match="image token"):
        with Composed(AMPLIFY, MEMVR)(model, processor):
            model.generate(**batch, max_new_tokens=2)
    with Composed(EOSBias(2.0), YesBias(1.0))(model, processor) as run:  # needs none
        model.generate(**batch, max_new_tokens=2)
    assert run.report.fired


def test_the_parts_of_a_part_are_parts_and_the_order_is_part_of_the_identity() -> None:
    composed = Composed(REINFORCE, Composed(AMPLIFY, CONTRAST))
    assert composed.methods == (REINFORCE, AMPLIFY, CONTRAST)
    assert composed == Composed(REINFORCE, AMPLIFY, CONTRAST) == Method.from_json(composed.to_json())
    assert len({composed, Composed(REINFORCE, AMPLIFY, CONTRAST)}) == 1
    assert Composed(REINFORCE, AMPLIFY) != Composed(AMPLIFY, REINFORCE)


def test_tokens_that_several_parts_change_are_not_counted_twice() -> None:
    _, (run,) = generate(Composed(BLEND, CropBlend(num_crops=3, weight=0.2)))
    report = run.report
    assert [part.tokens for part in report.parts] == [64, 64] and report.tokens == 64
    assert [row.tokens for row in report.rows] == [16, 0, 32, 16]
    assert report.passes == 1


def test_a_composition_states_what_its_parts_need() -> None:
    composed = Composed(BLEND, CONTRAST)
    assert composed.needs_images and composed.needs_pixels
    assert composed.site == "visual tokens, logits"
    assert not Composed(EOSBias(), YesBias()).needs_images
    assert composed.decoding == BLEND.decoding


@pytest.mark.parametrize("parts", [(), (None,), (VAF(),), ("vaf", "vcd")])
def test_a_composition_of_less_than_two_methods_is_refused(parts: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="Composed"):
        Composed(*parts)
