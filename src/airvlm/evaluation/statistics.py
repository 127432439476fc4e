"""What a difference between two methods is worth: paired bootstrap over images, and McNemar's test.

All methods answer the same items, so everything is paired: one set of draws of images serves every method, and a
difference is taken draw by draw. With too few images there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from airvlm.tasks.base import Ratio, Scores

__all__ = ["Draws", "Estimate", "Sample", "count_changed", "mcnemar"]

Array = NDArray[np.float64]
FEW = 10  # resamples of fewer images repeat each other, and their percentiles cover far less than they say


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval and standard error, from a bootstrap over images; nan if they are not known."""

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
        images: int | None = None,
        difference: bool = True,
    ) -> Estimate:
        """An estimate from its bootstrap draws.

        Args:
            value: the figure on all items.
            draws: (B,) the figure on every resample.
            n: items that count.
            level: of the interval.
            images: the number of images that were drawn from; None if there are enough.
            difference: a difference without spread is exactly 0; a share without spread has no known error.
        """
        drawn = draws[np.isfinite(draws)]  # a draw without any mention has no rate
        few = images is not None and images < FEW
        if not len(drawn) or few or not (difference or np.ptp(drawn)):
            return cls(value, math.nan, math.nan, math.nan, n)
        low, high = np.percentile(drawn, [50 * (1 - level), 50 * (1 + level)])
        return cls(value, float(low), float(high), float(drawn.std()), n)

    @property
    def trusted(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.error)

    @property
    def significant(self) -> bool:
        """Whether the interval of a difference excludes 0."""
        return bool(self.low > 0 or self.high < 0)

    def images_needed(self, images: int, difference: float) -> int:
        """About how many images, of which this estimate has so many, would make such a difference significant."""
        return max(FEW, math.ceil(images * (1.96 * self.error / difference) ** 2)) if self.trusted else FEW

    def to_json(self) -> dict[str, float | int | None]:
        """{"value", "low", "high", "n"}; null for what is not finite."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        return {**{name: v if math.isfinite(v) else None for name, v in numbers.items()}, "n": self.n}


class Draws:
    """How often each of B resamples holds each image: the same for every method, so that they stay paired.

    Items about one image are drawn together, because their answers are not independent.
    """

    def __init__(self, groups: Sequence[str], draws: int = 2000, seed: int = 0) -> None:
        self.groups = list(dict.fromkeys(groups))
        G = len(self.groups)
        rng = np.random.default_rng(seed)
        counts = rng.multinomial(G, np.full(G, 1 / G), size=draws) if G else np.zeros((draws, 0))
        self.weights: Array = counts.astype(np.float64)  # (B, G)


class Sample:
    """One method's scores on one task, on all items and on every draw."""

    def __init__(self, scores: Scores, draws: Draws) -> None:
        self.scores = scores
        self.draws = draws
        self._metrics = scores.metrics
        self._by_image = _sum_by_image(scores, draws.groups)
        self._drawn: dict[str, Array] = {}

    @property
    def images(self) -> int:
        return len(self.draws.groups)

    def value(self, metric: str) -> float:
        return self._metrics[metric]

    def resample(self, metric: str) -> Array:
        """The metric on every draw, (B,)."""
        if metric not in self._drawn:
            self._drawn[metric] = self._by_image.resample(metric, self.draws.weights)
        return self._drawn[metric]

    def estimate(self, metric: str) -> Estimate:
        return Estimate.of(
            self.value(metric), self.resample(metric), self.scores.n, images=self.images, difference=False
        )

    def difference(self, baseline: Sample, metric: str) -> Estimate:
        """This minus the baseline, draw by draw."""
        value = self.value(metric) - baseline.value(metric)
        return Estimate.of(value, self.resample(metric) - baseline.resample(metric), self.scores.n, images=self.images)


def _sum_by_image(scores: Scores, images: Sequence[str]) -> Scores:
    """Counts summed per image, so that resampling works on as few rows as there are units."""
    row = {image: g for g, image in enumerate(images)}
    names = scores.names
    sums = np.zeros((len(images), len(names)))
    np.add.at(sums, [row[image] for image in scores.groups], scores.matrix)
    counts = [dict(zip(names, map(float, values))) for values in sums]
    return replace(scores, per_item=counts, groups=list(images), details=[])


def mcnemar(one: Scores, other: Scores, metric: str) -> float | None:
    """Exact two-sided McNemar p of a metric that is a share of items; None for other metrics.

    Counts the items on which exactly one of the two methods hits: without a difference a fair coin says which.
    """
    formula = one.definitions[metric].formula
    if not isinstance(formula, Ratio):
        return None
    pairs = []
    for a, b in zip(one.per_item, other.per_item, strict=True):
        counted = (a.get(formula.denominator, 0.0), b.get(formula.denominator, 0.0))
        hits = (a.get(formula.numerator, 0.0), b.get(formula.numerator, 0.0))
        if any(value not in (0.0, 1.0) for value in (*counted, *hits)):
            return None  # mentions, words, points: not one yes or no per item
        if counted == (1.0, 1.0):
            pairs.append(hits)
    gained = sum(b < a for a, b in pairs)
    lost = sum(a < b for a, b in pairs)
    n, k = gained + lost, min(gained, lost)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)


def count_changed(one: Sequence[str | None], other: Sequence[str | None]) -> int:
    """How many answers are not the same text, of those that both gave."""
    return sum(a != b for a, b in zip(one, other, strict=True) if a is not None and b is not None)
