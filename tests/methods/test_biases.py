"""The biases on an answer's words: exactly what they add, and nothing at 0."""

from typing import Any

import pytest
import torch

from airvlm.methods.biases import EOSBias, YesBias, spellings
from tests import tiny_models
from tests.methods.generated import GREEDY, generated


def test_shorter_adds_its_bias_to_the_end_token_alone() -> None:
    out = generated(EOSBias(bias=1.5))
    for scores, logits in zip(out.scores, out.logits, strict=True):
        change = torch.where(torch.isfinite(scores), scores - logits, 0.0)
        torch.testing.assert_close(change[:, 2], torch.full((4,), 1.5))
        change[:, 2] = 0
        assert (change == 0).all()
    assert out.report.fired and len(out.report.rows) == 4


def test_shorter_ends_answers() -> None:
    assert generated(EOSBias(bias=1e4)).sequences.shape[1] < generated(None).sequences.shape[1]


def test_shorter_needs_no_image() -> None:
    model, processor = tiny_models.shared("llava")
    batch = tiny_models.inputs(processor, tiny_models.rows()[1:2])
    with EOSBias(bias=1e4)(model, processor) as run:
        ids = model.generate(**batch, **GREEDY)
    assert run.report.fired and ids[0, -1] == 2


@pytest.mark.parametrize("method", [EOSBias(bias=0.0), YesBias(bias=0.0)])
def test_a_bias_of_0_is_vanilla_and_says_nothing(method: Any, recwarn: Any) -> None:
    out, vanilla = generated(method), generated(None)
    assert torch.equal(out.sequences, vanilla.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.scores, vanilla.scores, strict=True))
    assert not out.report.fired and "0" in out.report.reason
    assert not [w for w in recwarn if "did not act" in str(w.message)]


def test_yesno_makes_answers_yes_or_not() -> None:
    _, processor = tiny_models.shared("llava")
    yes = processor.tokenizer("yes", add_special_tokens=False)["input_ids"][0]
    L = tiny_models.inputs(processor, tiny_models.rows())["input_ids"].shape[1]
    assert (generated(YesBias(bias=1e4)).sequences[:, L] == yes).all()
    assert (generated(YesBias(bias=-1e4)).sequences[:, L] != yes).all()


def test_spellings_are_single_known_tokens() -> None:
    tokenizer = tiny_models.tokenizer()
    assert spellings(tokenizer, ("yes", "Yes")) == tokenizer("yes", add_special_tokens=False)["input_ids"]
    with pytest.raises(ValueError, match="no single token"):
        spellings(tokenizer, ("perhaps",))
