"""Tally: what was added, per layer and row, counted on the device and read once at the end.

Knows nothing of models or of what is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from airvlm.report import NormRatio

__all__ = ["Tally"]


@dataclass
class _Sums:
    total: Tensor  # (rows,) sum of the ratios
    peak: Tensor  # (rows,) largest ratio
    count: Tensor  # (rows,) tokens changed
    passes: Tensor  # (rows,) passes with any


class Tally:
    """Norm ratios of changed tokens. A ratio of 0 means that the token was left alone."""

    def __init__(self) -> None:
        self._layers: dict[int, _Sums] = {}

    def add(self, layer: int, ratio: Tensor, rows: int) -> None:
        """ratio (B, R) of one pass, B = rows * copies; no host sync."""
        ratio = ratio.detach().float().reshape(rows, -1)
        changed = ratio > 0
        new = _Sums(ratio.sum(1), ratio.amax(1), changed.sum(1), changed.any(1).long())
        old = self._layers.get(layer)
        if old is not None and old.total.shape == new.total.shape:
            new = _Sums(
                old.total + new.total.to(old.total.device),
                torch.maximum(old.peak, new.peak.to(old.total.device)),
                old.count + new.count.to(old.total.device),
                old.passes + new.passes.to(old.total.device),
            )
        self._layers[layer] = new

    def clear(self) -> None:
        self._layers.clear()

    def rows(self, rows: int) -> list[Counts]:
        """Host values, one for each row."""
        read = {
            layer: [t.tolist() for t in (s.total, s.peak, s.count, s.passes)]
            for layer, s in self._layers.items()
        }
        return [
            Counts({layer: (v[0][r], v[1][r], v[2][r], v[3][r]) for layer, v in read.items() if v[2][r]})
            for r in range(rows)
        ]


@dataclass(frozen=True)
class Counts:
    """One row's, or a batch's."""

    layers: dict[int, tuple[float, float, int, int]]  # layer -> sum, peak, tokens, passes

    @property
    def tokens(self) -> int:
        return sum(v[2] for v in self.layers.values())

    @property
    def passes(self) -> int:
        """Most of any layer: a pass that acts in several layers counts once."""
        return max((v[3] for v in self.layers.values()), default=0)

    @property
    def ratio(self) -> NormRatio | None:
        if not self.tokens:
            return None
        return NormRatio(
            mean=sum(v[0] for v in self.layers.values()) / self.tokens,
            max=max(v[1] for v in self.layers.values()),
            layers={layer: v[0] / v[2] for layer, v in sorted(self.layers.items())},
        )

    @staticmethod
    def joined(rows: list[Counts]) -> Counts:
        """The whole batch."""
        layers: dict[int, tuple[float, float, int, int]] = {}
        for row in rows:
            for layer, v in row.layers.items():
                w = layers.get(layer, (0.0, 0.0, 0, 0))
                layers[layer] = (v[0] + w[0], max(v[1], w[1]), v[2] + w[2], max(v[3], w[3]))
        return Counts(layers)
