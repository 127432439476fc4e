"""Intervals, tests and counts of differences between methods that answered the same items."""

from __future__ import annotations

import math

import numpy as np
import pytest

from airvlm.evaluation.statistics import FEW, Draws, Estimate, Sample, count_changed, mcnemar
from airvlm.tasks.base import Metric, Ratio, Scores

ACCURACY = {"accuracy": Metric(Ratio("hit", "n")), "rate": Metric(Ratio("words", "n"))}


def scores(hits: list[float], images: list[str] | None = None) -> Scores:
    counts = [{"hit": float(h), "n": 1.0, "words": 3.0 * h} for h in hits]
    return Scores(counts, ACCURACY, images or [str(i) for i in range(len(hits))])


def test_the_interval_of_a_share_is_the_binomial_one():
    hits = [1.0] * 300 + [0.0] * 100
    got = Sample(scores(hits), Draws([str(i) for i in range(400)])).estimate("accuracy")
    error = 100 * math.sqrt(0.75 * 0.25 / 400)
    assert got.value == 75.0 and got.n == 400
    assert got.error == pytest.approx(error, rel=0.06)
    assert (got.low, got.high) == pytest.approx((75 - 1.96 * error, 75 + 1.96 * error), abs=0.5)


@pytest.mark.parametrize(
    ("draws", "fields", "trusted"),
    [
        ([1.0, 2.0], {}, True),
        ([1.0, 2.0], {"images": FEW}, True),
        ([1.0, 2.0], {"images": FEW - 1}, False),
        ([1.0, 1.0], {}, True),  # a difference that is the same in every draw
        ([1.0, 1.0], {"difference": False}, False),
        ([1.0, 2.0], {"difference": False}, True),
        ([math.nan, 1.0, 2.0], {}, True),
        ([math.nan], {}, False),
    ],
)
def test_an_interval_needs_draws_enough_images_and_for_a_share_spread(draws, fields, trusted):
    estimate = Estimate.of(1.5, np.array(draws), 10, **fields)
    assert estimate.trusted is trusted and (estimate.value, estimate.n) == (1.5, 10)
    assert math.isfinite(estimate.low) is math.isfinite(estimate.high) is trusted


def test_items_about_one_image_are_drawn_together_and_widen_the_interval():
    hits = [float(i % 2) for i in range(100)]
    alone = [p for i in range(100) for p in [f"{i}-{j}" for j in range(4)]]
    together = [str(i) for i in range(100) for _ in range(4)]
    answers = [h for h in hits for _ in range(4)]  # all four questions on an image go the same way
    errors = [Sample(scores(answers, p), Draws(p)).estimate("accuracy").error for p in (alone, together)]
    assert errors[1] == pytest.approx(2 * errors[0], rel=0.1)


def test_resampling_by_image_equals_resampling_the_items_themselves():
    rng = np.random.default_rng(0)
    images = [str(g) for g in rng.integers(0, 20, 70)]
    many = scores([float(h) for h in rng.integers(0, 2, 70)], images)
    draws = Draws(images, draws=50)
    place = [draws.groups.index(p) for p in images]
    by_item = many.resample("accuracy", draws.weights[:, place])
    np.testing.assert_allclose(Sample(many, draws).resample("accuracy"), by_item)


def test_a_difference_is_paired_so_equal_answers_give_exactly_zero():
    hits = [float(i % 3 == 0) for i in range(60)]
    draws = Draws([str(i) for i in range(60)])
    got = Sample(scores(hits), draws).difference(Sample(scores(hits), draws), "accuracy")
    assert (got.value, got.low, got.high, got.error) == (0, 0, 0, 0) and not got.significant


def test_the_interval_of_a_difference_is_far_narrower_than_of_the_two_scores():
    one = [float(i % 2) for i in range(400)]
    other = [1.0 if i < 20 else h for i, h in enumerate(one)]  # ten more right, none lost
    draws = Draws([str(i) for i in range(400)])
    a, b = Sample(scores(other), draws), Sample(scores(one), draws)
    difference = a.difference(b, "accuracy")
    assert difference.significant and difference.error < 0.5 * a.estimate("accuracy").error


def test_the_same_seed_draws_the_same_images():
    images = [str(i) for i in range(30)]
    assert np.array_equal(Draws(images).weights, Draws(images).weights)
    assert not np.array_equal(Draws(images).weights, Draws(images, seed=1).weights)


def test_mcnemar_is_the_exact_binomial_of_the_discordant_pairs():
    one = [1.0] * 50 + [1.0] * 8 + [0.0] * 2
    other = [1.0] * 50 + [0.0] * 8 + [1.0] * 2
    expected = 2 * sum(math.comb(10, k) for k in range(3)) / 2**10
    assert mcnemar(scores(one), scores(other), "accuracy") == pytest.approx(expected)
    assert mcnemar(scores(one), scores(one), "accuracy") == 1.0


def test_mcnemar_is_for_shares_of_items_only():
    assert mcnemar(scores([1.0, 0.0]), scores([0.0, 0.0]), "rate") is None


def test_mcnemar_leaves_out_items_that_one_of_them_did_not_answer():
    one, other = scores([1.0, 1.0]), scores([0.0, 0.0])
    other.per_item[1] = {"missing": 1.0}
    assert mcnemar(one, other, "accuracy") == 1.0  # one discordant pair: a coin thrown once says nothing


def test_changed_counts_the_texts_that_differ_where_both_answered():
    assert count_changed(["a", "b", None, "d"], ["a", "c", "x", None]) == 1


def test_images_needed_make_a_difference_of_this_size_significant():
    rng = np.random.default_rng(0)
    few = Estimate.of(1.0, 1.0 + 2.0 * rng.normal(size=4000), 50, images=50)
    needed = few.images_needed(50, 1.0)
    assert not few.significant and 700 < needed < 850  # 50 x (1.96 x 2)^2
    error = few.error * math.sqrt(50 / needed)
    many = Estimate.of(1.0, 1.0 + error * rng.normal(size=4000), needed, images=needed)
    assert many.low == pytest.approx(0.0, abs=0.05)
    assert Estimate.of(1.0, np.ones(9), 3, images=3).images_needed(3, 1.0) == FEW  # an interval needs as many
    assert Estimate.of(5.0, 5.0 + 0.1 * rng.normal(size=400), 12, images=12).images_needed(12, 5.0) == FEW


def test_what_is_not_finite_is_null_in_json():
    assert Estimate.of(math.nan, np.array([math.nan]), 3).to_json() == {
        "value": None,
        "low": None,
        "high": None,
        "n": 3,
    }
