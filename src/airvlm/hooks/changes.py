"""What a method changed, by decoder layer and batch row: counted on the device, and read once at the end.

Knows nothing of methods, of passes or of how a change is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from airvlm.report import NormRatio

__all__ = ["Changes", "Counts"]


@dataclass
class _Sums:
    total: Tensor  # (rows,) sum of the ratios
    peak: Tensor  # (rows,) largest ratio
    count: Tensor  # (rows,) tokens changed


class Changes:
    """Changed tokens of one call, by layer and batch row. Nothing is read back before `read`."""

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

    def read(self, rows: int, more: Mapping[str, Tensor]) -> tuple[list[Counts], dict[str, list[float]]]:
        """Host values, one for each batch row, and those of further tensors (rows,): one read-back for all."""
        self.start_pass()
        sums = {n: (s.total, s.peak, s.count) for n, s in self._layers.items()}
        others = {"counted": self._counted, "passes": self._passes}
        tensors: dict[tuple[str, int | str | None], Tensor] = {}
        tensors |= {(name, n): t for n, own in sums.items() for name, t in zip(_SUMS, own, strict=True)}
        tensors |= {(name, None): t for name, t in others.items() if t is not None}
        tensors |= {(name, "more"): t for name, t in more.items()}
        host = _together(tensors)
        none = [0.0] * rows
        counted, passes = (host.get((name, None), none) for name in others)
        counts = [
            Counts(
                {
                    n: (host["total", n][r], host["peak", n][r], int(host["count", n][r]))
                    for n in sums
                    if host["count", n][r]
                },
                int(counted[r]),
                int(passes[r]),
            )
            for r in range(rows)
        ]
        return counts, {name: host[name, "more"] for name in more}


_SUMS = ("total", "peak", "count")


def _together(tensors: Mapping[Any, Tensor]) -> dict[Any, list[float]]:
    """Small tensors as lists, from whatever devices they lie on, with one read-back; counts are exact to 2**24."""
    if not tensors:
        return {}
    home = next(iter(tensors.values())).device
    flat = torch.cat([t.detach().flatten().float().to(home) for t in tensors.values()]).tolist()
    found, start = {}, 0
    for name, t in tensors.items():
        found[name] = flat[start : start + t.numel()]
        start += t.numel()
    return found


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
