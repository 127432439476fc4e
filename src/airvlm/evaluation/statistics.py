"""What a difference between two methods is worth: paired bootstrap, McNemar, granularity, changed answers.

All methods answer the same items, so everything is paired: one set of draws of images serves every method, and a
difference is taken draw by draw. Where there are too few images to draw from, there is no interval, and it says so.
Knows nothing about models or where answers come from; numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from airvlm.tasks.base import Ratio, Scores

__all__ = ["Draws", "Estimate", "Sample", "attainable", "changed", "mcnemar"]

Array = NDArray[np.float64]
FEW = 10  # images; resamples of fewer repeat each other, and their percentiles cover far less than they say


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval and standard error, both of the bootstrap over images.

    They are nan where the images cannot tell them: see `trusted`.
    """

    value: float
    low: float
    high: float
    error: float  # standard error
    n: int  # items that count

    @classmethod
    def of(
        cls,
        value: float,
        draws: Array,
        n: int,
        level: float = 0.95,
        *,
        images: int | None = None,  # that were drawn from; None: enough
        difference: bool = True,  # a figure without any spread (all right, none right) has no known error
    ) -> Estimate:
        drawn = draws[np.isfinite(draws)]  # a draw may hold no mention at all, and then has no rate
        few = images is not None and images < FEW
        if not len(drawn) or few or not (difference or np.ptp(drawn)):
            return cls(value, math.nan, math.nan, math.nan, n)
        low, high = np.percentile(drawn, [50 * (1 - level), 50 * (1 + level)])
        return cls(value, float(low), float(high), float(drawn.std()), n)

    @property
    def trusted(self) -> bool:
        """Whether there is an interval at all."""
        return math.isfinite(self.error)

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out 0, for an estimate of a difference."""
        return bool(self.low > 0 or self.high < 0)


class Draws:
    """How often each of B resamples holds each image: the same for every method, so that they stay paired.

    Items about one image are drawn together: their answers are not independent.
    """

    def __init__(self, groups: Sequence[str], draws: int = 2000, seed: int = 0) -> None:
        self.groups = list(dict.fromkeys(groups))
        G = len(self.groups)
        rng = np.random.default_rng(seed)
        self.weights: Array = (
            rng.multinomial(G, np.full(G, 1 / G), size=draws).astype(np.float64)  # (B, G)
            if G
            else np.zeros((draws, 0))
        )


class Sample:
    """One method's scores on one task, on all items and on every draw."""

    def __init__(self, scores: Scores, draws: Draws) -> None:
        self.scores = scores
        self.draws = draws
        self._metrics = scores.metrics
        self._by_image = _by_image(scores, draws.groups)
        self._drawn: dict[str, Array] = {}

    @property
    def images(self) -> int:
        """How many units there are to draw from."""
        return len(self.draws.groups)

    def value(self, metric: str) -> float:
        return self._metrics[metric]

    def drawn(self, metric: str) -> Array:
        """The metric on every draw, (B,)."""
        if metric not in self._drawn:
            self._drawn[metric] = self._by_image.resampled(metric, self.draws.weights)
        return self._drawn[metric]

    def estimate(self, metric: str) -> Estimate:
        return Estimate.of(self.value(metric), self.drawn(metric), self.scores.n, images=self.images, difference=False)

    def difference(self, baseline: Sample, metric: str) -> Estimate:
        """This minus the baseline, draw by draw."""
        value = self.value(metric) - baseline.value(metric)
        return Estimate.of(value, self.drawn(metric) - baseline.drawn(metric), self.scores.n, images=self.images)


def _by_image(scores: Scores, images: Sequence[str]) -> Scores:
    """Counts added up image by image: resampling then works on as few rows as there are units."""
    row = {image: g for g, image in enumerate(images)}
    names = scores.names
    sums = np.zeros((len(images), len(names)))
    np.add.at(sums, [row[image] for image in scores.groups], scores.matrix)
    counts = [dict(zip(names, map(float, values))) for values in sums]
    return replace(scores, per_item=counts, groups=list(images), details=[])


def mcnemar(one: Scores, other: Scores, metric: str) -> float | None:
    """Exact two-sided McNemar p of a metric that is a share of items; None for a metric that is not.

    Counts the items on which exactly one of the two methods hits: under no difference a fair coin says which.
    """
    formula = one.definitions[metric].formula
    if not isinstance(formula, Ratio):
        return None
    pairs = []
    for a, b in zip(one.per_item, other.per_item, strict=True):
        counted = (a.get(formula.denominator, 0.0), b.get(formula.denominator, 0.0))
        hits = (a.get(formula.numerator, 0.0), b.get(formula.numerator, 0.0))
        if any(value not in (0.0, 1.0) for value in (*counted, *hits)):
            return None  # mentions, words, points: not one yes or no an item
        if counted == (1.0, 1.0):
            pairs.append(hits)
    gained = sum(b < a for a, b in pairs)
    lost = sum(a < b for a, b in pairs)
    n, k = gained + lost, min(gained, lost)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)


def attainable(value: float, n: int, decimals: int = 2, scale: float = 100.0) -> bool:
    """Whether a published share can be k of n at all, given the decimals it is printed with.

    61.92 % of 293 cannot: 181 of them are 61.77 %, 182 are 62.12 %.
    """
    if n < 1:
        return False
    k = round(value / scale * n)
    half = 0.5 * 10.0**-decimals + 1e-9  # both ways of rounding a half are met in print
    return 0 <= k <= n and abs(scale * k / n - value) <= half


def changed(one: Sequence[str | None], other: Sequence[str | None]) -> int:
    """Answers that are not the same text, of those that both gave."""
    return sum(a != b for a, b in zip(one, other, strict=True) if a is not None and b is not None)
