"""What a calibration found: settings stage by stage, what is recommended, and why.

Knows nothing of how settings are chosen or answered (calibration.py), nor of how results are shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from airvlm.evaluation.candidates import Candidate
from airvlm.evaluation.plan import ModelFacts
from airvlm.evaluation.statistics import Array, Estimate
from airvlm.evaluation.store import Json
from airvlm.evaluation.task_results import TaskResults

__all__ = ["Calibration", "Found", "Stage"]


@dataclass(frozen=True)
class Found:
    """What a setting did on the items of one stage."""

    candidate: Candidate
    gain: Estimate  # points better than the control's curve at equal recall or yes-ratio, mean over tasks
    draws: Array = field(repr=False)  # (B,) the gain on every resample
    figures: Mapping[str, Mapping[str, float]]  # task -> metric -> value
    recall_change: Estimate | None  # points of recall against vanilla; None without a captioning task
    changed: float  # share of answers that differ from vanilla's
    fired: float  # share of answers in which it acted

    def loses_recall(self, limit: float) -> bool:
        """Whether recall is worse than vanilla's by more than the limit."""
        return self.recall_change is not None and self.recall_change.value < -limit

    def surely_loses_recall(self, limit: float) -> bool:
        return self.recall_change is not None and self.recall_change.high < -limit

    def to_json(self) -> Json:
        return {
            "method": self.candidate.label,
            "gain": _plain(self.gain),
            "recall_change": None if self.recall_change is None else _plain(self.recall_change),
            "figures": {task: dict(values) for task, values in self.figures.items()},
            "changed": round(self.changed, 4),
            "fired": round(self.fired, 4),
        }


def _plain(estimate: Estimate) -> Json:
    numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {k: round(v, 4) if math.isfinite(v) else None for k, v in numbers.items()} | {"n": estimate.n}


@dataclass(frozen=True)
class Stage:
    """Settings measured on the same items."""

    split: str
    items: Mapping[str, int]  # task -> items
    found: tuple[Found, ...]  # best first
    tasks: Mapping[str, TaskResults] = field(repr=False)

    def to_json(self) -> Json:
        return {"split": self.split, "items": dict(self.items), "settings": [f.to_json() for f in self.found]}


@dataclass(frozen=True)
class Calibration:
    """The stages, and what follows from them."""

    model: ModelFacts
    stages: tuple[Stage, ...]  # on the calibration split
    validation: Stage | None  # the survivors on the validation split; None where nothing survived
    max_recall_loss: float
    answers: int  # given for it, those known before not counted
    seconds: float

    @property
    def tried(self) -> int:
        """Settings that were tried, those beside a companion too."""
        return len({found.candidate.label for stage in self.stages for found in stage.found})

    @property
    def promised(self) -> Found | None:
        """The setting that was best on the calibration split."""
        return self.stages[-1].found[0] if self.validation is not None else None

    @property
    def measured(self) -> Found | None:
        """The same setting on the validation split."""
        if self.validation is None or self.promised is None:
            return None
        label = self.promised.candidate.label
        return next(f for f in self.validation.found if f.candidate.label == label)

    @property
    def recommended(self) -> Candidate | None:
        """What to use; None for the model as it is, where nothing beats it beyond its interval."""
        found = self.measured
        if found is None or not found.gain.low > 0 or found.surely_loses_recall(self.max_recall_loss):
            return None
        return found.candidate

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        found, promised = self.measured, self.promised
        if found is None or promised is None:
            return "no setting could gain anything and keep recall within the limit on the calibration split"
        told = (
            f"{found.candidate.label} gains {found.gain.value:.2f} [{found.gain.low:.2f}, {found.gain.high:.2f}] "
            f"points on the validation split (n = {found.gain.n}); as the best of {self.tried} settings the "
            f"calibration split had promised {promised.gain.value:.2f}"
        )
        if self.recommended is not None:
            return told
        if not found.gain.low > 0:
            return f"nothing beats vanilla beyond its interval: {told}"
        return f"recall falls by more than {self.max_recall_loss:g}: {told}"

    def to_json(self) -> Json:
        """What `Method.load` and `--method @calibration.json` read, and everything that led to it."""
        chosen = self.recommended
        return {
            "version": 1,
            "method": None if chosen is None else chosen.method.to_json(),
            "spelled": "vanilla" if chosen is None else chosen.label,
            "model": self.model.to_json(),
            "reason": self.reason,
            "settings_tried": self.tried,
            "max_recall_loss": self.max_recall_loss,
            "answers": self.answers,
            "seconds": round(self.seconds, 1),
            "calibration": [stage.to_json() for stage in self.stages],
            "validation": None if self.validation is None else self.validation.to_json(),
        }
