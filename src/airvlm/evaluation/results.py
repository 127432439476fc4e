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
from airvlm.evaluation.plan import TaskSpec, choose_items, image_digest
from airvlm.evaluation.statistics import Draws, Estimate, Sample, count_changed, mcnemar
from airvlm.evaluation.store import CAP, Json, Record, Store, StoreError, digest
from airvlm.evaluation.traces import join_bias, split_bias
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
    traces: dict[tuple[str, str], list[Record]] = field(default_factory=dict)  # likewise, of records with traces
    matched: dict[str, Json] = field(default_factory=dict)  # control -> itself at a matched strength
    _records: dict[str, list[Record | None]] = field(default_factory=dict, init=False)  # by digest of the method's JSON
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
        cap = spec.generation.get(CAP)
        answers: dict[tuple[str, str], Record] = {}
        traces: dict[tuple[str, str], list[Record]] = {}
        # id of a method's JSON -> itself, which keeps the id valid, and its digest: a store holds each method once
        digests: dict[int, tuple[Json | None, str]] = {}
        for record in store:
            key = record.key
            if key.task != spec.name or key.fingerprint != fingerprint:
                continue
            exact = key.generation == spec.generation
            longer = record.trace is not None and cap is not None and {**key.generation, CAP: cap} == spec.generation
            own = images.get(key.item)
            if not (exact or longer) or (key.image != own and key.item not in missing):
                continue
            if id(key.method) not in digests:
                digests[id(key.method)] = (key.method, digest(key.method))
            place = (digests[id(key.method)][1], key.item)
            if record.trace is not None:
                traces.setdefault(place, []).append(record)
            held = answers.get(place)
            if exact and (key.image == own or held is None or held.key.image != own):
                answers[place] = record
        return cls(spec, methods, curve, answers, traces)

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
        return self.find_records(self.configuration(label))

    def find_records(self, method: Json | None) -> list[Record | None]:
        """The records of any method, those in traces included."""
        key = digest(method)
        if key not in self._records:
            base = digest(split_bias(method)[0])
            self._records[key] = [self._find_record(method, (key, item.id), (base, item.id)) for item in self.items]
        return self._records[key]

    def _find_record(self, method: Json | None, own: tuple[str, str], base: tuple[str, str]) -> Record | None:
        held = self.answers.get(own)
        if held is not None and held.error is None:
            return held
        for record in self.traces.get(base, ()):
            found = record.derive(replace(record.key, method=method, generation=self.spec.generation))
            if found is not None:
                return found
        failed = self.answers.get(base)
        return failed if held is None and failed is not None and failed.error is not None else held

    def texts(self, label: str) -> list[str | None]:
        return [None if record is None else record.text for record in self.records(label)]

    def scores(self, label: str) -> Scores:
        if label not in self._scores:
            self._scores[label] = self.spec.task.score(self.items, self.texts(label))
        return self._scores[label]

    def sample(self, label: str) -> Sample:
        """The scores with their bootstrap; all methods of a task share the draws."""
        if label not in self._samples:
            self._samples[label] = Sample(self.scores(label), self._all_draws(self.scores(label)))
        return self._samples[label]

    def _all_draws(self, scores: Scores) -> Draws:
        if not hasattr(self, "_draws"):
            self._draws = Draws(scores.groups)
        return self._draws

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
        drawn = [label for label in self.curve if not self.count_unanswered(label)]
        biases = {VANILLA: 0.0} | {label: float(self.curve[label].get("bias", 0.0)) for label in drawn}
        return sorted(biases, key=lambda label: biases[label])

    def at_equal(self, label: str) -> dict[str, AtEqual]:
        """The method against the curve, by metric; empty for vanilla and without a curve."""
        trade, points = self.trade_off, self.curve_labels()
        if trade is None or len(points) < 2 or label == VANILLA:
            return {}
        curve, vanilla = [self.sample(point) for point in points], points.index(VANILLA)
        return {y: against_curve(self.sample(label), curve, trade.x, y, vanilla) for y in trade.ys}

    def beyond(self, label: str, control: str, metric: str) -> Estimate | None:
        """A method's distance from the curve minus that of its control, draw by draw."""
        own, other = self.at_equal(label).get(metric), self.at_equal(control).get(metric)
        if own is None or other is None:
            return None
        value = own.difference.value - other.difference.value
        return Estimate.of(value, own.draws - other.draws, own.difference.n, images=self.sample(label).images)

    # -- a method's own curve

    def sample_at(self, label: str, bias: float) -> Sample | None:
        """A method beside the trivial control at a bias, if its answers are stored or in a trace."""
        trade = self.trade_off
        if trade is None or not bias:
            return None if trade is None else self.sample(label)
        name = f"{label} at {trade.control} {bias:g}"
        if name not in self._samples:
            records = self.find_records(join_bias(self.configuration(label), trade.control, bias))
            if any(record is None for record in records):
                return None
            scores = self.spec.task.score(self.items, [None if r is None else r.text for r in records])
            self._samples[name] = Sample(scores, self._all_draws(scores))
        return self._samples[name]

    def own_curve(self, label: str) -> dict[float, Sample]:
        """A method beside the trivial control, by bias in order; empty without a trace."""
        trade = self.trade_off
        if trade is None:
            return {}
        if label == VANILLA:
            biases = {name: float(self.curve[name]["bias"]) for name in self.curve_labels() if name != VANILLA}
            return {
                bias: self.sample(name) for bias, name in sorted([(0.0, VANILLA), *((b, n) for n, b in biases.items())])
            }
        found = {bias: self.sample_at(label, bias) for bias in sorted({0.0, *trade.biases})}
        kept = {bias: sample for bias, sample in found.items() if sample is not None}
        return kept if len(kept) > 1 else {}

    def keeping_bias(self, label: str) -> float | None:
        """The bias on the end token at which a method has vanilla's recall; None if its trace does not reach it.

        Found by bisection over the trace, to 0.05. Recall falls as the bias grows.
        """
        trade = self.trade_off
        curve = self.own_curve(label) if trade is not None and trade.control == "eos-bias" else {}
        if trade is None or label == VANILLA or len(curve) < 2:
            return None
        goal = self.sample(VANILLA).value(trade.x)
        above = [bias for bias, sample in curve.items() if sample.value(trade.x) >= goal]
        below = [bias for bias, sample in curve.items() if sample.value(trade.x) < goal]
        if not above or not below:
            return None
        low, high = max(above), min([bias for bias in below if bias > max(above)], default=math.inf)
        while math.isfinite(high) and high - low > 0.05:
            middle = (low + high) / 2
            sample = self.sample_at(label, middle)
            if sample is None:
                return None
            low, high = (middle, high) if sample.value(trade.x) >= goal else (low, middle)
        return round(low, 2)

    # -- as data

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dictionary per method and metric, with the columns of `Results.to_frame`."""
        for label in self.methods:
            yield from self.rows_of(label)

    def rows_of(self, label: str) -> Iterator[dict[str, Any]]:
        """The rows of one method."""
        method = self.configuration(label)
        sample, at = self.sample(label), self.at_equal(label)
        shared = {
            "method": label,
            "method_json": None if method is None else json.dumps(method, sort_keys=True),
            "items": len(self.items),
            "images": sample.images,
        }
        counts = {
            "fired": None if label == VANILLA else self.count_fired(label),
            "changed": None if label == VANILLA else self.count_changed(label),
            "failed": self.count_failed(label),
            "unanswered": self.count_unanswered(label),
            "unparsed": self.scores(label).unparsed,
            "tokens": self.mean_tokens(label),
            "seconds": _mean([record.seconds for record in self._select_answered(label)]),
            "keeping_bias": self.keeping_bias(label),
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
                "variant": self.spec.task.variant_name,
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

    def samples(self, label: str) -> Iterator[Json]:
        """One dictionary per item, see `Results.write_samples`."""
        scores = self.scores(label)
        for i, (item, record) in enumerate(zip(self.items, self.records(label), strict=True)):
            details = scores.details[i] if scores.details else {}
            yield {
                "task": self.spec.key,
                "method": label,
                "id": item.id,
                "image": _name_image(item.image),
                "question": self.spec.task.prompt(item),
                "target": sorted(item.truth) if isinstance(item.truth, set | frozenset) else item.truth,
                "answer": None if record is None else record.text,
                "score": scores.per_item[i],
                "parsed": {name: value for name, value in details.items() if name != "id"},
                "tokens": None if record is None else record.tokens,
                "finished": None if record is None else record.finished,
                "error": None if record is None else record.error,
            }

    def figures(self, label: str) -> Json:
        """{metric: {"value", "low", "high", "n"}}, with distances from the curve as `METRIC_at_equal_X`."""
        sample = self.sample(label)
        found = {name: sample.estimate(name) for name in sample.scores.definitions}
        found |= {f"{y}_at_equal_{at.x}": at.difference for y, at in self.at_equal(label).items()}
        return {name: estimate.to_json() for name, estimate in found.items()}

    # -- whether it can be trusted

    def count_failed(self, label: str) -> int:
        """Items that raised; their records say why."""
        return sum(record is not None and record.error is not None for record in self.records(label))

    def count_unanswered(self, label: str) -> int:
        return sum(record is None for record in self.records(label))

    def count_fired(self, label: str) -> int | None:
        """Answers in which the method acted; None if no record has a report."""
        reports = self._reports(label)
        return sum(bool(report.get("fired")) for report in reports) if reports else None

    def count_changed(self, label: str) -> int:
        """Answers that differ from vanilla's."""
        return count_changed(self.texts(label), self.texts(VANILLA))

    def mean_tokens(self, label: str) -> float | None:
        """Mean length of the answers, in tokens."""
        return _mean([record.tokens for record in self._select_answered(label)])

    def _select_answered(self, label: str) -> list[Record]:
        return [record for record in self.records(label) if record is not None and record.text is not None]

    def inactive_reason(self, label: str) -> str | None:
        """Why the method never acted in this task; None if it did, or if no record has a report."""
        if self.count_fired(label) != 0:
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
            unjudged = scores.missing - len(errors) - self.count_unanswered(label)
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


def _name_image(image: Any) -> Any:
    if isinstance(image, list | tuple):
        return [_name_image(one) for one in image]
    return image.id if isinstance(image, BundledScene) else str(image) if isinstance(image, str | Path) else None


def _file_name(text: str) -> str:
    """A text as part of a file's name; a hash keeps names apart that would become the same."""
    plain = "".join(c if c.isalnum() or c in "-._=+" else "_" for c in text)[:100]
    return plain if plain == text else f"{plain}-{digest(text)[:6]}"


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
            found.methods = {
                label: method
                for label, method in methods.items()
                if label == VANILLA or any(found.find_records(method))
            }
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
        """The last part of the model's name, with its dtype if that is not float32."""
        name = str(self.model["name"]).rstrip("/").rsplit("/", 1)[-1]
        dtype = self.model.get("dtype", "float32")
        return name if dtype == "float32" else f"{name} ({dtype})"

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
        failed, unanswered, unparsed (counts of answers), tokens and seconds (means per answer; of an answer that was
        read from a trace, the seconds of the whole run), keeping_bias (on the end token, at which the method keeps
        vanilla's recall).
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
        from airvlm.reporting.tables import describe_methods, task_table, task_title

        head = "".join(f"* {line}\n" for line in describe_methods(self.methods))
        tables = [task_table(task, task_title(task, self.model_name)).to_markdown() for task in self.tasks.values()]
        return _write("\n".join([*([head] if head else []), *tables]), path)

    def to_latex(self, path: str | Path | None = None) -> str:
        """One booktabs table per task; also written to `path`."""
        from airvlm.reporting.tables import describe_methods, task_table, task_title

        tables = []
        for task in self.tasks.values():
            title = "; ".join([task_title(task, self.model_name), *describe_methods(task.methods)])
            tables.append(task_table(task, title).to_latex())
        return _write("\n".join(tables), path)

    def write_samples(self, folder: str | Path | None = None) -> list[Path]:
        """Write one JSON Lines file per task and method, one line per item, as lmms-eval's `--log_samples` does.

        A line has id, image, question (the prompt), target, answer, score (the item's counts), parsed (what the task
        read), tokens, finished, error, task, method and model.

        Args:
            folder: where to write. Default: `samples` in the results' folder.

        Returns:
            The files.
        """
        folder, written = self.folder / "samples" if folder is None else Path(folder), []
        folder.mkdir(parents=True, exist_ok=True)
        for name, task in self.tasks.items():
            for label in task.methods:
                lines = [json.dumps({**line, "model": self.model["name"]}, default=str) for line in task.samples(label)]
                written.append(folder / f"{_file_name(name)}--{_file_name(label)}.jsonl")
                _write("".join(f"{line}\n" for line in lines), written[-1])
        return written

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
            expected = any(task.count_fired(label) for task in tasks.values()) or _is_reference(method)
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
        items, images = choose_items(task, facts["limit"], facts["split"])
    except (ValueError, TypeError) as error:
        raise StoreError(f"{folder / MANIFEST}: task {key!r} cannot be loaded again: {error}") from error
    how = (facts["split"], facts["limit"], facts["generation"])
    return TaskSpec(name, task, items, *how, options, label=key, images=images)


def _write(text: str, path: str | Path | None) -> str:
    from airvlm.storage.atomic import write_atomically

    if path is not None:
        write_atomically(Path(path), text)
    return text
