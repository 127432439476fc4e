"""The controls: what they change, and how methods are spelled."""

from typing import Any

import pytest
import torch

from airvlm.methods import AIR, METHODS, VAF, Composed, parse_method
from airvlm.methods.air.controls import CONTROLS, Shorter, YesNo, control, spellings
from tests import tiny_models

GREEDY = {"max_new_tokens": 6, "do_sample": False}


@pytest.fixture
def llava() -> Any:
    model, processor = tiny_models.shared("llava")
    return model, processor, tiny_models.inputs(processor, tiny_models.rows())


def generated(llava: Any, method: Any, **options: Any) -> Any:
    model, processor, batch = llava
    images = [list(pictures) for _, pictures in tiny_models.rows()]
    out = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    if method is None:
        return model.generate(**batch, **GREEDY, **options, **out)
    with method(model, processor, images=images) as run:
        result = model.generate(**batch, **GREEDY, **options, **out)
    result.report = run.report
    return result


def test_shorter_adds_its_bias_to_the_end_token_alone(llava: Any) -> None:
    out = generated(llava, Shorter(bias=1.5))
    for scores, logits in zip(out.scores, out.logits, strict=True):
        change = torch.where(torch.isfinite(scores), scores - logits, 0.0)
        torch.testing.assert_close(change[:, 2], torch.full((4,), 1.5))
        change[:, 2] = 0
        assert (change == 0).all()
    assert out.report.fired and len(out.report.rows) == 4


def test_shorter_ends_answers(llava: Any) -> None:
    assert generated(llava, Shorter(bias=1e4)).sequences.shape[1] < generated(llava, None).sequences.shape[1]


def test_shorter_needs_no_picture() -> None:
    model, processor = tiny_models.shared("llava")
    batch = tiny_models.inputs(processor, tiny_models.rows()[1:2])
    with Shorter(bias=1e4)(model, processor) as run:
        ids = model.generate(**batch, **GREEDY)
    assert run.report.fired and ids[0, -1] == 2


@pytest.mark.parametrize("method", [Shorter(bias=0.0), YesNo(bias=0.0)])
def test_a_bias_of_0_is_vanilla_and_says_nothing(llava: Any, method: Any, recwarn: Any) -> None:
    out, vanilla = generated(llava, method), generated(llava, None)
    assert torch.equal(out.sequences, vanilla.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.scores, vanilla.scores, strict=True))
    assert not out.report.fired and "0" in out.report.reason
    assert not [w for w in recwarn if "did not act" in str(w.message)]


def test_yesno_makes_answers_yes_or_not(llava: Any) -> None:
    yes = llava[1].tokenizer("yes", add_special_tokens=False)["input_ids"][0]
    L = llava[2]["input_ids"].shape[1]
    assert (generated(llava, YesNo(bias=1e4)).sequences[:, L] == yes).all()
    assert (generated(llava, YesNo(bias=-1e4)).sequences[:, L] != yes).all()


def test_spellings_are_single_known_tokens() -> None:
    tokenizer = tiny_models.tokenizer()
    assert spellings(tokenizer, ("yes", "Yes")) == tokenizer("yes", add_special_tokens=False)["input_ids"]
    with pytest.raises(ValueError, match="no single token"):
        spellings(tokenizer, ("perhaps",))


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize(
    "base", [AIR.transported(keep=3, weight=0.5, top_q=0.5), AIR.paper(keep=3, strength=0.5, top_q=8)]
)
def test_every_control_acts_and_differs_from_what_it_controls(llava: Any, name: str, base: AIR) -> None:
    changed = control(name, base)
    assert changed != base
    out, own = generated(llava, changed), generated(llava, base)
    assert out.report.fired
    assert not torch.equal(torch.stack(out.logits), torch.stack(own.logits))


def test_another_pictures_crops_need_another_picture() -> None:
    model, processor = tiny_models.shared("llava")
    rows = tiny_models.rows()[:1]
    with pytest.raises(ValueError, match="two unlike pictures"):
        with AIR(source="other")(model, processor, images=[rows[0][1]]):
            model.generate(**tiny_models.inputs(processor, rows), **GREEDY)


# -- the registry


@pytest.mark.parametrize("name", METHODS)
def test_every_name_is_parsed_and_described(name: str) -> None:
    assert parse_method(name) == METHODS[name].default
    assert METHODS[name].mechanism


def test_fields_are_spelled_after_a_colon() -> None:
    assert parse_method("air-paper:keep=3,strength=0.2") == AIR.paper(keep=3, strength=0.2)
    assert parse_method("air-paper:layers=(2,4), phi=identity") == AIR.paper(layers=(2, 4), phi="identity")
    assert parse_method("air-lineage:layers=2-4,strength=none") == AIR.lineage(layers=(2, 4), strength=None)
    assert parse_method("air:top_q=64") == AIR(top_q=64)
    assert parse_method("shorter:bias=-1.5") == Shorter(-1.5)
    assert parse_method("air-other-picture:weight=0.3") == AIR(weight=0.3, source="other")


def test_methods_joined_by_plus_are_composed_in_order() -> None:
    assert parse_method("air:keep=3+vaf") == Composed(AIR(keep=3), VAF())
    assert parse_method("vaf+air-paper:memory=prototypes+crops") == Composed(
        VAF(), AIR.paper(memory="prototypes+crops")
    )


@pytest.mark.parametrize("text", ["vanilla", "none"])
def test_the_model_as_it_is_is_no_method(text: str) -> None:
    assert parse_method(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("magic", "unknown method 'magic'; known: vanilla, air"),
        ("air:magic=1", "air has no field 'magic'; it has top_q"),
        ("air:keep", "name=value"),
        ("vanilla:keep=1", "no fields"),
        ("air:keep=2,tau=0.1", "at most one of"),
    ],
)
def test_a_wrong_spelling_says_what_is_known(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(text)
