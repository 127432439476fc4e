"""At equal recall: a method against what merely saying less, or merely saying no, gives.

Ending captions earlier lowers CHAIR, and answering "no" more often raises accuracy wherever a model says "yes" too
readily. A bias on one logit draws that curve; a method is worth its distance from it, at its own recall (or yes-ratio).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from airvlm.evaluation.statistics import Array, Estimate, Sample
from airvlm.tasks.base import Scores

__all__ = ["TRADE_OFFS", "AtEqual", "TradeOff", "against_curve", "best_at", "trade_off_of"]


@dataclass(frozen=True)
class TradeOff:
    """Metrics that a trivial control moves together."""

    x: str  # what must be equal for a fair comparison
    ys: tuple[str, ...]  # what is compared there
    control: str  # the method whose bias draws the curve
    biases: tuple[float, ...]  # the curve's points; 0 is vanilla and always part of it

    @property
    def held_equal(self) -> str:
        """`x` in words."""
        return self.x.replace("_", "-")


TRADE_OFFS = (
    TradeOff("recall", ("CHAIR_S", "CHAIR_I"), "eos-bias", (-1.0, 1.0, 2.0, 3.0, 4.0)),
    TradeOff("Cover", ("CHAIR", "Hal"), "eos-bias", (-1.0, 1.0, 2.0, 3.0, 4.0)),
    TradeOff("yes_ratio", ("accuracy",), "yes-bias", (-2.0, -1.0, -0.5, 0.5, 1.0)),
)


def trade_off_of(scores: Scores) -> TradeOff | None:
    """The trade-off of a task's metrics, if they have one."""
    names = set(scores.definitions)
    return next((t for t in TRADE_OFFS if t.x in names and names.issuperset(t.ys)), None)


@dataclass(frozen=True)
class AtEqual:
    """A method's distance from the control's curve."""

    x: str
    y: str
    at: float  # the method's own x, where it is compared
    expected: float  # the curve there
    difference: Estimate  # the method minus the curve, paired over images
    inside: bool  # False: the curve does not reach the method's x, and its nearest end was taken
    draws: Array = field(repr=False, compare=False)  # (B,) the difference on every resample


def against_curve(method: Sample, curve: Sequence[Sample], x: str, y: str, vanilla: int = 0) -> AtEqual:
    """The method minus the best that the control reaches at the method's own x.

    Every draw of images recomputes the method *and* the whole curve: the interval covers the uncertainty of both.

    Args:
        method: the method's scores.
        curve: the control's, in the order of its bias.
        x: the metric that is held equal.
        y: the metric that is compared.
        vanilla: the index of bias 0 in the curve.
    """
    if len(curve) < 2:
        raise ValueError("a curve needs two points: vanilla and at least one bias")
    definitions = method.scores.definitions
    sign = 1.0 if definitions[y].better == "lower" else -1.0  # from here on less is better
    needed = definitions[x].better == "higher"  # more recall is as good; more of a yes-ratio is not

    def distance(xs: Array, ys: Array, own_x: Array, own_y: Array) -> tuple[Array, Array]:
        """xs and ys (B, P), own (B,) -> the distance from the control and what the control reaches, (B,) each."""
        best = best_at(own_x, xs, sign * ys, needed)
        behind = sign * ys[:, vanilla] - best_at(xs[:, vanilla], xs, sign * ys, needed)
        return sign * _excess(sign * own_y - best, behind) + 0.0, sign * best

    at = method.value(x)
    xs = np.array([[point.value(x) for point in curve]])
    ys = np.array([[point.value(y) for point in curve]])
    value, expected = distance(xs, ys, np.array([at]), np.array([method.value(y)]))
    drawn_xs = np.stack([point.resample(x) for point in curve], axis=1)  # (B, P)
    drawn_ys = np.stack([point.resample(y) for point in curve], axis=1)  # (B, P)
    drawn, _ = distance(drawn_xs, drawn_ys, method.resample(x), method.resample(y))
    return AtEqual(
        x,
        y,
        at,
        float(expected[0]),
        Estimate.of(float(value[0]), drawn, method.scores.n, images=method.images),
        inside=bool(math.isfinite(at) and xs.min() <= at <= xs.max()),
        draws=drawn,
    )


def _excess(distance: Array, behind: Array) -> Array:
    """The part of a distance that is neither the control's nor vanilla's own.

    Where the control improves on vanilla at no cost (`behind` > 0, a fold in the curve), a method gains only below the
    control and loses only above vanilla's own distance: a method that changes nothing scores exactly 0.
    """
    return np.where(distance < 0, distance, np.maximum(distance - np.maximum(behind, 0.0), 0.0)) + 0.0


def best_at(x: Array, xs: Array, ys: Array, needed: bool) -> Array:
    """The least y that the control reaches at x, with one curve per row: x (B,), xs and ys (B, P) -> (B,).

    The points are joined in their order. Beyond its ends the curve is flat: extrapolating between two near points would
    invent a slope.

    Args:
        x: where.
        xs: the curve's x.
        ys: the curve's y, less is better.
        needed: reach x or more, as for recall; else exactly x.
    """
    x = np.clip(x, xs.min(axis=1), xs.max(axis=1))[:, None]
    reached = xs >= x if needed else xs == x
    points = np.where(reached, ys, np.inf)
    x0, x1, y0, y1 = xs[:, :-1], xs[:, 1:], ys[:, :-1], ys[:, 1:]
    crossed = (np.minimum(x0, x1) < x) & (x < np.maximum(x0, x1))
    t = (x - x0) / np.where(crossed, x1 - x0, 1.0)
    between = np.where(crossed, y0 + t * (y1 - y0), np.inf)
    best = np.minimum(points.min(axis=1), between.min(axis=1))
    return np.where(np.isfinite(best), best, np.nan)
