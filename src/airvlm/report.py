"""Report: what a method did, or why it did nothing. Plain values only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Crop", "NormRatio", "Report", "Sinkhorn"]


@dataclass(frozen=True)
class Crop:
    """One crop of an image, and whether it was used."""

    box: tuple[int, int, int, int]  # left, top, right, bottom, in the image's own pixels
    distance: float  # transport distance between the image's prototypes and the crop
    kept: bool


@dataclass(frozen=True)
class NormRatio:
    """Norm of the change over the norm of the value before, per token."""

    mean: float
    max: float
    layers: Mapping[int, float] = field(default_factory=dict)  # mean per decoder layer; -1 is the decoder's input


@dataclass(frozen=True)
class Sinkhorn:
    """How the transport was solved."""

    iterations: int  # most of any crop
    converged: bool  # all crops


@dataclass(frozen=True)
class Report:
    """What one method did on one batch (`rows` holds a report per row), or on one row of it."""

    method: Mapping[str, Any]  # the method's to_json()
    fired: bool  # it changed something
    reason: str | None = None  # why it did not
    layers: tuple[int, ...] = ()  # decoder layers it acted in; -1 is the decoder's input
    tokens: int = 0  # token positions it changed, over all passes
    passes: int = 0  # forward passes it acted in
    calls: int = 1  # calls of generate that this report sums up
    calls_acted: int | None = None  # of these, those in which it acted; None for a single call
    crops: tuple[tuple[Crop, ...], ...] = ()  # one tuple per image
    norm_ratio: NormRatio | None = None
    sinkhorn: Sinkhorn | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)  # per part of the work; of a batch, not of a row
    rows: tuple[Report, ...] = ()
    parts: tuple[Report, ...] = ()  # one report per method of a composition
    expected: bool = False  # not acting is what its options say (strength 0): nothing to warn about
    images_not_checked: str | None = None  # why `images=` could not be compared with what the model was given
    extra: Mapping[str, Any] = field(default_factory=dict)  # values that only one method has

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values."""
        data: dict[str, Any] = dataclasses.asdict(dataclasses.replace(self, rows=(), parts=()))
        data["rows"] = [row.to_json() for row in self.rows]
        data["parts"] = [part.to_json() for part in self.parts]
        return data

    @property
    def kept(self) -> int:
        """Crops that were used, over all images."""
        return sum(crop.kept for image in self.crops for crop in image)

    @staticmethod
    def merge(reports: Sequence[Report]) -> Report:
        """One report over several calls; counts and seconds are sums, and each call's rows stay in its own report."""
        if len(reports) == 1:
            return reports[0]
        acted = [report for report in reports if report.fired]
        ratios = [(r.norm_ratio, r.tokens) for r in acted if r.norm_ratio is not None]
        weight = sum(tokens for _, tokens in ratios)
        norm_ratio = None
        if ratios:
            mean = sum(ratio.mean * tokens for ratio, tokens in ratios) / weight
            norm_ratio = NormRatio(mean, max(ratio.max for ratio, _ in ratios))
        solved = [report.sinkhorn for report in reports if report.sinkhorn is not None]
        sinkhorn = None
        if solved:
            sinkhorn = Sinkhorn(max(s.iterations for s in solved), all(s.converged for s in solved))
        return Report(
            method=reports[0].method,
            fired=bool(acted),
            reason=None if acted else reports[0].reason,
            layers=tuple(sorted({layer for report in acted for layer in report.layers})),
            tokens=sum(report.tokens for report in reports),
            passes=sum(report.passes for report in reports),
            calls=sum(report.calls for report in reports),
            calls_acted=sum(r.fired if r.calls_acted is None else r.calls_acted for r in reports),
            crops=tuple(image for report in reports for image in report.crops),
            norm_ratio=norm_ratio,
            sinkhorn=sinkhorn,
            seconds={k: sum(r.seconds.get(k, 0.0) for r in reports) for r in reports for k in r.seconds},
            parts=tuple(Report.merge(same) for same in zip(*(r.parts for r in reports), strict=True)),
            expected=all(report.expected for report in reports),
            images_not_checked=next((r.images_not_checked for r in reports if r.images_not_checked is not None), None),
        )

    def __str__(self) -> str:
        if self.parts:
            return "; ".join(map(str, self.parts))
        name = self.method.get("name", "method")
        inner = self.method.get("method")
        if isinstance(inner, Mapping):
            name = f"{name}({inner.get('name', 'method')})"
        if not self.fired:
            return f"{name}: did not act ({self.reason})"
        parts = [f"{name}: acted"]
        if self.layers:
            parts.append("at " + _format_layers(self.layers))
        if self.tokens:
            parts.append(f"on {self.tokens} tokens")
        if len(self.rows) > 1:
            parts.append(f"in {sum(row.fired for row in self.rows)} of {len(self.rows)} rows")
        if self.calls > 1:
            parts.append(f"in {self.calls_acted} of {self.calls} calls")
        if self.crops:
            parts.append(f"with {self.kept} of {sum(len(image) for image in self.crops)} crops")
        if self.norm_ratio is not None:
            parts.append(f"norm ratio {self.norm_ratio.mean:.3f} (max {self.norm_ratio.max:.3f})")
        if self.seconds:
            parts.append(", ".join(f"{k} {v:.3f} s" for k, v in self.seconds.items()))
        if self.images_not_checked is not None:
            parts.append(f"images not checked ({self.images_not_checked})")
        return ", ".join([" ".join(parts[:3]), *parts[3:]])

    def __repr__(self) -> str:
        return f"<Report {self}>"


def _format_layers(layers: Sequence[int]) -> str:
    names = [str(i) for i in layers if i >= 0]
    where = ["the decoder's input"] if -1 in layers else []
    if names:
        where.append(("layers " if len(names) > 1 else "layer ") + ", ".join(names))
    return " and ".join(where)
