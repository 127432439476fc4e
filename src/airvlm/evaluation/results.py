"""The results of an evaluation: answers, scores, differences and whether they can be trusted, without a model.

results = Results.load("runs/tiny")
results.to_frame()                                      # one row per task, method and metric
results.tasks["tiny-chair"].scores("air").metrics       # {"CHAIR_S": 16.5, ...}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airvlm.evaluation.manifest import MANIFEST, read_manifest
from airvlm.evaluation.plan import TaskSpec, image_digest
from airvlm.evaluation.statistics import Draws, Estimate, Sample, count_changed, mcnemar
from airvlm.evaluation.store import Json, Record, Store, StoreError, digest
from airvlm.evaluation.trade_off import AtEqual, TradeOff, against_curve, trade_off_of
from airvlm.tasks import TASKS, load_task
from airvlm.tasks.base import Item, Scores
from airvlm.tiny import BundledScene

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["VANILLA", "Results", "TaskResults"]

VANILLA = "vanilla"
TOLERATED = 0.01  # share of answers that may fail or be unreadable before a task's figures are not to be trusted


@dataclass
class TaskResults:
    """One task's answers and scores."""

    spec: TaskSpec
    methods: dict[str, Json | None]  # label -> JSON, vanilla first
    curve: dict[str, Json]  # label -> JSON of the controls that draw the curve
    answers: dict[tuple[str, str], Record]  # (digest of the method's JSON, item) -> record
    matched: dict[str, Json] = field(default_factory=dict)  # control -> itself at a matched strength
    _scores: dict[str, Scores] = field(default_factory=dict)
    _samples: dict[str, Sample] = field(default_factory=dict)

    @classmethod
    def of(
        cls, spec: TaskSpec, methods: dict[str, Json | None], curve: dict[str, Json], store: Store, fingerprint: str
    ) -> TaskResults:
        """What a store has of a task. Of answers that differ in versions the latest counts.

        Splits may number their items alike, so an answer must be about the item's own image; only if that image no
        longer exists does the id alone decide.
        """
        images = {item.id: image_digest(item.image) for item in spec.items}
        missing = {item.id for item in spec.items if _is_missing(item)}
        answers: dict[tuple[str, str], Record] = {}
        # id of a method's JSON -> itself, which keeps the id valid, and its digest: a store holds each method once
        digests: dict[int, tuple[Json | None, str]] = {}
        for record in store:
            key = record.key
            if key.task != spec.name or key.generation != spec.generation or key.fingerprint != fingerprint:
                continue
            own = images.get(key.item)
            if key.image != own and key.item not in missing:
                continue
            if id(key.method) not in digests:
                digests[id(key.method)] = (key.method, digest(key.method))
            place = (digests[id(key.method)][1], key.item)
            held = answers.get(place)
            if key.image == own or held is None or held.key.image != own:
                answers[place] = record
        return cls(spec, methods, curve, answers)

    @property
    def items(self) -> list[Item]:
        return self.spec.items

    @property
    def others(self) -> list[str]:
        """The methods' labels without vanilla."""
        return [label for label in self.methods if label != VANILLA]

    def configuration(self, label: str) -> Json | None:
        """The JSON of a method, of a control that draws the curve, or of a control at a matched strength."""
        if label in self.methods or label in self.curve:
            return self.methods[label] if label in self.methods else self.curve[label]
        found: Json = next(facts["method"] for facts in self.matched.values() if facts["label"] == label)
        return found

    def records(self, label: str) -> list[Record | None]:
        """One record per item, in the items' order; None for items that were not answered."""
        key = digest(self.configuration(label))
        return [self.answers.get((key, item.id)) for item in self.items]

    def texts(self, label: str) -> list[str | None]:
        return [None if record is None else record.text for record in self.records(label)]

    def scores(self, label: str) -> Scores:
        if label not in self._scores:
            self._scores[label] = self.spec.task.score(self.items, self.texts(label))
        return self._scores[label]

    def sample(self, label: str) -> Sample:
        """The scores with their bootstrap; all methods of a task share the draws."""
        if label not in self._samples:
            scores = self.scores(label)
            if not hasattr(self, "_draws"):
                self._draws = Draws(scores.groups)
            self._samples[label] = Sample(scores, self._draws)
        return self._samples[label]

    def difference(self, label: str, metric: str) -> Estimate:
        """A metric's difference to vanilla."""
        return self.sample(label).difference(self.sample(VANILLA), metric)

    def better(self, metric: str) -> str:
        """Which direction of a metric is better: "higher", "lower" or "neither"."""
        return self.scores(VANILLA).definitions[metric].better

    # -- the curve of the trivial control

    @property
    def trade_off(self) -> TradeOff | None:
        return trade_off_of(self.scores(VANILLA))

    def curve_labels(self) -> list[str]:
        """Vanilla and the controls that answered every item, in the order of their bias."""
        drawn = [label for label in self.curve if not self.unanswered(label)]
        biases = {VANILLA: 0.0} | {label: float(self.curve[label].get("bias", 0.0)) for label in drawn}
        return sorted(biases, key=lambda label: biases[label])

    def at_equal(self, label: str) -> dict[str, AtEqual]:
        """The method against the curve, by metric; empty for vanilla and without a curve."""
        trade, points = self.trade_off, self.curve_labels()
        if trade is None or len(points) < 2 or label == VANILLA:
            return {}
        curve, vanilla = [self.sample(point) for point in points], points.index(VANILLA)
        return {y: against_curve(self.sample(label), curve, trade.x, y, vanilla) for y in trade.ys}

    # -- as data

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dictionary per method and metric, with the columns of `Results.to_frame`."""
        for label, method in self.methods.items():
            sample, at = self.sample(label), self.at_equal(label)
            records = [record for record in self.records(label) if record is not None and record.text is not None]
            shared = {
                "method": label,
                "method_json": None if method is None else json.dumps(method, sort_keys=True),
                "items": len(self.items),
                "images": sample.images,
            }
            counts = {
                "fired": None if label == VANILLA else self.fired(label),
                "changed": None if label == VANILLA else self.changed(label),
                "failed": self.failed(label),
                "unanswered": self.unanswered(label),
                "unparsed": self.scores(label).unparsed,
                "tokens": _mean([record.tokens for record in records]),
                "seconds": _mean([record.seconds for record in records]),
            }
            for metric, definition in self.scores(label).definitions.items():
                figure = sample.estimate(metric)
                to = None if label == VANILLA else self.difference(label, metric)
                p = None if label == VANILLA else mcnemar(self.scores(label), self.scores(VANILLA), metric)
                equal = at.get(metric)
                yield {
                    "task": self.spec.key,
                    "split": self.spec.split,
                    "limit": self.spec.limit,
                    "variant": self.spec.options.get("variant"),
                    **shared,
                    "metric": metric,
                    "better": definition.better,
                    **_columns("", figure),
                    "error": _finite(figure.error),
                    "n": figure.n,
                    **_columns("difference", to),
                    "p": p,
                    "held_equal": None if equal is None else equal.x,
                    **_columns("at_equal", None if equal is None else equal.difference),
                    "on_curve": None if equal is None else equal.inside,
                    **counts,
                }

    def figures(self, label: str) -> Json:
        """{metric: {"value", "low", "high", "n"}}, with distances from the curve as `METRIC_at_equal_X`."""
        sample = self.sample(label)
        found = {name: sample.estimate(name) for name in sample.scores.definitions}
        found |= {f"{y}_at_equal_{at.x}": at.difference for y, at in self.at_equal(label).items()}
        return {name: estimate.to_json() for name, estimate in found.items()}

    # -- whether it can be trusted

    def failed(self, label: str) -> int:
        """Items that raised; their records say why."""
        return sum(record is not None and record.error is not None for record in self.records(label))

    def unanswered(self, label: str) -> int:
        return sum(record is None for record in self.records(label))

    def fired(self, label: str) -> int | None:
        """Answers in which the method acted; None if no record has a report."""
        reports = self._reports(label)
        return sum(bool(report.get("fired")) for report in reports) if reports else None

    def changed(self, label: str) -> int:
        """Answers that differ from vanilla's."""
        return count_changed(self.texts(label), self.texts(VANILLA))

    def inactive_reason(self, label: str) -> str | None:
        """Why the method never acted in this task; None if it did, or if no record has a report."""
        if self.fired(label) != 0:
            return None
        return next((str(report["reason"]) for report in self._reports(label) if report.get("reason")), "no reason")

    def _reports(self, label: str) -> list[Json]:
        return [record.report for record in self.records(label) if record is not None and record.report]

    def problems(self) -> list[str]:
        """Why this task's figures should not be trusted, one line each."""
        found = []
        n = len(self.items)
        others = sum(isinstance(i.image, BundledScene) and not i.image.file.exact for i in self.items)
        if others > TOLERATED * n:
            found.append(f"{self.spec.key}: {others} of {n} scenes differ here from those of published figures")
        for label in (*self.methods, *self.curve):
            records = self.records(label)
            if all(record is None for record in records):
                found.append(f"{self.spec.key}, {label}: no answers")
                continue
            errors = [record.error for record in records if record is not None and record.error]
            scores = self.scores(label)
            unjudged = scores.missing - len(errors) - self.unanswered(label)
            for count, what in (
                (len(errors), f"failed, the first with {errors[0]}" if errors else ""),
                (scores.unparsed, "could not be parsed"),
                (unjudged, "have no verdict"),
            ):
                if count > TOLERATED * n:
                    found.append(f"{self.spec.key}, {label}: {count} of {n} answers {what}")
        return found


def _is_missing(item: Item) -> bool:
    return isinstance(item.image, str | Path) and "://" not in str(item.image) and not Path(item.image).is_file()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _columns(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    prefix = f"{name}_" if name else ""
    numbers = (None,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)
    names = (name or "value", f"{prefix}low", f"{prefix}high")
    return {column: None if number is None else _finite(number) for column, number in zip(names, numbers, strict=True)}


@dataclass
class Results:
    """All tasks of a results folder."""

    folder: Path
    model: Json
    methods: dict[str, Json | None]
    tasks: dict[str, TaskResults]
    commands: list[Json] = field(default_factory=list)  # that wrote it: command line, date, versions
    sweeps: dict[str, Json] = field(default_factory=dict)  # see sweeps.py

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        data: str | Path | None = None,
        store: Store | None = None,
        specs: Iterable[TaskSpec] | None = None,
    ) -> Results:
        """Read a folder. Tasks are those of the registry: nothing that the folder names is imported.

        Args:
            folder: what `evaluate` wrote.
            data: the benchmarks' folder, if it is not where it was at evaluation.
            store: the folder's store, if it is open.
            specs: only these tasks. Needed for tasks that are not in the registry.
        """
        folder = Path(folder)
        content = read_manifest(folder)
        given = None if specs is None else {spec.key: spec for spec in specs}
        records = store if store is not None else Store(folder, readonly=True)
        labels = sorted(content["methods"], key=lambda label: label != VANILLA)  # vanilla first, else as asked
        methods = {label: content["methods"][label] for label in labels}
        tasks = {}
        for key, facts in content["tasks"].items():
            if given is not None and key not in given:
                continue
            spec = given[key] if given is not None else _load_spec(folder, key, facts, data)
            found = TaskResults.of(spec, methods, facts["curve"], records, content["model"]["fingerprint"])
            answered = {digest_ for digest_, _ in found.answers} | {digest(None)}
            found.methods = {label: method for label, method in methods.items() if digest(method) in answered}
            found.matched = facts["matched"]
            tasks[key] = found
        return cls(folder, content["model"], methods, tasks, content["commands"], content["sweeps"])

    def select(self, specs: Iterable[TaskSpec], methods: Iterable[str], sweeps: Iterable[str] = ()) -> Results:
        """The part that one evaluation asked for."""
        kept = {label: self.methods[label] for label in self.methods if label in set(methods)}
        parts = {}
        for spec in specs:
            task = self.tasks[spec.key]
            own = kept if spec.methods is None else {k: m for k, m in kept.items() if k == VANILLA or k in spec.methods}
            parts[spec.key] = replace(task, methods=dict(own))
        return replace(self, methods=kept, tasks=parts, sweeps={name: self.sweeps[name] for name in sweeps})

    @property
    def model_name(self) -> str:
        """The last part of the model's name."""
        return str(self.model["name"]).rstrip("/").rsplit("/", 1)[-1]

    # -- as data

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per task, method and metric, with the columns of `to_frame`."""
        model = {"model": self.model["name"], "fingerprint": self.model["fingerprint"]}
        return [model | row for task in self.tasks.values() for row in task.rows()]

    def to_frame(self) -> DataFrame:
        """One row per task, method and metric. Needs pandas.

        Columns: model, fingerprint, task, split, limit, variant, method (its label), method_json, items, images,
        metric, better, value, low, high (95 % interval), error (standard error), n (items that count), difference to
        vanilla with its interval and McNemar's p, held_equal and at_equal (difference to a biased baseline at the same
        recall or yes-ratio) with its interval, on_curve (whether the baseline reaches that recall), fired, changed,
        failed, unanswered, unparsed (counts of answers), tokens and seconds (means per answer).
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("a data frame needs pandas: pip install 'airvlm[frame]'") from error
        return pd.DataFrame(self.rows())

    def to_csv(self, path: str | Path | None = None) -> str:
        """The rows of `to_frame` as CSV; also written to `path`."""
        from airvlm.reporting.tables import rows_to_csv

        return _write(rows_to_csv(self.rows()), path)

    def to_markdown(self, path: str | Path | None = None) -> str:
        """One Markdown table per task: figures, differences, differences at equal recall; also written to `path`."""
        from airvlm.reporting.tables import task_table

        return _write("\n".join(task_table(task).to_markdown() for task in self.tasks.values()), path)

    def to_latex(self, path: str | Path | None = None) -> str:
        """One booktabs table per task; also written to `path`."""
        from airvlm.reporting.tables import task_table

        return _write("\n".join(task_table(task).to_latex() for task in self.tasks.values()), path)

    # -- whether it can be trusted

    def problems(self, *, require_acting: bool = False) -> list[str]:
        """Why the results should not be trusted, one line each.

        Args:
            require_acting: also name controls and published methods that never acted.
        """
        found = [problem for task in self.tasks.values() for problem in task.problems()]
        return found + [line for line, expected in self._inactive() if require_acting or not expected]

    def notes(self) -> list[str]:
        """Null results: controls and published methods that never acted in a task."""
        return [line for line, expected in self._inactive() if expected]

    def _inactive(self) -> list[tuple[str, bool]]:
        """Methods that never acted in a task, and whether that is a result and no reason to distrust the run.

        It is a result of a control, of a published method, and of a method that acted in another task. A method that
        is itself under test and acted nowhere has not been tested.
        """
        found = []
        for label, method in self.methods.items():
            tasks = {key: task for key, task in self.tasks.items() if label in task.methods}
            expected = any(task.fired(label) for task in tasks.values()) or _is_reference(method)
            for key, task in tasks.items():
                reason = task.inactive_reason(label)
                if reason is not None:
                    found.append((f"{key}, {label}: the method never acted ({reason})", expected))
        return found


def _is_reference(method: Json | None) -> bool:
    """Whether a method is there for comparison: a control, or a published method."""
    from airvlm.methods.names import METHODS  # imports torch

    if method is None:
        return True
    first = method["methods"][0] if method.get("name") == "composed" else method
    kind = METHODS.get(str(first.get("name")))
    return kind is not None and (kind.site == "control" or kind.paper is not None)


def _load_spec(folder: Path, key: str, facts: Json, data: str | Path | None) -> TaskSpec:
    """A task of run.json, loaded again."""
    name = facts["task"]
    if name not in TASKS:  # never imported: the folder may come from anybody
        raise StoreError(f"{folder / MANIFEST}: task {name!r} is not installed here; Results.load(..., specs=[...])")
    options = {k: facts[k] for k in ("variant", "options") if facts.get(k)}
    try:
        task = load_task(
            name,
            data if data is not None else facts["data"],
            variant=options.get("variant"),
            **options.get("options", {}),
        )
        items = task.items(facts["limit"], facts["split"])
    except (ValueError, TypeError) as error:
        raise StoreError(f"{folder / MANIFEST}: task {key!r} cannot be loaded again: {error}") from error
    return TaskSpec(name, task, items, facts["split"], facts["limit"], facts["generation"], options, label=key)


def _write(text: str, path: str | Path | None) -> str:
    from airvlm.storage.atomic import write_atomically

    if path is not None:
        write_atomically(Path(path), text)
    return text
