"""One task of an evaluation: its answers by method, the scores that follow, and whether they can be trusted.

    task.scores("air").metrics      # {"CHAIR_S": 16.5, ...}
    task.records("air")             # one Record (or None) an item, in the items' order

Needs no model; knows nothing about how answers are made or shown, nor about the folder they stand in (results.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from airvlm.evaluation.plan import Asked, image_digest
from airvlm.evaluation.statistics import Draws, Estimate, Sample, changed
from airvlm.evaluation.store import Json, Record, Store, digest
from airvlm.evaluation.trade_off import AtEqual, TradeOff, against_curve, trade_off_of
from airvlm.tasks.base import Item, Scores
from airvlm.tiny import BundledScene

__all__ = ["VANILLA", "TaskResults"]

VANILLA = "vanilla"
TOLERATED = 0.01  # share of answers that may fail or be unreadable before a task counts as failed


@dataclass
class TaskResults:
    """One task's answers and scores."""

    asked: Asked
    methods: dict[str, Json | None]  # label -> configuration, vanilla first
    curve: dict[str, Json]  # label -> configuration of the controls that draw the curve
    answers: dict[tuple[str, str], Record]  # (configuration's digest, item) -> record
    matched: dict[str, Json] = field(default_factory=dict)  # control -> itself at a matched strength
    _scores: dict[str, Scores] = field(default_factory=dict)
    _samples: dict[str, Sample] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        asked: Asked,
        methods: dict[str, Json | None],
        curve: dict[str, Json],
        store: Store,
        fingerprint: str,
    ) -> TaskResults:
        """What a store holds of a task; where versions differ, the latest answer counts.

        Splits may count their items alike, so an answer must be about the item's own image; only where that image is
        no longer there to compare does the id alone tell.
        """
        images = {item.id: image_digest(item.image) for item in asked.items}
        gone = {item.id for item in asked.items if _gone(item)}
        answers: dict[tuple[str, str], Record] = {}
        # id of a method -> itself, so that it lives, and its digest: a store holds each method once
        digests: dict[int, tuple[Json | None, str]] = {}
        for record in store:
            question = record.question
            if (
                question.task != asked.name
                or question.generation != asked.generation
                or question.fingerprint != fingerprint
            ):
                continue
            own = images.get(question.item)
            if question.image != own and question.item not in gone:
                continue
            method = question.method
            if id(method) not in digests:
                digests[id(method)] = (method, digest(method))
            key = (digests[id(method)][1], question.item)
            held = answers.get(key)
            if question.image == own or held is None or held.question.image != own:
                answers[key] = record
        return cls(asked, methods, curve, answers)

    @property
    def items(self) -> list[Item]:
        return self.asked.items

    def configuration(self, label: str) -> Json | None:
        """Of a method, of a control that draws the curve, or of one at a matched strength."""
        if label in self.methods or label in self.curve:
            return self.methods[label] if label in self.methods else self.curve[label]
        found: Json = next(m["method"] for m in self.matched.values() if m["label"] == label)
        return found

    def records(self, label: str) -> list[Record | None]:
        """One record an item, in order; None where nothing has been answered yet."""
        key = digest(self.configuration(label))
        return [self.answers.get((key, item.id)) for item in self.items]

    def texts(self, label: str) -> list[str | None]:
        return [None if record is None else record.text for record in self.records(label)]

    def scores(self, label: str) -> Scores:
        if label not in self._scores:
            self._scores[label] = self.asked.task.score(self.items, self.texts(label))
        return self._scores[label]

    def sample(self, label: str) -> Sample:
        """The scores with their bootstrap; the draws are the same for all methods of the task."""
        if label not in self._samples:
            scores = self.scores(label)
            if not hasattr(self, "_draws"):
                self._draws = Draws(scores.groups)
            self._samples[label] = Sample(scores, self._draws)
        return self._samples[label]

    @property
    def trade_off(self) -> TradeOff | None:
        """What a trivial control can buy in this task."""
        return trade_off_of(self.scores(VANILLA))

    def curve_labels(self) -> list[str]:
        """Vanilla and the controls that are fully answered, in the order of their bias."""
        drawn = [label for label in self.curve if all(r is not None for r in self.records(label))]
        biases = {VANILLA: 0.0} | {label: float(self.curve[label].get("bias", 0.0)) for label in drawn}
        return sorted(biases, key=lambda label: biases[label])

    def curve_samples(self) -> list[Sample]:
        """The points of the curve, in the order of their bias."""
        return [self.sample(label) for label in self.curve_labels()]

    def at_equal(self, label: str) -> dict[str, AtEqual]:
        """The method against the curve, by metric; empty for vanilla, which is the curve, and without a curve."""
        trade, points = self.trade_off, self.curve_labels()
        if trade is None or len(points) < 2 or label == VANILLA:
            return {}
        curve, vanilla = [self.sample(point) for point in points], points.index(VANILLA)
        return {y: against_curve(self.sample(label), curve, trade.x, y, vanilla) for y in trade.ys}

    def figures(self, label: str) -> dict[str, Estimate]:
        """Every metric of a method, and its distances from the curve as `METRIC_at_equal_X`."""
        sample = self.sample(label)
        found = {name: sample.estimate(name) for name in sample.scores.definitions}
        return found | {f"{y}_at_equal_{at.x}": at.difference for y, at in self.at_equal(label).items()}

    def figures_json(self, label: str) -> Json:
        """{metric: {"value", "low", "high", "n"}}; what is not finite, or has no interval, is null."""
        return {
            name: {
                **{key: _finite(getattr(e, key)) for key in ("value", "low", "high")},
                "n": e.n,
            }
            for name, e in self.figures(label).items()
        }

    # -- whether it can be trusted

    def failed(self, label: str) -> int:
        """Items that raised; their records say why."""
        return sum(record is not None and record.error is not None for record in self.records(label))

    def unanswered(self, label: str) -> int:
        return sum(record is None for record in self.records(label))

    def fired(self, label: str) -> int | None:
        """Answers in which the method acted; None where no report says."""
        reports = [record.report for record in self.records(label) if record is not None and record.report]
        return sum(bool(report.get("fired")) for report in reports) if reports else None

    def changed(self, label: str) -> int:
        """Answers that differ from vanilla's."""
        return changed(self.texts(label), self.texts(VANILLA))

    def idle(self, label: str) -> str | None:
        """Why the method never acted in this task; None where it did, or where no report says."""
        if self.fired(label) != 0:
            return None
        reports = [record.report for record in self.records(label) if record is not None and record.report]
        return next((str(report["reason"]) for report in reports if report.get("reason")), "no reason given")

    def problems(self) -> list[str]:
        """Why this task's figures should not be trusted, one line each; empty when they can be."""
        found = []
        n = len(self.items)
        others = sum(isinstance(i.image, BundledScene) and not i.image.file.exact for i in self.items)
        if others > TOLERATED * n:
            found.append(f"{self.asked.key}: {others} of {n} scenes are not drawn here as for published figures")
        for label in (*self.methods, *self.curve):
            records = self.records(label)
            if all(record is None for record in records):
                found.append(f"{self.asked.key}, {label}: nothing answered")
                continue
            errors = [record.error for record in records if record is not None and record.error]
            if len(errors) > TOLERATED * n:
                found.append(f"{self.asked.key}, {label}: {len(errors)} of {n} failed, first with {errors[0]}")
            scores = self.scores(label)
            if scores.unparsed > TOLERATED * n:
                found.append(f"{self.asked.key}, {label}: {scores.unparsed} of {n} answers could not be read")
            unjudged = scores.missing - len(errors) - self.unanswered(label)
            if unjudged > TOLERATED * n:
                found.append(f"{self.asked.key}, {label}: {unjudged} of {n} answers have no verdict")
        return found


def _gone(item: Item) -> bool:
    return isinstance(item.image, str | Path) and "://" not in str(item.image) and not Path(item.image).is_file()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
