"""Report: what a method did, or why it did nothing.

Plain values only: it knows nothing of tensors, models or hooks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Crop", "NormRatio", "Report", "Sinkhorn"]


@dataclass(frozen=True)
class Crop:
    """One crop of an image and what became of it."""

    box: tuple[int, int, int, int]  # left, top, right, bottom, in the image's own pixels
    distance: float  # d_OT between the image's prototypes and the crop
    kept: bool  # whether its tokens entered the memory


@dataclass(frozen=True)
class NormRatio:
    """Norm of what was added over the norm of what was there, per token."""

    mean: float
    max: float
    layers: Mapping[int, float] = field(
        default_factory=dict
    )  # mean by decoder layer; -1 is the decoder's input


@dataclass(frozen=True)
class Sinkhorn:
    """How the transport was solved."""

    iterations: int  # most of any crop
    converged: bool  # all crops


@dataclass(frozen=True)
class Report:
    """What one method did on one batch (`rows` holds a report for each row), or on one row of it."""

    method: Mapping[str, Any]  # the method's to_json()
    fired: bool  # it changed something
    reason: str | None = None  # why it did not
    layers: tuple[int, ...] = ()  # decoder layers it acted in; -1 is the decoder's input
    tokens: int = 0  # token positions it changed, over all passes
    passes: int = 0  # forward passes it acted in
    crops: tuple[tuple[Crop, ...], ...] = ()  # one tuple per image
    norm_ratio: NormRatio | None = None
    sinkhorn: Sinkhorn | None = None
    seconds: Mapping[str, float] = field(
        default_factory=dict
    )  # crops, transport, injection; a batch's, not a row's
    rows: tuple[Report, ...] = ()
    parts: tuple[Report, ...] = ()  # one report a method, of a composition
    silent: bool = False  # not acting is what was configured (strength 0): nothing to warn about
    extra: Mapping[str, Any] = field(default_factory=dict)  # what only one method has to tell

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values."""
        data: dict[str, Any] = dataclasses.asdict(dataclasses.replace(self, rows=(), parts=()))
        data["rows"] = [row.to_json() for row in self.rows]
        data["parts"] = [part.to_json() for part in self.parts]
        return data

    @property
    def kept(self) -> int:
        """Crops that entered the memory, over all images."""
        return sum(crop.kept for image in self.crops for crop in image)

    def __str__(self) -> str:
        name = self.method.get("name", "method")
        if not self.fired:
            return f"{name}: did not act ({self.reason})"
        parts = [f"{name}: acted"]
        if self.layers:
            parts.append("at " + _places(self.layers))
        if self.tokens:
            parts.append(f"on {self.tokens} tokens")
        if self.rows and len(self.rows) > 1:
            parts.append(f"in {sum(row.fired for row in self.rows)} of {len(self.rows)} rows")
        if self.crops:
            total = sum(len(image) for image in self.crops)
            parts.append(f"with {self.kept} of {total} crops")
        if self.norm_ratio is not None:
            parts.append(f"norm ratio {self.norm_ratio.mean:.3f} (max {self.norm_ratio.max:.3f})")
        if self.seconds:
            parts.append(", ".join(f"{k} {v:.3f} s" for k, v in self.seconds.items()))
        return ", ".join([" ".join(parts[:3]), *parts[3:]])


def _places(layers: Sequence[int]) -> str:
    names = [str(i) for i in layers if i >= 0]
    where = ["the decoder's input"] if -1 in layers else []
    if names:
        where.append(("layers " if len(names) > 1 else "layer ") + ", ".join(names))
    return " and ".join(where)
