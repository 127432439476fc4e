"""Tokens drawn to be like trained ones: their cosines, their spectrum and the updates of their transport."""

import pytest
import torch

from experiments.speed.tokens import compute_statistics, draw_like_trained, draw_random, encode_trained, load_scenes


@pytest.fixture(scope="module")
def own():
    return compute_statistics(encode_trained("tiny", load_scenes(12)))


@pytest.fixture(scope="module")
def drawn():
    return compute_statistics(draw_like_trained(12, 64, 64, 96))


@pytest.mark.slow
def test_drawn_tokens_have_the_cosine_spread_of_trained_ones(own, drawn):
    for ours, theirs in zip(drawn["cosines"], own["cosines"], strict=True):
        assert ours == pytest.approx(theirs, abs=0.2)
    # most of an image is background, whose tokens nearly coincide; some of it differs entirely
    assert drawn["cosines"][4] > 0.9 and drawn["cosines"][1] < 0.1


@pytest.mark.slow
def test_drawn_tokens_have_the_spectrum_of_trained_ones(own, drawn):
    assert drawn["spectrum"] == pytest.approx(own["spectrum"], abs=0.08)
    assert drawn["variance"] == pytest.approx(own["variance"], abs=0.1)


@pytest.mark.slow
def test_drawn_tokens_take_as_many_updates_as_trained_ones_and_random_ones_do_not(own, drawn):
    for which in ("median", "slowest"):
        assert drawn["updates"][which] == pytest.approx(own["updates"][which], rel=0.25)
    assert compute_statistics(draw_random(2, 64, 64, 96))["updates"]["slowest"] < own["updates"]["slowest"] / 2


def test_a_seed_draws_the_same_tokens_and_another_does_not():
    (Z, X), (again, _), (other, _) = (draw_like_trained(1, 9, 7, 50, M=2, seed=seed) for seed in (1, 1, 2))
    assert Z.shape == (1, 9, 50) and X.shape == (1, 2, 7, 50)
    assert torch.equal(Z, again) and not torch.equal(Z, other)
