"""The controls of the logits: exactly what they change, and nothing at 0."""

from typing import Any

import pytest
import torch

from airvlm.methods.biases import CutOff, EOSBias, NearTie, Temperature, YesBias, find_spellings
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import small_models
from tests.methods.generated import GREEDY, generate


def test_the_eos_bias_is_added_to_the_end_token_alone() -> None:
    out = generate(EOSBias(bias=1.5))
    for scores, logits in zip(out.scores, out.logits, strict=True):
        change = torch.where(torch.isfinite(scores), scores - logits, 0.0)
        torch.testing.assert_close(change[:, 2], torch.full((4,), 1.5))
        change[:, 2] = 0
        assert (change == 0).all()
    assert out.report.fired and len(out.report.rows) == 4


def test_a_large_eos_bias_ends_answers() -> None:
    assert generate(EOSBias(bias=1e4)).sequences.shape[1] < generate(None).sequences.shape[1]


def test_the_eos_bias_needs_no_image() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[1:2])
    with EOSBias(bias=1e4)(model, processor) as run:
        ids = model.generate(**batch, **GREEDY)
    assert run.report.fired and ids[0, -1] == 2


@pytest.mark.parametrize("method", [EOSBias(bias=0.0), YesBias(bias=0.0), CutOff(beta=0.0), NearTie(margin=0.0)])
def test_a_bias_of_0_is_vanilla_and_warns_of_nothing(method: Any, recwarn: Any) -> None:
    out, vanilla = generate(method), generate(None)
    assert torch.equal(out.sequences, vanilla.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.scores, vanilla.scores, strict=True))
    assert not out.report.fired and "0" in out.report.reason
    assert not [w for w in recwarn if "did not act" in str(w.message)]


def test_the_yes_bias_makes_answers_yes_or_not() -> None:
    _, processor = small_models.shared_model("llava")
    yes = processor.tokenizer("yes", add_special_tokens=False)["input_ids"][0]
    L = small_models.build_inputs(processor, small_models.sample_rows())["input_ids"].shape[1]
    assert (generate(YesBias(bias=1e4)).sequences[:, L] == yes).all()
    assert (generate(YesBias(bias=-1e4)).sequences[:, L] != yes).all()


def test_spellings_are_single_known_tokens() -> None:
    tokenizer = small_models.build_tokenizer()
    assert find_spellings(tokenizer, ("yes", "Yes")) == tokenizer("yes", add_special_tokens=False)["input_ids"]
    with pytest.raises(ValueError, match="no single token"):
        find_spellings(tokenizer, ("perhaps",))


def test_the_eos_bias_needs_an_end_token() -> None:
    model, processor = small_models.build("llava")
    model.generation_config.eos_token_id = None
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    with pytest.raises(ValueError, match="set eos_token_id"):
        with EOSBias()(model, processor):
            model.generate(**batch, **GREEDY)


def test_the_yes_bias_needs_the_processor() -> None:
    model, _ = small_models.shared_model("llava")
    with pytest.raises(ValueError, match="needs the model's processor"):
        YesBias()(model)


# -- the cut-off


@pytest.mark.parametrize("options", [{"do_sample": True, "top_k": 0}, {"num_beams": 3}], ids=["sampling", "beams"])
def test_the_cut_off_removes_tokens_less_likely_than_beta_times_the_likeliest(options: Any) -> None:
    torch.manual_seed(0)
    out = generate(CutOff(beta=0.2), **options)
    assert out.report.fired and out.report.tokens > 0
    scores, logits = out.scores[0], out.logits[0]
    p = logits.softmax(-1)
    unlikely = p < 0.2 * p.amax(-1, keepdim=True)
    likely = p > 0.21 * p.amax(-1, keepdim=True)
    suppressed = torch.zeros_like(unlikely)
    suppressed[:, model_suppresses()] = True
    assert (scores[unlikely & ~suppressed] <= torch.finfo(scores.dtype).min / 2).all()
    assert (scores[likely & ~suppressed] > torch.finfo(scores.dtype).min / 2).all()
    assert unlikely.any() and out.report.norm_ratio is None


def model_suppresses() -> list[int]:
    tokens: list[int] = small_models.shared_model("llava")[0].generation_config.suppress_tokens
    return tokens


def test_sampling_under_the_cut_off_says_only_what_is_left() -> None:
    torch.manual_seed(0)
    cut = generate(CutOff(beta=1.0), do_sample=True, temperature=3.0)
    assert torch.equal(cut.sequences, generate(None).sequences), "beta = 1 leaves the likeliest token alone"
    torch.manual_seed(0)
    assert not torch.equal(generate(None, do_sample=True, temperature=3.0).sequences, cut.sequences)


def test_in_greedy_decoding_the_cut_off_changes_nothing_and_says_why() -> None:
    with pytest.warns(MethodInactiveWarning, match="greedy decoding takes the likeliest token"):
        out = generate(CutOff())
    assert not out.report.fired and not out.report.expected
    assert all(not row.fired and "greedy" in str(row.reason) for row in out.report.rows)
    vanilla = generate(None)
    assert torch.equal(out.sequences, vanilla.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.scores, vanilla.scores, strict=True))


def test_a_plain_pass_under_a_bias_says_why_nothing_was_done() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    with pytest.warns(MethodInactiveWarning, match="scores of generate, which was not called"):
        with EOSBias()(model, processor), torch.no_grad():
            model(**batch)


# -- the temperature


@pytest.mark.parametrize("options", [{"do_sample": True, "top_k": 0}, {"num_beams": 3}], ids=["sampling", "beams"])
def test_a_temperature_divides_the_logits(options: Any) -> None:
    torch.manual_seed(0)
    out = generate(Temperature(0.25), **options)
    logits = out.logits[0].index_fill(-1, torch.tensor(model_suppresses()), -torch.inf)
    found, expected = out.scores[0].softmax(-1), (logits / 0.25).softmax(-1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert out.report.fired and out.report.passes == len(out.logits)


def test_weights_that_sum_to_4_are_a_temperature_of_a_quarter() -> None:
    """A contrast of a stream with itself, as RITUAL's without a transformation: l + 3 l."""
    l = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close((l + 3 * l).softmax(-1), (l / 0.25).softmax(-1))


def test_a_low_temperature_is_greedy() -> None:
    torch.manual_seed(0)
    cold = generate(Temperature(1e-3), do_sample=True, top_k=0)
    assert torch.equal(cold.sequences, generate(None).sequences)


def test_in_greedy_decoding_the_temperature_changes_nothing_and_says_why() -> None:
    with pytest.warns(MethodInactiveWarning, match="whatever the temperature"):
        out = generate(Temperature(0.25))
    vanilla = generate(None)
    assert all(torch.equal(a, b) for a, b in zip(out.logits, vanilla.logits, strict=True))
    assert not out.report.fired


# -- the near-tie rule


def yes_and_no(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tokenizer = small_models.build_tokenizer()
    yes, no = (tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ("yes", "no"))
    p = scores.softmax(-1)
    return p[:, yes], p[:, no]


def raise_both(bias: float) -> Any:
    """A processor that makes yes and no likely."""
    tokenizer = small_models.build_tokenizer()
    ids = [tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ("yes", "no")]

    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, ids] += bias
        return scores

    return processor


def test_near_ties_become_yes_and_everything_else_stays() -> None:
    processors = [raise_both(14.0)]
    plain = generate(None, logits_processor=processors, max_new_tokens=1)
    p_yes, p_no = yes_and_no(plain.scores[0])
    margin = float((p_yes - p_no).abs()[p_yes + p_no > 0.2].mean())
    out = generate(NearTie(margin=margin, mass=0.2), logits_processor=processors, max_new_tokens=1)
    tie = ((p_yes + p_no) > 0.2) & ((p_yes - p_no).abs() < margin)
    assert tie.any() and not tie.all(), "some questions must be ties and some not"
    yes = small_models.build_tokenizer()("yes", add_special_tokens=False)["input_ids"][0]
    for row in range(len(tie)):
        expected = yes if tie[row] else plain.sequences[row, -1]
        assert out.sequences[row, -1] == expected
        assert out.report.rows[row].fired == bool(tie[row])
        if not tie[row]:
            assert torch.equal(out.scores[0][row], plain.scores[0][row])


def test_text_without_yes_and_no_is_left_alone() -> None:
    with pytest.warns(MethodInactiveWarning, match="never had 0.2 of the probability together"):
        out = generate(NearTie(margin=1.0), logits_processor=[raise_both(-20.0)])
    plain = generate(None, logits_processor=[raise_both(-20.0)])
    assert torch.equal(out.sequences, plain.sequences)


def test_a_clear_answer_is_reported_with_the_nearest_difference() -> None:
    with pytest.warns(MethodInactiveWarning, match=r"the smallest difference was 0\.\d+, and margin is 1e-06"):
        generate(NearTie(margin=1e-6), logits_processor=[raise_both(8.0)], max_new_tokens=1)


def test_the_near_tie_rule_needs_the_processor() -> None:
    model, _ = small_models.shared_model("llava")
    with pytest.raises(ValueError, match="near-tie needs the model's processor"):
        NearTie()(model)
