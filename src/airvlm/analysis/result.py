"""What an analysis found: numbers with n and intervals, a drawing, and what a user should be warned of.

Knows nothing of models.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from airvlm.storage.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Analysis", "auc", "auc_interval", "canvas", "interval", "plain"]

DRAWS = 1000


@dataclass(frozen=True)
class Analysis:
    """One question answered."""

    name: str
    question: str  # what was asked, in a sentence
    finding: str  # what the numbers say, in a sentence or two
    numbers: dict[str, Any]
    figure: Figure = field(repr=False)
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        told = {"analysis": self.name, "question": self.question, "finding": self.finding}
        return {**told, "warnings": list(self.warnings), **plain(self.numbers)}

    def save(self, folder: Path) -> tuple[Path, Path]:
        """NAME.png and NAME.json in the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        image, numbers = folder / f"{self.name}.png", folder / f"{self.name}.json"
        self.figure.savefig(image, dpi=130, bbox_inches="tight")
        write_atomically(numbers, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        return image, numbers


def canvas(rows: int, columns: int, size: tuple[float, float], **more: Any) -> tuple[Figure, Any]:
    """A figure of its own, outside pyplot's list of open ones, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    return figure, figure.subplots(rows, columns, **more)


def plain(value: Any) -> Any:
    """JSON-ready: numbers rounded, what is not finite as null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float | np.floating):
        return round(float(value), 5) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def interval(values: Any, groups: Any | None = None, seed: int = 0) -> dict[str, float]:
    """The mean with its 95 % interval, resampled over groups (images) where they are given."""
    x = np.asarray(values, dtype=float)
    x = x[np.isfinite(x)] if groups is None else x
    if groups is not None:
        x = np.array([x[np.asarray(groups) == g].mean() for g in np.unique(groups)])
    if not len(x):
        return {"value": math.nan, "low": math.nan, "high": math.nan, "n": 0}
    rng = np.random.default_rng(seed)
    means = x[rng.integers(0, len(x), (DRAWS, len(x)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"value": float(x.mean()), "low": float(low), "high": float(high), "n": len(x)}


def auc(low: NDArray[Any], high: NDArray[Any]) -> float:
    """How often a member of `low` lies below a member of `high`, ties counting half: 0.5 tells nothing apart."""
    low, high = np.ravel(low), np.ravel(high)
    if not len(low) or not len(high):
        return math.nan
    order = np.sort(high)
    below = len(high) - np.searchsorted(order, low, side="right")
    ties = np.searchsorted(order, low, side="right") - np.searchsorted(order, low, side="left")
    return float((below + 0.5 * ties).mean() / len(high))


def auc_interval(low: list[Any], high: list[Any], seed: int = 0) -> dict[str, float]:
    """AUC of distances that come in groups (one list an image), with the interval of drawing images anew."""
    rng = np.random.default_rng(seed)
    n = len(low)
    drawn = []
    for _ in range(200):
        chosen = rng.integers(0, n, n)
        drawn.append(auc(np.concatenate([low[i] for i in chosen]), np.concatenate([high[i] for i in chosen])))
    a, b = np.nanpercentile(drawn, [2.5, 97.5])
    return {
        "value": auc(np.concatenate(low), np.concatenate(high)),
        "low": float(a),
        "high": float(b),
        "n": n,
    }
