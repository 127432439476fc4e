"""OPERA's penalty against its formula, on attention maps of whole plain passes for every candidate."""

from typing import Any

import numpy as np
import pytest
import torch

from airvlm.methods.opera import OPERA, column_scores
from airvlm.testing import check_method, small_models
from tests.methods.direct import finished, rows_with_images
from tests.methods.families import ALL

TOKENS = 14  # from the tenth token on the columns of the answer count


def attention_map(model: Any, inputs: Any) -> np.ndarray[Any, Any]:
    """The last layer's attention (L, L) of one row: the largest over heads, rows divided by their sums."""
    with torch.no_grad():
        a = model(**inputs, output_attentions=True).attentions[-1][0].amax(0).double().numpy()
    return a / a.sum(-1, keepdims=True)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("options", [{}, {"use_cache": False}], ids=["cache", "no cache"])
def test_candidates_are_penalized_by_their_attention(family: str, options: dict[str, Any]) -> None:
    model, processor = small_models.build(family)
    batch = small_models.build_inputs(processor, rows_with_images()[:1])
    prompt, opera = batch["input_ids"].shape[1], OPERA(candidates=3, weight=0.5, scale=120.0)
    with opera(model) as run:
        out = model.generate(
            **batch,
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            **options,
        )
    assert run.report.tokens == TOKENS
    model.set_attn_implementation("eager")
    visual = (batch["input_ids"][0] == small_models.IMAGE).numpy()
    large = 0.0
    for t in (0, 4, 8, 9, TOKENS - 1):
        ids = out.sequences[:, : prompt + t]
        with torch.no_grad():
            l = model(**finished(batch, ids)).logits[0, -1]
        found = out.logits[t][0]
        best, candidates = l.topk(3)
        assert (found > torch.finfo(torch.float32).min).nonzero().flatten().tolist() == sorted(candidates.tolist())
        for value, token in zip(best.tolist(), candidates, strict=True):
            longer = torch.cat([ids, token[None, None]], 1)
            a = attention_map(model, finished(batch, longer))
            R = a[prompt - 1 :, prompt - 1 :]
            if len(R) > 10:
                phi = [1e-7 * np.prod(120.0 * R[j:, j]) for j in range(len(R))]
                penalty = max(phi)
                large = max(large, penalty)
            else:
                penalty = -a[-1, :prompt][visual].sum()
            assert found[token].item() == pytest.approx(value - 0.5 * penalty, rel=2e-3, abs=2e-3)
    assert large > 1e-3  # the penalty was seen to act


def test_faithful_rounds_phi_to_half_precision_and_leaves_other_tokens_at_999() -> None:
    """A penalty beyond float16's range excludes every candidate, so that a token that was never tried is said."""
    model, processor = small_models.build("llava")
    batch = small_models.build_inputs(processor, rows_with_images()[:1])
    prompt = batch["input_ids"].shape[1]
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    with OPERA(candidates=2, scale=400.0, faithful=True)(model):
        out = model.generate(**batch, **options, return_dict_in_generate=True, output_logits=True)
    with OPERA(candidates=2, scale=400.0)(model):
        assert not torch.equal(model.generate(**batch, **options), out.sequences)
    model.set_attn_implementation("eager")
    seen: set[str] = set()
    for t in (8, 9, 10, TOKENS - 1):
        ids = out.sequences[:, : prompt + t]
        with torch.no_grad():
            l = model(**finished(batch, ids)).logits[0, -1]
        best, candidates = l.topk(2)
        found = out.logits[t][0]
        others = torch.ones(len(l), dtype=torch.bool)
        others[candidates] = False
        others[small_models.EOS] = False  # excluded by min_new_tokens
        assert (found[others] == -999).all()
        for value, token in zip(best.tolist(), candidates, strict=True):
            R = attention_map(model, finished(batch, torch.cat([ids, token[None, None]], 1)))[
                prompt - 1 :, prompt - 1 :
            ]
            if len(R) > 10:
                with np.errstate(over="ignore"):
                    phi = max(np.float16(1e-7 * np.prod(400.0 * R[j:, j])) for j in range(len(R)))
                seen.add("infinite" if np.isinf(phi) else "finite")
                assert found[token].item() == pytest.approx(value - float(phi), rel=5e-3)
    assert "infinite" in seen


def test_column_scores_are_products_below_the_diagonal() -> None:
    R = torch.tensor([[0.5, 9.0, 9.0], [0.2, 0.1, 9.0], [0.3, 0.4, 0.6]])
    found = column_scores(R, 10.0)
    torch.testing.assert_close(found, 1e-7 * torch.tensor([5 * 2 * 3, 1 * 4, 6.0]))


def test_one_candidate_or_no_penalty_is_greedy_decoding() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images())
    plain = model.generate(**batch, max_new_tokens=6, do_sample=False)
    for opera in (OPERA(candidates=1), OPERA(candidates=2, weight=1e-9)):
        with opera(model):
            assert torch.equal(model.generate(**batch, max_new_tokens=6, do_sample=False), plain)


def test_attention_rows_follow_the_beams() -> None:
    """With and without a cache: without one nothing is kept from step to step that could be out of order."""
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images())
    answers = []
    for cached in (True, False):
        with OPERA(scale=120.0)(model):
            answers.append(
                model.generate(
                    **batch,
                    max_new_tokens=TOKENS,
                    do_sample=False,
                    num_beams=3,
                    use_cache=cached,
                    return_dict_in_generate=True,
                    output_logits=True,
                )
            )
    assert torch.equal(answers[0].sequences, answers[1].sequences)
    torch.testing.assert_close(torch.stack(answers[0].logits), torch.stack(answers[1].logits), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("family", ALL)
def test_laws(family: str) -> None:
    check_method(OPERA(), [family])
