"""What a method changed, per decoder layer and batch row, counted on the device and read once at the end.

Knows nothing of models or of what is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from airvlm.report import NormRatio

__all__ = ["INPUT", "Changes", "Counts", "norm", "norm_ratio"]

INPUT = -1  # the decoder's input, where a layer would stand


def norm(x: Tensor) -> Tensor:
    """Norm per token in float32: (..., d) -> (..., 1)."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)


def norm_ratio(new: Tensor, old: Tensor) -> Tensor:
    """Norm of what was added over the norm of what was there, per token: (..., d) -> (...)."""
    return (norm(new.float() - old.float()) / norm(old).clamp_min(1e-30)).squeeze(-1)


@dataclass
class _Sums:
    total: Tensor  # (rows,) sum of the ratios
    peak: Tensor  # (rows,) largest ratio
    count: Tensor  # (rows,) tokens changed


class Changes:
    """Changed tokens of one call, by layer and batch row. Nothing is read back before `rows`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """A new call begins."""
        self._layers: dict[int, _Sums] = {}
        self._counted: Tensor | None = None  # (rows,) tokens changed in no layer in particular
        self._passes: Tensor | None = None  # (rows,) passes with any, but for the one under way
        self._now: Tensor | None = None  # (rows,) bool, of the pass under way

    def start_pass(self) -> None:
        """What is added from here on belongs to another forward pass."""
        if self._now is not None:
            self._passes = _added(self._passes, self._now.long())
            self._now = None

    def add(self, layer: int, ratio: Tensor, rows: int) -> None:
        """Norm ratios (B, R) of one pass in one layer, B = rows * copies; 0 where a token was left alone."""
        ratio = ratio.detach().float().reshape(rows, -1)
        changed = ratio > 0
        new = _Sums(ratio.sum(1), ratio.amax(1), changed.sum(1))
        old = self._layers.get(layer)
        if old is not None and old.total.shape == new.total.shape:
            home = old.total.device
            peak = torch.maximum(old.peak, new.peak.to(home))
            new = _Sums(old.total + new.total.to(home), peak, old.count + new.count.to(home))
        self._layers[layer] = new
        self._acted(changed.any(1))

    def count(self, tokens: Tensor) -> None:
        """Tokens (rows,) that one pass changed where no ratio tells how much: attention scores, logits."""
        self._counted = _added(self._counted, tokens)
        self._acted(tokens > 0)

    def _acted(self, rows: Tensor) -> None:
        same = self._now is not None and self._now.shape == rows.shape
        self._now = self._now | rows.to(self._now.device) if self._now is not None and same else rows

    def rows(self, rows: int) -> list[Counts]:
        """Host values, one for each batch row."""
        self.start_pass()
        none = [0] * rows
        read = {n: [t.tolist() for t in (s.total, s.peak, s.count)] for n, s in self._layers.items()}
        counted = none if self._counted is None else self._counted.tolist()
        passes = none if self._passes is None else self._passes.tolist()
        return [
            Counts(
                {n: (v[0][r], v[1][r], v[2][r]) for n, v in read.items() if v[2][r]}, counted[r], passes[r]
            )
            for r in range(rows)
        ]


def _added(old: Tensor | None, new: Tensor) -> Tensor:
    """Their sum; the new alone where a call with another number of rows began without being announced."""
    return new if old is None or old.shape != new.shape else old + new.to(old.device)


@dataclass(frozen=True)
class Counts:
    """One batch row's, or a whole batch's."""

    layers: dict[int, tuple[float, float, int]] = field(default_factory=dict)  # layer -> sum, peak, tokens
    elsewhere: int = 0  # tokens changed in no layer in particular
    passes: int = 0  # forward passes that changed any

    @property
    def tokens(self) -> int:
        return self.elsewhere + sum(v[2] for v in self.layers.values())

    @property
    def ratio(self) -> NormRatio | None:
        tokens = sum(v[2] for v in self.layers.values())
        if not tokens:
            return None
        return NormRatio(
            mean=sum(v[0] for v in self.layers.values()) / tokens,
            max=max(v[1] for v in self.layers.values()),
            layers={layer: v[0] / v[2] for layer, v in sorted(self.layers.items())},
        )

    @staticmethod
    def joined(rows: list[Counts]) -> Counts:
        """The whole batch: its rows share their passes."""
        layers: dict[int, tuple[float, float, int]] = {}
        for row in rows:
            for layer, v in row.layers.items():
                w = layers.get(layer, (0.0, 0.0, 0))
                layers[layer] = (v[0] + w[0], max(v[1], w[1]), v[2] + w[2])
        passes = max((row.passes for row in rows), default=0)
        return Counts(layers, sum(row.elsewhere for row in rows), passes)
