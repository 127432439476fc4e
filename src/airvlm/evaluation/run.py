"""A run: one model's answers in one folder, task by task and method by method, and the scores that follow.

    run = Run.load("runs/tiny")
    run.tasks["tiny-chair"].scores("air").metrics      # {"CHAIR_S": 16.5, ...}
    run.tasks["tiny-chair"].records("air")             # one Record (or None) an item, in the items' order

The folder holds answers.jsonl (store.py) and run.json, which says what was asked: model, tasks, methods, and the
controls that draw each task's curve. Needs no model; knows nothing about how answers are made or shown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airvlm.evaluation.manifest import MANIFEST
from airvlm.evaluation.plan import Asked
from airvlm.evaluation.statistics import Draws, Sample, changed
from airvlm.evaluation.store import Json, Record, Store, StoreError, digest
from airvlm.evaluation.trade_off import AtEqual, TradeOff, against_curve, trade_off_of
from airvlm.tasks import load_task
from airvlm.tasks.base import Item, Scores

__all__ = ["VANILLA", "Run", "TaskRun"]

VANILLA = "vanilla"
TOLERATED = 0.01  # share of answers that may fail or be unreadable before a run counts as failed


@dataclass
class TaskRun:
    """One task of a run."""

    asked: Asked
    methods: dict[str, Json | None]  # label -> configuration, vanilla first
    curve: dict[str, Json]  # label -> configuration of the controls that draw the curve
    answers: dict[tuple[str, str], Record]  # (configuration's digest, item) -> record
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
    ) -> TaskRun:
        """What a store holds of a task; where versions differ, the latest answer counts."""
        answers = {
            (digest(record.question.method), record.question.item): record
            for record in store
            if record.question.task == asked.name
            and record.question.generation == asked.generation
            and record.question.fingerprint == fingerprint
        }
        return cls(asked, methods, curve, answers)

    @property
    def items(self) -> list[Item]:
        return self.asked.items

    def records(self, label: str) -> list[Record | None]:
        """One record an item, in order; None where nothing has been answered yet."""
        configuration = self.methods[label] if label in self.methods else self.curve[label]
        key = digest(configuration)
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
                self._draws = Draws(scores.pictures)
            self._samples[label] = Sample(scores, self._draws)
        return self._samples[label]

    @property
    def trade_off(self) -> TradeOff | None:
        """What a trivial control can buy in this task."""
        return trade_off_of(self.scores(VANILLA))

    def curve_samples(self) -> list[Sample]:
        """Vanilla and the controls that are fully answered."""
        drawn = [label for label in self.curve if all(r is not None for r in self.records(label))]
        return [self.sample(label) for label in (VANILLA, *drawn)]

    def at_equal(self, label: str) -> dict[str, AtEqual]:
        """The method against the curve, by metric; empty for vanilla, which is the curve, and without a curve."""
        trade, points = self.trade_off, self.curve_samples()
        if trade is None or len(points) < 2 or label == VANILLA:
            return {}
        return {y: against_curve(self.sample(label), points, trade.x, y) for y in trade.ys}

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

    def problems(self) -> list[str]:
        """Why this task's figures should not be trusted, one line each; empty when they can be."""
        found = []
        n = len(self.items)
        for label in (*self.methods, *self.curve):
            records = self.records(label)
            if all(record is None for record in records):
                found.append(f"{self.asked.name}, {label}: nothing answered")
                continue
            errors = [record.error for record in records if record is not None and record.error]
            if len(errors) > TOLERATED * n:
                found.append(
                    f"{self.asked.name}, {label}: {len(errors)} of {n} failed, first with {errors[0]}"
                )
            scores = self.scores(label)
            if scores.unparsed > TOLERATED * n:
                found.append(
                    f"{self.asked.name}, {label}: {scores.unparsed} of {n} answers could not be read"
                )
            unjudged = scores.missing - len(errors) - self.unanswered(label)
            if unjudged > TOLERATED * n:
                found.append(f"{self.asked.name}, {label}: {unjudged} of {n} answers have no verdict")
            if self.fired(label) == 0:
                reasons = [r.report["reason"] for r in records if r and r.report and r.report.get("reason")]
                why = f" ({reasons[0]})" if reasons else ""
                found.append(f"{self.asked.name}, {label}: the method never acted{why}")
        return found


@dataclass
class Run:
    """All tasks of a folder."""

    folder: Path
    model: Json
    methods: dict[str, Json | None]
    tasks: dict[str, TaskRun]

    @classmethod
    def load(cls, folder: str | Path, *, data: str | Path | None = None, store: Store | None = None) -> Run:
        """Read a folder. `data` replaces the benchmarks' folder that the run was made with."""
        folder = Path(folder)
        try:
            content: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        except FileNotFoundError:
            raise StoreError(
                f"{folder} holds no run: {MANIFEST} is missing (made by `airvlm evaluate --out`)"
            ) from None
        records = store if store is not None else Store(folder, readonly=True)
        labels = sorted(
            content["methods"], key=lambda label: label != VANILLA
        )  # vanilla first, else as asked
        methods = {label: content["methods"][label] for label in labels}
        tasks = {}
        for name, spec in content["tasks"].items():
            where = data if data is not None else spec["data"]
            task = load_task(name, where, variant=spec.get("variant"), **spec.get("options", {}))
            items = task.items(spec["limit"], spec["split"])
            asked = Asked(name, task, items, spec["split"], spec["limit"], spec["generation"])
            found = TaskRun.of(asked, methods, spec["curve"], records, content["model"]["fingerprint"])
            seen = {key for key, _ in found.answers} | {digest(None)}
            found.methods = {label: method for label, method in methods.items() if digest(method) in seen}
            tasks[name] = found
        return cls(folder, content["model"], methods, tasks)

    def problems(self) -> list[str]:
        return [problem for task in self.tasks.values() for problem in task.problems()]

    def only(self, tasks: Sequence[str], methods: Sequence[str]) -> Run:
        """The part of the run that one command asked for."""
        kept = {label: self.methods[label] for label in self.methods if label in methods}
        parts = {
            name: TaskRun(t.asked, kept, t.curve, t.answers)
            for name, t in self.tasks.items()
            if name in tasks
        }
        return Run(self.folder, self.model, kept, parts)
