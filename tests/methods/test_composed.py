"""Composition: defined order, own reports, and the same as nested blocks."""

from contextlib import ExitStack
from typing import Any

import pytest
import torch

from airvlm import AIR, CropBlend
from airvlm.methods.base import Method
from airvlm.methods.biases import EOSBias
from airvlm.methods.composed import Composed
from airvlm.methods.memvr import MemVR
from airvlm.methods.vaf import VAF
from airvlm.methods.vcd import VCD
from airvlm.runtime.session import MethodInactiveWarning, MethodNotApplied
from tests import tiny_models

AIR_ = AIR(layers=(1, 4), num_prototypes=8, keep=2, num_crops=3, strength=0.5)
CARRY = CropBlend(num_crops=3, weight=0.5)
MEMVR = MemVR(alpha=0.3, threshold=0.0, layers=(1, 4))
VAF_ = VAF(enhance=0.8, layers=(1, 4))
VCD_ = VCD(beta=0.0)


def images() -> list[Any]:
    return [list(own) for _, own in tiny_models.rows()]


def said(*methods: Method, family: str = "llava") -> tuple[Any, list[Any]]:
    """Logits (TOKENS, B, V) with the methods in nested blocks, the first innermost, and their runs."""
    model, processor = tiny_models.shared(family)
    batch = tiny_models.inputs(processor, tiny_models.rows())
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
    [(AIR_, VAF_), (CARRY, MEMVR), (MEMVR, VCD_), (CARRY, VAF_, VCD_)],
    ids=lambda m: "+".join(p.name for p in m),
)
def test_a_composition_is_its_methods_in_nested_blocks(methods: tuple[Method, ...]) -> None:
    together, (run,) = said(Composed(*methods))
    nested, runs = said(*methods)
    assert torch.equal(together, nested)
    assert [part.fired for part in run.report.parts] == [one.report.fired for one in runs]
    for part, one in zip(run.report.parts, runs, strict=True):
        assert part.method == one.report.method and part.layers == one.report.layers
        assert part.tokens == one.report.tokens


def test_each_part_has_its_own_report_for_every_row() -> None:
    _, (run,) = said(Composed(CARRY, VAF_))
    report = run.report
    assert report.fired and [part.method["name"] for part in report.parts] == ["air", "vaf"]
    assert len(report.rows) == len(tiny_models.rows())
    for row, (_, images) in zip(report.rows, tiny_models.rows(), strict=True):
        assert row.fired is bool(images) and len(row.parts) == 2
    assert report.crops == report.parts[0].crops


def test_the_order_matters_and_is_the_one_given() -> None:
    reinforce = AIR(layers=(1, 4), num_prototypes=8, keep=2, num_crops=3, strength=2.0)
    one, _ = said(Composed(reinforce, MEMVR))
    other, _ = said(Composed(MEMVR, reinforce))
    assert not torch.equal(one, other)


def test_a_part_that_is_off_changes_nothing_and_says_so() -> None:
    alone, _ = said(VAF_)
    together, (run,) = said(Composed(VAF_, MemVR(alpha=0.0)))
    assert torch.equal(alone, together)
    assert run.report.fired and "memvr: its alpha is 0" in str(run.report.reason)


def test_a_composition_of_which_no_part_acts_warns_like_one_method() -> None:
    with pytest.warns(MethodInactiveWarning, match="entropy"):
        said(Composed(MemVR(threshold=1.1), MemVR(alpha=0.0)))


def test_a_composition_without_an_image_raises() -> None:
    model, processor = tiny_models.shared("llava")
    batch = tiny_models.inputs(processor, tiny_models.rows()[1:2])
    with pytest.raises(MethodNotApplied, match="image token"):
        with Composed(VAF_, MEMVR)(model, processor):
            model.generate(**batch, max_new_tokens=2)
    with Composed(EOSBias(2.0))(model, processor) as run:  # needs none
        model.generate(**batch, max_new_tokens=2)
    assert run.report.fired


def test_it_round_trips_through_json_and_hashes() -> None:
    composed = Composed(AIR_, Composed(VAF_, VCD_))
    assert Method.from_json(composed.to_json()) == composed
    assert len({composed, Composed(AIR_, Composed(VAF_, VCD_))}) == 1
    assert Composed(AIR_, VAF_) != Composed(VAF_, AIR_)


@pytest.mark.parametrize("parts", [(), (None,)])
def test_a_composition_of_nothing_is_refused(parts: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="Composed"):
        Composed(*parts)
