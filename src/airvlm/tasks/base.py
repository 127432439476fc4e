"""What a benchmark is: items, a prompt for each, a parser of answers, and scores that can be resampled.

Every metric is a formula over summed counts. Each item contributes a small dict of numbers, the dicts are added up, and
the formula turns the sums into a value. A ratio of sums (CHAIR_I), an F1, a corpus BLEU and an accuracy all have this
form, so a paired bootstrap over items or images recomputes any of them exactly:

    scores = task.score(items, answers)
    scores.metrics                       # {"CHAIR_S": 21.3, ...}, in percent
    scores.resample("CHAIR_S", weights)  # weights: (B, items) multiplicities -> (B,) values
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from airvlm.tasks.files.reading import TaskDataMissing
from airvlm.tiny.grammar import DESCRIBE

__all__ = [
    "DESCRIBE",
    "Coverage",
    "Item",
    "Metric",
    "Ratio",
    "Scores",
    "Task",
    "TaskDataMissing",
    "TaskKind",
    "parse_answers",
]

T = TypeVar("T")
Counts = Mapping[str, Any]  # name of a count -> number, or an array of B resampled sums
Formula = Callable[[Counts], Any]  # must work elementwise, so that resampling is one call
TaskKind = Literal["caption", "yesno", "choice", "judged"]
UNPARSED = "unparsed"  # reserved count: 1 if the parser found no answer in the text
MISSING = "missing"  # reserved count: 1 if there was no answer (or no verdict) at all


@dataclass(frozen=True)
class Item:
    """One question about one image."""

    id: str
    image: Any  # a path, an image, a bundled scene, a list of them, or None for text-only questions
    question: str  # as the benchmark has it; Task.prompt adds the instructions
    truth: Any = None  # whatever the task's score compares with
    meta: dict[str, Any] = field(default_factory=dict)  # category, options, ...

    @property
    def group(self) -> str:
        """The unit of resampling: items about one image are drawn together."""
        return str(self.meta.get("group", self.id))


@dataclass(frozen=True)
class Ratio:
    """scale * sum(numerator) / sum(denominator); nan if the denominator is 0."""

    numerator: str
    denominator: str
    scale: float = 100.0

    def __call__(self, counts: Counts) -> Any:
        numerator = np.asarray(counts[self.numerator], dtype=float)
        denominator = np.asarray(counts[self.denominator], dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(denominator > 0, self.scale * numerator / denominator, np.nan)


@dataclass(frozen=True)
class Metric:
    """A metric of a task: its formula over summed counts, and which direction is better."""

    formula: Formula
    better: Literal["higher", "lower", "neither"] = "higher"


@dataclass(frozen=True)
class Coverage:
    """How many of a task's items have an answer, and how many answers belong to no item."""

    expected: int = 0  # items of the task
    given: int = 0  # answers
    matched: int = 0  # items that have an answer
    duplicate: int = 0  # answers whose id another answer has too
    unknown: int = 0  # answers to no item
    unreadable: int = 0  # matched answers in which the parser found nothing

    @property
    def missing(self) -> int:
        """Items without an answer."""
        return self.expected - self.matched

    @property
    def complete(self) -> bool:
        return self.missing == 0

    def to_json(self) -> dict[str, int]:
        counts = asdict(self)
        first = {name: counts.pop(name) for name in ("expected", "given", "matched")}
        return {**first, "missing": self.missing, **counts}

    def __str__(self) -> str:
        return " · ".join(f"{name} {count}" for name, count in self.to_json().items())


@dataclass(frozen=True)
class Scores:
    """A task's result, with what is needed to recompute it on any resample of its items.

    Args:
        per_item: one dict of counts per item, in the items' order.
        definitions: the metrics by name.
        groups: the unit of resampling of each item, see `Item.group`.
        details: for people: what was parsed, objects found, ...
        notes: what a reader of the result has to know.
        coverage: how the answers cover the items; derived from `per_item` if it is left out.
        record: what a file of answers adds to the task's settings.
        variant: the variant of the benchmark that was scored, see `Task.variant_name`.
    """

    per_item: list[dict[str, float]]
    definitions: Mapping[str, Metric]
    groups: list[str]
    details: list[dict[str, Any]] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    record: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""

    def __post_init__(self) -> None:
        answered = len(self.per_item) - self.missing
        coverage = self.coverage if self.coverage.expected else Coverage(len(self.per_item), answered, answered)
        object.__setattr__(self, "coverage", replace(coverage, unreadable=self.unparsed))

    @classmethod
    def of(
        cls,
        items: Sequence[Item],
        answers: Sequence[T | None],
        count: Callable[[Item, T], tuple[dict[str, float], dict[str, Any]]],
        definitions: Mapping[str, Metric],
        notes: tuple[str, ...] = (),
        variant: str = "",
        more_details: Sequence[Mapping[str, Any]] = (),
    ) -> Scores:
        """Scores of items that are counted one by one; an item without an answer counts as missing only.

        Args:
            items: the items.
            answers: one per item, None if there is none.
            count: (item, answer) -> (counts, details).
            definitions: the metrics by name.
            notes: see Scores.
            variant: see Scores.
            more_details: further details of each item, with or without an answer.
        """
        per_item, details = [], []
        for item, answer, more in zip(items, answers, more_details or [{}] * len(items), strict=True):
            counts, detail = ({MISSING: 1.0}, {}) if answer is None else count(item, answer)
            per_item.append(counts)
            details.append({"id": item.id, **more, **detail})
        return cls(per_item, definitions, [item.group for item in items], details, notes, variant=variant)

    @property
    def names(self) -> list[str]:
        """All counts in a fixed order: the columns of `matrix`."""
        return sorted({name for counts in self.per_item for name in counts})

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Counts of all items, (items, counts); a count that an item does not have is 0."""
        names = self.names
        rows = [[float(counts.get(name, 0.0)) for name in names] for counts in self.per_item]
        return np.asarray(rows, dtype=np.float64).reshape(len(self.per_item), len(names))

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric on all items."""
        totals = self._label_sums(self.matrix.sum(axis=0))
        return {name: float(metric.formula(totals)) for name, metric in self.definitions.items()}

    @property
    def totals(self) -> dict[str, float]:
        """Every count, summed over the items."""
        return {name: float(value) for name, value in zip(self.names, self.matrix.sum(axis=0), strict=True)}

    def resample(self, metric: str, weights: NDArray[Any]) -> NDArray[np.float64]:
        """A metric on resamples of the items.

        Args:
            metric: the metric's name.
            weights: (B, items), how often each resample holds each item.

        Returns:
            (B,), the metric on each resample.
        """
        sums = np.asarray(weights, dtype=np.float64) @ self.matrix  # (B, counts)
        return np.asarray(self.definitions[metric].formula(self._label_sums(sums.T)), dtype=np.float64)

    def select(self, indices: Iterable[int]) -> Scores:
        """The same scores on some of the items."""
        kept = list(indices)
        return replace(
            self,
            per_item=[self.per_item[i] for i in kept],
            groups=[self.groups[i] for i in kept],
            details=[self.details[i] for i in kept] if self.details else [],
            coverage=Coverage(),
        )

    @property
    def unparsed(self) -> int:
        """Answers in which the parser found nothing."""
        return int(sum(counts.get(UNPARSED, 0) for counts in self.per_item))

    @property
    def missing(self) -> int:
        """Items without an answer (or without a verdict); they count in no metric."""
        return int(sum(counts.get(MISSING, 0) for counts in self.per_item))

    @property
    def n(self) -> int:
        """Items that count."""
        return len(self.per_item) - self.missing

    def _label_sums(self, sums: NDArray[np.float64]) -> Counts:
        totals = _Totals(zip(self.names, sums, strict=True))
        totals.shape = sums.shape[1:]
        return totals


class _Totals(dict[str, Any]):
    """Summed counts; a count that no item has is 0."""

    shape: tuple[int, ...] = ()

    def __missing__(self, name: str) -> Any:
        return np.zeros(self.shape)


@dataclass(frozen=True)
class Task:
    """A benchmark.

    A subclass is a frozen dataclass. Its fields are the options of the benchmark (a parser, a seed, ...); they are
    recorded with every result. It defines

    * `items`: the questions, in a fixed order,
    * `prompt`: what the model is asked, by default the item's question,
    * `parse`: what one answer says,
    * `score`: the scores of all answers,

    and may extend `settings`, which is stored with every result. Files of answers are read in `airvlm.tasks.answers`.
    """

    data: Path | None = None  # the user's folder with the benchmark's files and images

    name: ClassVar[str] = ""
    kind: ClassVar[TaskKind] = "yesno"
    # likelihood: the answer is a JSON list of log-likelihoods, one per option
    protocol: ClassVar[Literal["text", "likelihood"]] = "text"
    max_new_tokens: ClassVar[int] = 64  # the benchmark's usual limit
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # --variant NAME -> field values
    source: ClassVar[str] = ""  # one line: whose protocol this is and where the data come from

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        """The questions, in a fixed order; the first `limit` of them."""
        raise NotImplementedError

    def check_installed(self) -> None:
        """Raise an ImportError, with the command to run, if something that scoring needs is not installed."""

    def prompt(self, item: Item) -> str:
        """What the model is asked."""
        return item.question

    def parse(self, item: Item, text: str) -> Any:
        """What an answer says; None if it says nothing that the benchmark understands."""
        raise NotImplementedError

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        """Scores of answers in the items' order; None is a missing answer and counts in no metric."""
        raise NotImplementedError

    def with_variant(self, name: str | None) -> Task:
        """This task with the fields of a named variant."""
        if name is None:
            return self
        if name not in self.variants:
            raise ValueError(f"{self.name} has no variant {name!r}. Known: {', '.join(self.variants) or 'none'}")
        return replace(self, **self.variants[name])

    @property
    def variant_name(self) -> str:
        """The variant that this task is: a key of `variants`, or the fields that variants differ in, as text."""
        names = list(dict.fromkeys(name for values in self.variants.values() for name in values))
        own = {name: getattr(self, name) for name in names}
        defaults = {f.name: f.default for f in fields(self)}
        for variant, values in self.variants.items():
            if own == {name: values.get(name, defaults[name]) for name in names}:
                return variant
        if own == {name: defaults[name] for name in names}:
            return "default" if names else ""
        return ", ".join(f"{name}={value}" for name, value in own.items())

    def settings(self) -> dict[str, Any]:
        """Everything that decides a score besides the answers; stored with every run."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "data"}
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in own.items()}
        return {"task": self.name, "variant": self.variant_name, **plain}

    def require_folder(self, need: str) -> Path:
        """The user's data folder.

        Raises:
            TaskDataMissing: there is none; the message says that it should hold `need`.
        """
        if self.data is None:
            raise TaskDataMissing(f"{self.name} needs --data FOLDER with {need}")
        if not Path(self.data).is_dir():
            raise TaskDataMissing(f"{self.name}: {self.data} is not a folder; it should hold {need}")
        return Path(self.data)


def parse_answers(task: Task, items: Sequence[Item], answers: Sequence[str | None]) -> list[Any]:
    """What each answer says under the task's parser; None also where there is no answer."""
    return [None if text is None else task.parse(item, text) for item, text in zip(items, answers, strict=True)]
