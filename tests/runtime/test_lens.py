"""The logit lens: uncertainty, and which positions fire."""

from typing import Any

import numpy as np
import pytest
import torch

from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import ForwardPass
from airvlm.runtime.lens import EntropyLens, Trigger, uncertainty
from airvlm.testing import small_models


@pytest.fixture
def parts() -> ModelParts:
    return ModelParts.of(small_models.shared_model("llava")[0])


def states(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, small_models.WIDTH, generator=torch.Generator().manual_seed(seed))


def forward_pass(B: int, L: int, first_generated: int) -> ForwardPass:
    return ForwardPass(None, None, L, B, 1, True, False, first_generated, 0, {})


def test_uncertainty_is_the_entropy_of_the_ten_likeliest_tokens_over_log_ten(parts: ModelParts) -> None:
    h = states(3, 4)
    with torch.no_grad():
        logits = parts.head(parts.norm(h)).numpy().astype(np.float64)
    top = np.sort(logits, -1)[..., -10:]
    p = np.exp(top - top.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    expected = -(p * np.log(p)).sum(-1) / np.log(10)
    np.testing.assert_allclose(uncertainty(parts, h).numpy(), expected, atol=1e-5)


def test_a_flat_distribution_is_uncertain_and_a_sharp_one_is_sure(parts: ModelParts) -> None:
    assert uncertainty(parts, torch.zeros(1, 1, small_models.WIDTH)).item() == pytest.approx(1.0)
    sharp = 1e4 * states(1, 1)
    assert uncertainty(parts, sharp, normed=False).item() == pytest.approx(0.0, abs=1e-6)


def test_a_row_fires_once_per_pass_in_the_first_unsure_layer(parts: ModelParts) -> None:
    h = states(4, 6)
    u = uncertainty(parts, h[:, -1:]).flatten()
    threshold = float(u.median())
    lens = EntropyLens(parts, Trigger(threshold))
    lens.start_pass(forward_pass(4, 6, 5), torch.ones(4, dtype=torch.bool))
    first = lens.read(forward_pass(4, 6, 5), h)
    assert first is not None
    assert first[:, -1].tolist() == (u > threshold).tolist()
    assert first.eq(first[:, -1:]).all()  # the last position decides for all before it
    flat = torch.zeros_like(h)
    second = lens.read(forward_pass(4, 6, 5), flat)  # uncertain: all that have not fired do
    assert second is not None and torch.equal(second, ~first)
    assert lens.read(forward_pass(4, 6, 5), flat) is None
    assert lens.highest is not None and lens.highest[~first[:, 0]].gt(0.999).all()


def test_the_highest_uncertainty_is_that_of_any_layer(parts: ModelParts) -> None:
    lens = EntropyLens(parts, Trigger(2.0))  # never fires
    lens.start_pass(forward_pass(2, 1, 0), torch.ones(2, dtype=torch.bool))
    layers = [states(2, 1, seed=seed) for seed in range(3)]
    layers[1] *= 0  # flat
    for h in layers:
        lens.read(forward_pass(2, 1, 0), h)
    assert lens.highest is not None and lens.highest.tolist() == pytest.approx([1.0, 1.0])
    assert uncertainty(parts, layers[-1]).max() < 0.999


def test_rows_that_have_nothing_to_inject_never_fire(parts: ModelParts) -> None:
    lens = EntropyLens(parts, Trigger(0.0))
    lens.start_pass(forward_pass(2, 3, 2), torch.tensor([True, False]))
    fires = lens.read(forward_pass(2, 3, 2), states(2, 3))
    assert fires is not None and fires.any(-1).tolist() == [True, False]


def test_a_sequence_read_again_without_a_cache_decides_as_it_did_with_one(parts: ModelParts) -> None:
    """Five prompt tokens, then three decoded ones: without a cache they come in one pass."""
    h, prompt = states(2, 8), 5
    threshold = float(uncertainty(parts, h[:, 4:]).median())
    lens = EntropyLens(parts, Trigger(threshold))
    everyone = torch.ones(2, dtype=torch.bool)

    def decided(part: Any, start: int) -> Any:
        lens.start_pass(forward_pass(2, part.shape[1], start), everyone)
        fires = lens.read(forward_pass(2, part.shape[1], start), part)
        return torch.zeros(part.shape[:2], dtype=torch.bool) if fires is None else fires

    apart = [decided(h[:, :prompt], prompt - 1), *(decided(h[:, i : i + 1], 0) for i in range(prompt, 8))]
    assert torch.equal(decided(h, prompt - 1), torch.cat(apart, 1))


def test_a_pooled_lens_decides_once_by_the_sum(parts: ModelParts) -> None:
    h = states(3, 2)
    total = float(uncertainty(parts, h[:, -1:]).sum())
    for threshold, fires in ((total - 1e-3, True), (total + 1e-3, False)):
        lens = EntropyLens(parts, Trigger(threshold, pooled=True))
        lens.start_pass(forward_pass(3, 2, 0), torch.ones(3, dtype=torch.bool))
        found = lens.read(forward_pass(3, 2, 0), h)
        assert (found is not None and bool(found.all())) is fires
