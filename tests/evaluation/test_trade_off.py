"""A method against the curve of saying less, at the method's own recall."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airvlm.evaluation.statistics import Draws, Sample
from airvlm.evaluation.trade_off import _excess, against_curve, best_at, trade_off_of
from airvlm.tasks.base import Metric, Ratio, Scores

METRICS = {
    "CHAIR_S": Metric(Ratio("bad", "captions"), "lower"),
    "CHAIR_I": Metric(Ratio("wrong", "mentions"), "lower"),
    "recall": Metric(Ratio("found", "objects")),
}
N = 800
IMAGES = [str(i) for i in range(N)]
DRAWS = Draws(IMAGES, draws=500)
rng = np.random.default_rng(1)
EASE, SLIP = rng.random((N, 10)), rng.random(N)  # how easily each object is found, each image misread


def caption_run(effort: float, slip: float) -> Sample:
    """Captions that find an object if it is easy enough, and hallucinate with a chance that grows with effort."""
    found = (effort > EASE).sum(axis=1)
    bad = slip > SLIP
    counts = [
        {
            "bad": float(b),
            "captions": 1.0,
            "wrong": float(b),
            "mentions": float(f + b),
            "found": float(f),
            "objects": 10.0,
        }
        for b, f in zip(bad, found)
    ]
    return Sample(Scores(counts, METRICS, IMAGES), DRAWS)


CURVE = [caption_run(effort, 0.4 * effort) for effort in (0.9, 0.8, 0.7, 0.6)]


def test_a_method_that_only_says_less_lies_on_the_curve():
    at = against_curve(caption_run(0.75, 0.3), CURVE, "recall", "CHAIR_S")
    assert at.inside and at.difference.low < 0 < at.difference.high
    assert caption_run(0.75, 0.3).difference(CURVE[0], "CHAIR_S").significant  # though it seems to gain on vanilla


def test_a_method_that_sees_better_lies_below_the_curve():
    at = against_curve(caption_run(0.85, 0.2), CURVE, "recall", "CHAIR_S")
    assert at.inside and at.difference.high < 0
    assert at.difference.value == pytest.approx(-14, abs=3)


def test_a_point_of_the_curve_is_at_distance_zero_in_every_draw():
    at = against_curve(CURVE[1], CURVE, "recall", "CHAIR_S")
    assert at.difference.value == 0 and at.difference.low == 0 == at.difference.high


def test_excess_its_ends_the_curve_is_flat_and_says_so():
    at = against_curve(caption_run(0.99, 0.2), CURVE, "recall", "CHAIR_S")
    assert not at.inside and at.expected == CURVE[0].value("CHAIR_S")


def test_one_point_is_no_curve():
    with pytest.raises(ValueError, match="two points"):
        against_curve(CURVE[0], CURVE[:1], "recall", "CHAIR_S")


def test_on_a_rising_curve_the_best_is_numpys_interpolation():
    xs, ys = np.sort(rng.random((50, 6)), axis=1), np.sort(rng.random((50, 6)), axis=1)
    x = rng.random(50) * 1.4 - 0.2
    expected = [np.interp(x[i], xs[i], ys[i]) for i in range(50)]
    for needed in (True, False):
        np.testing.assert_allclose(best_at(x, xs, ys, needed), expected)
        np.testing.assert_allclose(best_at(x, xs[:, ::-1], ys[:, ::-1], needed), expected)


def test_a_fold_is_worth_what_it_buys_best_at():
    xs, ys = np.array([[80.0, 80.0, 60.0]]), np.array([[30.0, 20.0, 10.0]])
    assert best_at(np.array([80.0]), xs, ys, True)[0] == 20.0  # two points at one recall: the better one
    xs, ys = np.array([[80.0, 82.0, 60.0]]), np.array([[30.0, 20.0, 10.0]])
    assert best_at(np.array([80.0]), xs, ys, True)[0] < 20.0  # more recall for less: nobody would stay at 80
    assert best_at(np.array([81.0]), xs, ys, False)[0] == pytest.approx(10 + 10 * 21 / 22)


def few(counts: list[tuple[int, int]]) -> Scores:
    """(bad, found of 4) an image."""
    names = ("bad", "captions", "wrong", "mentions", "found", "objects")
    per_item = [dict(zip(names, map(float, (b, 1, b, f + b, f, 4)))) for b, f in counts]
    return Scores(per_item, METRICS, [str(i) for i in range(len(counts))])


captions = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), min_size=12, max_size=12)
TWELVE = Draws([str(i) for i in range(12)], draws=200)


@settings(deadline=None, max_examples=60)
@given(captions, st.lists(captions, min_size=1, max_size=4), st.integers(0, 3))
def test_answers_that_change_nothing_are_at_exactly_zero_whatever_the_curve(vanilla, biased, place):
    samples = [Sample(few(c), TWELVE) for c in biased]
    place = min(place, len(samples))
    curve = [*samples[:place], Sample(few(vanilla), TWELVE), *samples[place:]]
    for y in ("CHAIR_S", "CHAIR_I"):
        at = against_curve(Sample(few(vanilla), TWELVE), curve, "recall", y, vanilla=place).difference
        if math.isfinite(at.value):
            assert (at.value, at.low, at.high, at.error) == (0.0, 0.0, 0.0, 0.0)


@settings(deadline=None, max_examples=60)
@given(captions, st.lists(captions, min_size=1, max_size=3), captions)
def test_a_point_of_the_curve_given_twice_changes_nothing(vanilla, biased, own):
    curve = [Sample(few(c), TWELVE) for c in (vanilla, *biased)]
    method = Sample(few(own), TWELVE)
    once = against_curve(method, curve, "recall", "CHAIR_S")
    twice = against_curve(method, [c for c in curve for _ in range(2)], "recall", "CHAIR_S")
    assert once == twice


points = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=2, max_size=7)


@given(points, st.integers(0, 100), st.integers(0, 100))
def test_more_recall_never_costs_less(curve, one, other):
    xs, ys = (np.array([[float(p[i]) for p in curve]]) for i in (0, 1))
    low, high = sorted((one, other))
    assert best_at(np.array([float(low)]), xs, ys, True) <= best_at(np.array([float(high)]), xs, ys, True)


@given(points, st.integers(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_hallucinating_less_at_the_same_recall_is_never_worth_less(curve, x, one, other):
    xs, ys = (np.array([[float(p[i]) for p in curve]]) for i in (0, 1))
    best = best_at(np.array([float(x)]), xs, ys, True)
    behind = ys[:, 0] - best_at(xs[:, 0], xs, ys, True)
    better, worse = sorted((one, other))
    assert behind >= 0 and _excess(better - best, behind) <= _excess(worse - best, behind)


def test_a_task_trades_only_if_it_has_the_metrics():
    assert trade_off_of(CURVE[0].scores).x == "recall"
    plain = Scores([{"hit": 1.0, "n": 1.0}], {"accuracy": Metric(Ratio("hit", "n"))}, ["0"])
    assert trade_off_of(plain) is None
