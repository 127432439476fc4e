"""Calibration: which method with which options helps a model, searched on one split and measured once on another.

Successive halving: many settings on few items, then the better half on twice as many. A setting is worth its distance
from the curve of a trivial control at equal recall or yes-ratio, so that saying less gains nothing. A setting that
beats the curve but loses recall goes on beside a control that restores it. The best of the calibration split is
measured once on the validation split: that figure is the result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from airvlm.evaluation.evaluate import curve_methods, find_trade_off
from airvlm.evaluation.plan import ModelInfo, TaskSpec, choose_items, methods_to_json
from airvlm.evaluation.results import VANILLA, TaskResults
from airvlm.evaluation.spread import Runner
from airvlm.evaluation.statistics import Array, Estimate
from airvlm.evaluation.store import Json, Store
from airvlm.methods.base import Method
from airvlm.methods.composed import Composed
from airvlm.methods.names import METHODS, get_method
from airvlm.tasks.base import Item

__all__ = ["SEARCHED", "Budget", "Calibration", "Candidate", "Measured", "Search", "Stage", "split_task"]

SEARCHED = ("crop-blend", "air", "air-memory", "crop-blend")  # methods that are searched; one named twice has two turns
SMALLEST = 32  # items per task of a stage: fewer tell nothing
SURVIVORS = 3  # settings that are measured on the validation split
SEARCH_SHARE = 0.6  # of a budget, for the calibration split
ANSWER_SHARE = 0.8  # of a time, for answers: the rest loads the model, reads images and scores
STRONGEST = 4.0  # bias of a companion
WORTHWHILE = 1.0  # points of gain that enough images should be able to show
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


# -- the budget


@dataclass(frozen=True)
class Budget:
    """How much a calibration may cost: answers, or seconds. Without either there is no limit.

    Every answer that is used counts, whether it was generated now or by an earlier run: so the same budget takes the
    same decisions in a run that was stopped, in a second one, and in processes that help each other.
    """

    answers: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """`20000` answers, or a time: `90s`, `20m`, `2h`."""
        unit = next((u for u in sorted(UNITS, key=len, reverse=True) if text.endswith(u)), None)
        try:
            seconds = math.nan if unit is None else float(text.removesuffix(unit)) * UNITS[unit]
        except ValueError:
            seconds = math.nan
        if math.isfinite(seconds) and seconds > 0:
            return cls(seconds=seconds)
        if text.isdigit() and int(text) > 0:
            return cls(answers=int(text))
        raise ValueError(f"a budget of {text!r}: give a number of answers (20000) or a time (90s, 20m, 2h)")

    @property
    def timed(self) -> bool:
        return self.answers is None and self.seconds is not None

    def total(self, processes: int) -> float:
        """Answers, or seconds of all processes that may go into answers."""
        if self.answers is not None:
            return float(self.answers)
        return math.inf if self.seconds is None else ANSWER_SHARE * self.seconds * processes

    def show(self, cost: float, processes: int) -> str:
        """A cost in the budget's own unit, rounded up."""
        return f"{math.ceil(cost / ANSWER_SHARE / processes)}s" if self.timed else str(math.ceil(cost))


@dataclass(frozen=True)
class Price:
    """What one item of every task costs: what all settings share (vanilla, the curve, crops), and each setting."""

    shared: float
    each: float

    def item(self, settings: int) -> float:
        """The cost of an item under this many settings."""
        return self.shared + settings * self.each if settings else 0.0

    def items(self, left: float, settings: int, *, most: int) -> int:
        """Items that what is left pays for."""
        cost = self.item(settings)
        return most if left >= most * cost else max(0, int(left / cost))


# -- the settings


@dataclass(frozen=True)
class Candidate:
    """One setting of a method, alone or beside a control that restores recall."""

    base: Method  # the method as it was given
    method: Method  # with the setting's options
    companion: Method | None = None

    @property
    def applied(self) -> Method:
        return self.method if self.companion is None else Composed(self.method, self.companion)

    @property
    def label(self) -> str:
        return self.applied.label

    @property
    def is_default(self) -> bool:
        return self.method == self.base

    @property
    def changed(self) -> dict[str, Any]:
        """The options that differ from the method as it was given."""
        names = [f.name for f in dataclasses.fields(self.method)]
        return {n: getattr(self.method, n) for n in names if getattr(self.method, n) != getattr(self.base, n)}


def searched_options(method: Method) -> dict[str, tuple[Any, ...]]:
    """The options that are searched, with their ranges: those that declare one and were not given another value."""
    return {
        f.name: tuple(f.metadata["search"])
        for f in dataclasses.fields(method)
        if f.metadata.get("search") and getattr(method, f.name) == f.default
    }


def list_candidates(names: Sequence[str | Method], count: int, depth: int) -> list[Candidate]:
    """`count` settings: first every method as given, however few are wanted, then the methods in turns.

    A larger count begins with the settings of a smaller one, so that nothing is asked twice. A small space may give
    fewer.

    Args:
        names: methods or their spellings; one given twice has two turns.
        count: number of settings.
        depth: decoder layers of the model.
    """
    turns = []
    for name in names:
        method = get_method(name)
        if method is None:
            raise ValueError("vanilla has no setting to search; it is always measured beside the others")
        turns.append(method)
    sources = {method: _draw_settings(method, depth) for method in turns}
    chosen: dict[Method, Candidate] = {}
    for source in sources.values():
        first = next(source)
        chosen.setdefault(first.method, first)
    while turns and len(chosen) < count:
        for method in list(turns):
            candidate = next(sources[method], None)
            if candidate is None:
                turns.remove(method)
            elif len(chosen) < count:
                chosen.setdefault(candidate.method, candidate)
    return list(chosen.values())


def _draw_settings(base: Method, depth: int) -> Iterator[Candidate]:
    """A method as given, then settings spread over its space.

    The strength (the option that can switch the method off) differs in every setting; other options keep their value
    in half of them, since most combinations of many changed options do harm.
    """
    yield Candidate(base, base)
    options = searched_options(base)
    strengths = [f.name for f in dataclasses.fields(base) if "off" in f.metadata]
    seen, refused, i = {base}, 0, 0
    while options and refused < 50:  # draws in a row that add nothing: the space is used up
        i += 1
        values = {}
        for (name, space), t in zip(options.items(), _point(i, len(options)), strict=True):
            others = tuple(v for v in space if not (isinstance(v, str) and v == getattr(base, name)))
            if name in strengths:
                values[name] = _value(others, t, name, depth)
            elif t >= 0.5:
                values[name] = _value(others, 2 * t - 1, name, depth)
        try:
            method = replace(base, **values)
        except ValueError:  # options that exclude each other
            method = base
        refused = refused + 1 if method in seen else 0
        if method not in seen:
            seen.add(method)
            yield Candidate(base, method)


def _point(i: int, dimensions: int) -> list[float]:
    """The i-th point of a sequence that fills the unit cube evenly, whatever its length.

    Multiples of powers of a generalized golden ratio: unlike van der Corput's sequences in large bases, the first dozen
    values of every coordinate are spread over all of (0, 1).
    """
    ratio = 2.0
    for _ in range(60):  # the root of x^(d + 1) = x + 1
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    return [(0.5 + i / ratio ** (k + 1)) % 1.0 for k in range(dimensions)]


def _value(space: tuple[Any, ...], t: float, name: str, depth: int) -> Any:
    """The point t of (0, 1) in an option's range."""
    low, high = space[0], space[-1]
    numbers = len(space) == 2 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in space)
    if not numbers:
        return space[min(int(t * len(space)), len(space) - 1)]
    if name == "layers":  # shares of the decoder's depth: from there to the last layer
        return (min(depth - 1, round((low + t * (high - low)) * depth)), depth)
    if isinstance(low, int) and isinstance(high, int):
        return min(high, low + int(t * (high - low + 1)))
    if low > 0 and high / low >= 8:
        return float(f"{math.exp(math.log(low) + t * (math.log(high) - math.log(low))):.2g}")
    return float(f"{low + t * (high - low):.2g}")


# -- the splits


def split_task(spec: TaskSpec) -> tuple[TaskSpec, TaskSpec, bool]:
    """The task on a calibration and a validation split, and whether they are the task's own.

    A task without such splits is divided by its images, 60 % for calibration. The first items are a fair sample.
    """
    parts = []
    for split in ("calibration", "validation"):
        try:
            parts.append(choose_items(spec.task, spec.limit, split)[0])
        except ValueError:  # the task has no such split
            parts.append([])
    identities = [{(item.id, str(item.image)) for item in part} for part in parts]
    own = bool(parts[0] and parts[1] and not identities[0] & identities[1])
    if not own:
        first = {item.group: _hash(item.group) < 0.6 for item in spec.items}
        parts = [[item for item in spec.items if first[item.group] is side] for side in (True, False)]
        if not all(parts):
            raise ValueError(f"{spec.name} has {len(first)} images: too few to calibrate and to validate on")

    def shuffle(items: list[Item]) -> list[Item]:
        """Always the same order, without a meaning: tasks list one kind of question after the other."""
        return sorted(items, key=lambda item: _hash(item.id))

    names = ("calibration", "validation")
    both = [
        replace(spec, items=shuffle(items), split=split, label=f"{spec.name}, {split}")
        for items, split in zip(parts, names, strict=True)
    ]
    return both[0], both[1], own


def _hash(name: str) -> float:
    """A number in 0..1 that belongs to an image or item."""
    return int(hashlib.sha256(f"split {name}".encode()).hexdigest()[:8], 16) / 2**32


# -- what was found


@dataclass(frozen=True)
class Measured:
    """What a setting did on the items of one stage."""

    candidate: Candidate
    gain: Estimate  # points better than the control's curve at equal recall or yes-ratio, mean over tasks
    draws: Array = field(repr=False)  # (B,) the gain on every resample
    figures: Mapping[str, Mapping[str, float]]  # task -> metric -> value
    recall_change: Estimate | None  # points against vanilla; None without a captioning task
    changed: float  # share of answers that differ from vanilla's
    fired: float  # share of answers in which it acted
    images: int = 0
    on_curve: bool = True  # else the gain is the distance from the curve's end

    def loses_recall(self, limit: float) -> bool:
        return self.recall_change is not None and self.recall_change.value < -limit

    def is_comparable(self, limit: float) -> bool:
        """Not so if it names less than the control at its strongest bias: then it is compared with the curve's end."""
        return self.on_curve or not self.loses_recall(limit)

    def surely_loses_recall(self, limit: float) -> bool:
        return self.recall_change is not None and self.recall_change.high < -limit

    def to_json(self) -> Json:
        return {
            "method": self.candidate.label,
            "gain": _round(self.gain),
            "recall_change": None if self.recall_change is None else _round(self.recall_change),
            "figures": {task: dict(values) for task, values in self.figures.items()},
            "changed": round(self.changed, 4),
            "fired": round(self.fired, 4),
            "images": self.images,
            "on_curve": self.on_curve,
        }


def _round(estimate: Estimate) -> Json:
    return {name: round(v, 4) if isinstance(v, float) else v for name, v in estimate.to_json().items()}


@dataclass(frozen=True)
class Stage:
    """Settings measured on the same items, best first."""

    split: str
    items: Mapping[str, int]  # task -> items
    measured: tuple[Measured, ...]
    tasks: Mapping[str, TaskResults] = field(repr=False)

    def to_json(self) -> Json:
        return {"split": self.split, "items": dict(self.items), "settings": [m.to_json() for m in self.measured]}


@dataclass(frozen=True)
class Calibration:
    """The stages of a calibration, and what follows from them."""

    model: ModelInfo
    stages: tuple[Stage, ...]  # on the calibration split
    validation: Stage | None  # the best settings on the validation split; None if no setting was left
    max_recall_loss: float
    answers: int  # generated for it, those stored before not counted
    seconds: float

    @property
    def settings_tried(self) -> int:
        """Settings that were tried, those beside a companion included."""
        return len({m.candidate.label for stage in self.stages for m in stage.measured})

    @property
    def best(self) -> Measured:
        """The setting that was best on the calibration split, as measured there."""
        return self.stages[-1].measured[0]

    @property
    def result(self) -> Measured | None:
        """The same setting on the validation split."""
        if self.validation is None:
            return None
        return next(m for m in self.validation.measured if m.candidate.label == self.best.candidate.label)

    @property
    def recommended(self) -> Candidate | None:
        """The setting to use; None if nothing beats vanilla beyond its interval."""
        found = self.result
        if found is None or not found.gain.low > 0 or found.surely_loses_recall(self.max_recall_loss):
            return None
        return found.candidate

    @property
    def images_needed(self) -> int | None:
        """About how many validation images would tell; None if those that were used do."""
        found = self.result or self.best
        if found.gain.significant or (self.result is None and found.gain.high <= 0):
            return None
        needed = found.gain.images_needed(found.images, max(found.gain.value, WORTHWHILE))
        return needed if needed > found.images else None

    @property
    def verdict(self) -> str:
        """What to use: the setting's label, "vanilla", or "undecided" with too few images to tell."""
        if self.recommended is not None:
            return self.recommended.label
        return VANILLA if self.images_needed is None else "undecided"

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        found, needed = self.result, self.images_needed
        few = f"too few images to tell: about {needed} are needed, {(found or self.best).images} were used"
        if found is None:
            return few if needed else "no setting gains anything on the calibration split and keeps the recall"
        told = (
            f"{found.candidate.label} gains {found.gain.value:.2f} [{found.gain.low:.2f}, {found.gain.high:.2f}] "
            f"points on the validation split (n = {found.gain.n}); on the calibration split, as the best of "
            f"{self.settings_tried} settings, it gained {self.best.gain.value:.2f}"
        )
        if self.recommended is not None:
            return told
        if needed:
            return f"{few}; {told}"
        if not found.gain.low > 0:
            return f"nothing beats vanilla beyond its interval: {told}"
        return f"recall falls by more than {self.max_recall_loss:g}: {told}"

    def to_json(self) -> Json:
        """What `Method.load` and `--method @calibration.json` read, and everything that led to it."""
        chosen = self.recommended
        return {
            "version": 1,
            "method": None if chosen is None else chosen.applied.to_json(),
            "verdict": self.verdict,
            "images_needed": self.images_needed,
            "model": self.model.to_json(),
            "reason": self.reason,
            "settings_tried": self.settings_tried,
            "max_recall_loss": self.max_recall_loss,
            "answers": self.answers,
            "seconds": round(self.seconds, 1),
            "calibration": [stage.to_json() for stage in self.stages],
            "validation": None if self.validation is None else self.validation.to_json(),
        }


# -- the search


@dataclass(frozen=True)
class Search:
    """What is searched, in any process. It pickles, and `run` is a job for `run_spread`.

    Args:
        splits: per task its calibration and its validation split, see `split_task`.
        methods: methods or their spellings.
        settings: how many to begin with.
        budget: what it may cost.
        max_recall_loss: points of recall that a recommended setting may lose.
        validate: measure the best on the validation split. Else the whole budget goes into the search, for a caller who
            measures what was found on images of their own, beside the method as given: that is then measured in every
            stage, and what is found has gained more than it on the same images, or lost less.
    """

    splits: Sequence[tuple[TaskSpec, TaskSpec]]
    methods: Sequence[str | Method] = SEARCHED
    settings: int = 24
    budget: Budget = Budget()
    max_recall_loss: float = 1.0
    validate: bool = True

    def __post_init__(self) -> None:
        list_candidates(self.methods, 1, 32)
        for spec, _ in self.splits:
            if find_trade_off(spec) is None:
                raise ValueError(f"{spec.name} has no trade-off to hold equal: calibrate on captions and yes/no tasks")
        self.check_answers(traced=True)

    def run(self, runner: Runner) -> Calibration:
        """Find the best setting on the calibration split, and measure it on the validation split."""
        # stages end where batches do: of a batch that was answered in part, the rest cannot be asked alone
        runner = replace(runner, batch_size=min(runner.batch_size, SMALLEST))
        with Store(runner.folder) as store:
            return _Run(self, runner, store).run()

    def check_answers(self, *, traced: bool) -> None:
        """Refuse a number of answers that is too small, before anything is asked."""
        cost = self.smallest_cost(1.0, 1.0, traced=traced)
        if self.budget.answers is not None and self.budget.answers < cost:
            raise ValueError(self._too_small(cost, 1))

    def smallest_cost(self, vanilla: float, method: float, *, traced: bool) -> float:
        """The least that a search costs if an answer of vanilla and one of a method cost this much.

        Args:
            vanilla: cost of an answer.
            method: likewise.
            traced: the curve is read from vanilla's run, and costs nothing.
        """
        cost = 0.0
        for part, settings in ((0, self.settings), (1, SURVIVORS))[: 1 + self.validate]:
            for both in self.splits:
                trade = find_trade_off(both[0])
                biases = len(trade.biases) if trade is not None and not traced else 0
                cost += min(SMALLEST, len(both[part].items)) * ((1 + biases) * vanilla + settings * method)
        return cost

    def _too_small(self, cost: float, processes: int) -> str:
        given = self.budget.seconds if self.budget.timed else self.budget.answers
        validated = ", and the best of them on as many others," if self.validate else ""
        return (
            f"a budget of {given:g}{'s' if self.budget.timed else ''} is too small: {self.settings} settings on "
            f"{SMALLEST} items of each task{validated} need at least {self.budget.show(cost, processes)}"
            f"{'; give that, or fewer --settings' if self.validate else ''}"
        )


class _Run:
    """One search at work."""

    def __init__(self, search: Search, runner: Runner, store: Store) -> None:
        self.search, self.runner, self.store = search, runner, store
        self.processes = runner.shard.count if runner.shard.helps else 1
        self.total = search.budget.total(self.processes)
        self.share = SEARCH_SHARE if search.validate else 1.0
        self.costs: dict[str, float] = {}  # digest of a record's key -> what it cost

    def run(self) -> Calibration:
        search, limit = self.search, self.search.max_recall_loss
        known, started = len(self.store), time.monotonic()
        settings = list_candidates(search.methods, search.settings, self.runner.depth)
        search.check_answers(traced=self.runner.model.traces)
        self.check_time(settings)
        largest = max(len(calibration.items) for calibration, _ in search.splits)
        rounds = 1 + max(0, math.ceil(math.log2(len(settings) / (2 * SURVIVORS))))
        price = self.pay(self.ask("calibration", SMALLEST, settings))
        first = price.items(self.share * self.total / rounds, len(settings), most=largest // 2 ** (rounds - 1))
        size = min(largest, max(SMALLEST, self.whole_batches(first)))
        running, stages = list(settings), list[Stage]()
        while True:
            stages.append(self.stage("calibration", size, running))
            price = self.pay(stages[-1].tasks)
            if len(stages) == rounds or size == largest:
                break
            following = choose_survivors(stages[-1], limit, keep_default=not search.validate)
            added = len(set(following) - set(running))
            left = self.share * self.total - self.spent - size * price.item(added)
            more = self.whole_batches(price.items(left, len(following), most=min(size, largest - size)))
            if not following or more < size / 4:  # a few more items tell nothing new
                break
            running, size = following, size + more
        # the first of the last stage is the best: what may not be chosen must not stand before it
        last = stages[-1]
        able = [m for m in last.measured if m.gain.high > 0 and not m.loses_recall(limit)]
        if not search.validate:
            able = [m for m in able if not self.is_no_better(m, last)]
        kept = [m.candidate for m in able[:SURVIVORS]]
        # and of the others what loses most recall: it is compared with the curve's end
        ranked = sorted(last.measured, key=lambda m: (m.candidate not in kept, self.lost_beyond_curve(m)))
        stages[-1] = replace(last, measured=tuple(ranked))
        validation = None
        if kept and search.validate:
            most = price.items(self.total - self.spent, len(kept), most=10**9)
            validation = self.stage("validation", max(SMALLEST, most), kept)
        seconds = time.monotonic() - started
        return Calibration(self.runner.model, tuple(stages), validation, limit, len(self.store) - known, seconds)

    def lost_beyond_curve(self, measured: Measured) -> float:
        """Points of recall, of a setting that names less than any point of the curve."""
        if measured.recall_change is None or measured.is_comparable(self.search.max_recall_loss):
            return 0.0
        return -measured.recall_change.value

    def is_no_better(self, measured: Measured, stage: Stage) -> bool:
        """Than the method as given, on the same images."""
        own = measured.candidate
        given = [m for m in stage.measured if m.candidate.applied == own.base]
        given = [m for m in given if m.is_comparable(self.search.max_recall_loss)]
        return own.applied != own.base and any(measured.gain.value <= m.gain.value for m in given)

    def check_time(self, settings: Sequence[Candidate]) -> None:
        """Refuse a time that is too short, after vanilla and one setting answered one batch each."""
        if not self.search.budget.timed:
            return
        tasks = self.ask("calibration", self.runner.batch_size, settings[:1], curve=False)
        label = settings[0].label
        seconds: dict[str, list[float]] = {VANILLA: [], label: []}
        for task in tasks.values():
            for name, own in seconds.items():
                own += [record.seconds for record in task.records(name) if record is not None]
        mean = {name: sum(own) / max(1, len(own)) for name, own in seconds.items()}
        cost = self.search.smallest_cost(mean[VANILLA], mean[label], traced=self.runner.model.traces)
        if cost > self.total:
            raise ValueError(self.search._too_small(cost, self.processes))

    def whole_batches(self, items: int) -> int:
        return items // self.runner.batch_size * self.runner.batch_size

    @property
    def spent(self) -> float:
        return sum(self.costs.values())

    def pay(self, tasks: Mapping[str, TaskResults]) -> Price:
        """Count the answers of a stage, and return what an item costs, the cheapest setting taken for each."""
        item, means, paid = 0.0, dict[str, float](), set[str]()
        for task in tasks.values():
            for label in (*task.methods, *task.curve):
                records = [record for record in task.records(label) if record is not None]
                # a run whose trace holds several answers is paid once
                costs = {r.source or r.key.digest: r.seconds if self.search.budget.timed else 1.0 for r in records}
                mean = sum(cost for key, cost in costs.items() if key not in paid) / max(1, len(costs))
                paid.update(costs)
                self.costs |= costs
                item += mean
                if label in task.others:
                    means[label] = means.get(label, 0.0) + mean
        each = min(means.values(), default=0.0)
        return Price(max(0.0, item - len(means) * each), each)

    def ask(
        self, split: str, most: int, settings: Sequence[Candidate], *, curve: bool = True
    ) -> dict[str, TaskResults]:
        """Vanilla, all settings and the control's curve on the first items of a split."""
        specs = [both[split == "validation"] for both in self.search.splits]
        specs = [replace(spec, items=spec.items[:most]) for spec in specs]
        methods: dict[str, Any] = {VANILLA: None, **{c.label: c.applied for c in settings}}
        trades = {spec.key: find_trade_off(spec) if curve else None for spec in specs}
        curves = {key: curve_methods(trade, trade.biases) if trade else {} for key, trade in trades.items()}
        self.runner.run([(spec, methods | curves[spec.key]) for spec in specs], self.store)
        configurations = methods_to_json(methods)
        tasks = {}
        for spec in specs:
            drawn = {label: method.to_json() for label, method in curves[spec.key].items()}
            tasks[spec.name] = TaskResults.of(spec, configurations, drawn, self.store, self.runner.model.fingerprint)
        return tasks

    def stage(self, split: str, most: int, settings: Sequence[Candidate]) -> Stage:
        """What all settings are worth on these items, the best first."""
        tasks = self.ask(split, most, settings)
        measured = [measure(candidate, tasks) for candidate in settings]
        # of equals the method as given comes first, and what has no gain last
        measured.sort(
            key=lambda m: (-m.gain.value if math.isfinite(m.gain.value) else math.inf, not m.candidate.is_default)
        )
        return Stage(split, {name: len(task.items) for name, task in tasks.items()}, tuple(measured), tasks)


def measure(candidate: Candidate, tasks: Mapping[str, TaskResults]) -> Measured:
    """What a setting did on these tasks."""
    label = candidate.label
    gains, draws, figures = [], [], {}
    recall, answers, changed, fired, images, on_curve = None, 0, 0, 0, 0, True
    for name, task in tasks.items():
        trade = task.trade_off
        assert trade is not None, "checked when the search was made"
        y = trade.ys[0]
        sign = -1.0 if task.better(y) == "lower" else 1.0
        equal = task.at_equal(label)[y]
        gains.append(sign * equal.difference.value)
        draws.append(sign * equal.draws)
        figures[name] = dict(task.scores(label).metrics)
        if trade.x != "yes_ratio":
            recall = task.difference(label, trade.x)
            if figures[name][trade.x] == 0:  # who names nothing is as good as a bias that silences the model: no gain
                gains[-1], draws[-1] = math.nan, np.full_like(draws[-1], math.nan)
        on_curve = on_curve and equal.inside
        answers += len(task.items)
        images = max(images, task.sample(label).images)
        changed += task.count_changed(label)
        fired += task.count_fired(label) or 0
    together = np.mean(draws, axis=0)
    gain = Estimate.of(float(np.mean(gains)), together, answers, images=images)
    return Measured(candidate, gain, together, figures, recall, changed / answers, fired / answers, images, on_curve)


def choose_survivors(stage: Stage, limit: float, *, keep_default: bool = False) -> list[Candidate]:
    """The better half of what may still gain, without what is surely worse than the best.

    A method as given stays until it is surely worse: that little was seen of it is not evidence. With `keep_default` it
    always stays, and nothing that names less than any point of the curve does. A setting that loses more recall than
    the limit goes on beside its companion, or, if that is impossible, alone until the loss is sure.
    """
    staying: list[tuple[Measured, list[Candidate]]] = []
    for measured in stage.measured:
        own = [measured.candidate] if not measured.surely_loses_recall(limit) else []
        helped = _add_companion(measured, stage) if measured.loses_recall(limit) else None
        if helped is not None:
            own = [helped] + [c for c in own if c.is_default]
        if own and measured.gain.high > 0:
            staying.append((measured, own))
    if keep_default:
        staying = [(m, own) for m, own in staying if m.is_comparable(limit)]
    best = staying[0][0].draws if staying else 0.0
    staying = [(m, own) for m, own in staying if np.percentile(best - m.draws, 2.5) <= 0]
    half = max(SURVIVORS, math.ceil(len(stage.measured) / 2))
    chosen = [c for i, (m, own) in enumerate(staying) if i < half or m.candidate.is_default for c in own]
    if chosen and keep_default:
        chosen += [m.candidate for m in stage.measured if m.candidate.is_default]
    return list(dict.fromkeys(chosen))  # a default that stays has the companion that it had before


def _add_companion(measured: Measured, stage: Stage) -> Candidate | None:
    """The setting beside the control at the bias that gives vanilla the recall that the setting loses."""
    for task in stage.tasks.values():
        trade = task.trade_off
        assert trade is not None, "checked when the search was made"
        if trade.x == "yes_ratio" or measured.recall_change is None or measured.candidate.companion:
            continue
        # the slope of the whole curve: on few images one step of it may change nothing
        ends = [next(iter(curve_methods(trade, [end(trade.biases)]))) for end in (min, max)]
        most, least = (task.sample(label).value(trade.x) for label in ends)
        slope = (most - least) / (max(trade.biases) - min(trade.biases))
        if slope > 0:
            steps = math.ceil(-2 * measured.recall_change.value / slope) / 2
            control: Any = METHODS[trade.control]
            return replace(measured.candidate, companion=control(bias=-min(STRONGEST, steps)))
    return None
