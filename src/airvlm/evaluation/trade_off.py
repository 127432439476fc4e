"""At equal recall: a method against what merely saying less, or merely saying no, would have bought.

Ending captions earlier lowers CHAIR, and answering "no" more often raises accuracy wherever a model says "yes" too
readily. A bias on one logit draws that curve; what a method is worth is its distance from it, at its own recall
(or yes-ratio). Knows the names of the metrics that trade, and nothing about models or answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airvlm.evaluation.statistics import Array, Estimate, Sample
from airvlm.tasks.base import Scores

__all__ = ["TRADE_OFFS", "AtEqual", "TradeOff", "against_curve", "trade_off_of"]


@dataclass(frozen=True)
class TradeOff:
    """Two kinds of metrics that a trivial control moves together."""

    x: str  # what must be equal for a fair comparison
    ys: tuple[str, ...]  # what is compared there
    control: str  # the method that draws the curve, by one bias
    biases: tuple[float, ...]  # where the curve is drawn; 0 is vanilla and always part of it

    def method(self, bias: float) -> str:
        """The control as `--method` spells it."""
        return f"{self.control}:bias={bias:g}"


TRADE_OFFS = (
    TradeOff("recall", ("CHAIR_S", "CHAIR_I"), "shorter", (-1.0, 1.0, 2.0, 3.0, 4.0)),
    TradeOff("Cover", ("CHAIR", "Hal"), "shorter", (-1.0, 1.0, 2.0, 3.0, 4.0)),
    TradeOff("yes_ratio", ("accuracy",), "yesno", (-2.0, -1.0, -0.5, 0.5, 1.0)),
)


def trade_off_of(scores: Scores) -> TradeOff | None:
    """The trade-off that a task's metrics have, if any."""
    names = set(scores.definitions)
    return next((t for t in TRADE_OFFS if t.x in names and names.issuperset(t.ys)), None)


@dataclass(frozen=True)
class AtEqual:
    """A method's distance from the control's curve."""

    x: str
    y: str
    at: float  # the method's own x, where it is compared
    expected: float  # the curve there
    difference: Estimate  # the method minus the curve, paired over pictures
    inside: bool  # False: the curve does not reach the method's x, and its nearest end was taken


def against_curve(method: Sample, curve: Sequence[Sample], x: str, y: str) -> AtEqual:
    """The method minus the curve at the method's own x.

    Every draw of pictures recomputes the method *and* the whole curve, so that the interval holds the doubt of both.
    """
    if len(curve) < 2:
        raise ValueError("a curve needs two points: vanilla and at least one bias")
    at = method.value(x)
    xs = np.array([[point.value(x) for point in curve]])
    ys = np.array([[point.value(y) for point in curve]])
    expected = float(_interpolate(np.array([at]), xs, ys)[0])
    drawn_xs = np.stack([point.drawn(x) for point in curve], axis=1)  # (B, P)
    drawn_ys = np.stack([point.drawn(y) for point in curve], axis=1)  # (B, P)
    drawn = method.drawn(y) - _interpolate(method.drawn(x), drawn_xs, drawn_ys)  # (B,)
    return AtEqual(
        x,
        y,
        at,
        expected,
        Estimate.of(method.value(y) - expected, drawn, method.scores.n),
        inside=bool(math.isfinite(at) and xs.min() <= at <= xs.max()),
    )


def _interpolate(x: Array, xs: Array, ys: Array) -> Array:
    """Piecewise linear, a curve of its own in every row: x (B,), xs and ys (B, P) in any order -> (B,).

    Beyond the ends the curve is taken as flat: extrapolating between two near points would invent a slope.
    """
    order = np.argsort(xs, axis=1, kind="stable")
    xs, ys = np.take_along_axis(xs, order, 1), np.take_along_axis(ys, order, 1)
    left = np.clip((xs <= x[:, None]).sum(axis=1) - 1, 0, xs.shape[1] - 2)[:, None]
    x0, x1 = (np.take_along_axis(xs, left + i, 1)[:, 0] for i in (0, 1))
    y0, y1 = (np.take_along_axis(ys, left + i, 1)[:, 0] for i in (0, 1))
    width = x1 - x0
    t = np.where(width > 0, (x - x0) / np.where(width > 0, width, 1.0), 0.5)
    return np.asarray(y0 + np.clip(t, 0.0, 1.0) * (y1 - y0))
