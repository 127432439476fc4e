"""A method against the curve of saying less, at the method's own recall."""

from __future__ import annotations

import numpy as np
import pytest

from airvlm.evaluation.statistics import Draws, Sample
from airvlm.evaluation.trade_off import _interpolate, against_curve, trade_off_of
from airvlm.tasks.base import Metric, Ratio, Scores

METRICS = {
    "CHAIR_S": Metric(Ratio("bad", "captions"), "lower"),
    "CHAIR_I": Metric(Ratio("wrong", "mentions"), "lower"),
    "recall": Metric(Ratio("found", "objects")),
}
N = 800
PICTURES = [str(i) for i in range(N)]
DRAWS = Draws(PICTURES, draws=500)
rng = np.random.default_rng(1)
EASE, SLIP = rng.random((N, 10)), rng.random(N)  # how easily each object is found, each picture misread


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
    return Sample(Scores(counts, METRICS, PICTURES), DRAWS)


CURVE = [caption_run(effort, 0.4 * effort) for effort in (0.9, 0.8, 0.7, 0.6)]


def test_a_method_that_only_says_less_lies_on_the_curve():
    at = against_curve(caption_run(0.75, 0.3), CURVE, "recall", "CHAIR_S")
    assert at.inside and at.difference.low < 0 < at.difference.high
    assert (
        caption_run(0.75, 0.3).difference(CURVE[0], "CHAIR_S").significant
    )  # though it seems to gain on vanilla


def test_a_method_that_sees_better_lies_below_the_curve():
    at = against_curve(caption_run(0.85, 0.2), CURVE, "recall", "CHAIR_S")
    assert at.inside and at.difference.high < 0
    assert at.difference.value == pytest.approx(-14, abs=3)


def test_a_point_of_the_curve_is_at_distance_zero_in_every_draw():
    at = against_curve(CURVE[1], CURVE, "recall", "CHAIR_S")
    assert at.difference.value == 0 and at.difference.low == 0 == at.difference.high


def test_beyond_its_ends_the_curve_is_flat_and_says_so():
    at = against_curve(caption_run(0.99, 0.2), CURVE, "recall", "CHAIR_S")
    assert not at.inside and at.expected == CURVE[0].value("CHAIR_S")


def test_one_point_is_no_curve():
    with pytest.raises(ValueError, match="two points"):
        against_curve(CURVE[0], CURVE[:1], "recall", "CHAIR_S")


def test_interpolation_agrees_with_numpy_row_by_row_whatever_the_order_of_points():
    xs, ys = rng.random((50, 6)), rng.random((50, 6))
    x = rng.random(50) * 1.4 - 0.2
    order = np.argsort(xs, axis=1)
    expected = [np.interp(x[i], xs[i][order[i]], ys[i][order[i]]) for i in range(50)]
    np.testing.assert_allclose(_interpolate(x, xs, ys), expected)


def test_points_at_the_same_recall_meet_in_the_middle():
    got = _interpolate(np.array([1.0]), np.array([[1.0, 1.0]]), np.array([[2.0, 4.0]]))
    assert got[0] == 3.0


def test_a_task_trades_only_if_it_has_the_metrics():
    assert trade_off_of(CURVE[0].scores).x == "recall"
    plain = Scores([{"hit": 1.0, "n": 1.0}], {"accuracy": Metric(Ratio("hit", "n"))}, ["0"])
    assert trade_off_of(plain) is None
