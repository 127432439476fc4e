"""What a benchmark is: items, a prompt for each, a parser of answers, and a score that can be resampled.

Knows nothing about models, methods, generation or where answers are stored.

Every metric of every task is a *formula over summed counts*: each item contributes a small dict of numbers,
the dicts are added up, and the formula turns the sums into a value. A ratio of sums (CHAIR_I), an F1, a corpus
BLEU and a plain accuracy all have this shape, so one paired bootstrap over items or images recomputes any of
them exactly:

    scores = task.score(items, answers)
    scores.metrics                        # {"CHAIR_S": 21.3, ...}, in percent
    scores.resampled("CHAIR_S", weights)  # weights: (B, items) multiplicities -> (B,) values
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from airvlm.tasks.coverage import Coverage
from airvlm.tasks.files.reading import read_records, read_text
from airvlm.tiny.grammar import DESCRIBE

__all__ = [
    "DESCRIBE",
    "Item",
    "Metric",
    "Ratio",
    "Scores",
    "Task",
    "TaskDataMissing",
    "read_records",
    "read_text",
]

T = TypeVar("T")  # an answer, or what was read from it
Counts = Mapping[str, Any]  # count name -> number, or an array of B resampled sums
Formula = Callable[[Counts], Any]  # must work elementwise, so that resampling is one call
UNPARSED = "unparsed"  # reserved count: 1 where the parser found no answer in the text
MISSING = "missing"  # reserved count: 1 where there was no answer (or no verdict) at all


class TaskDataMissing(FileNotFoundError):
    """A task needs files that are not there; the message says which, and where they come from."""


@dataclass(frozen=True)
class Item:
    """One question about one image."""

    id: str
    image: Any  # a path, an image, a bundled scene, a list of them, or None for text-only questions
    question: str  # as the benchmark has it; Task.prompt adds the instructions
    truth: Any = None  # whatever the task's score compares with
    meta: dict[str, Any] = field(default_factory=dict)  # category, image id, options, ...

    @property
    def group(self) -> str:
        """The unit of resampling: items about one image are drawn together."""
        if "picture" in self.meta and "group" not in self.meta:
            warnings.warn('meta["picture"] is now called meta["group"]', DeprecationWarning, stacklevel=2)
            return str(self.meta["picture"])
        return str(self.meta.get("group", self.id))

    @property
    def picture(self) -> str:
        """The former name of `group`."""
        warnings.warn("Item.picture is now called Item.group", DeprecationWarning, stacklevel=2)
        return self.group


@dataclass(frozen=True)
class Ratio:
    """scale * sum(numerator) / sum(denominator); nan where the denominator is 0."""

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
    """A named figure of a task: how it follows from summed counts, and which direction is better."""

    formula: Formula
    better: Literal["higher", "lower", "neither"] = "higher"


@dataclass(frozen=True)
class Scores:
    """A task's result with what is needed to recompute it on any resample of its items."""

    per_item: list[dict[str, float]]  # one dict of counts an item, in the items' order
    definitions: Mapping[str, Metric]
    groups: list[str]  # the unit of resampling of each item, see Item.group
    details: list[dict[str, Any]] = field(default_factory=list)  # for people: what was parsed, objects found, ...
    notes: tuple[str, ...] = ()  # what the reader of the table has to know
    coverage: Coverage | None = None  # how the answers met the items; None: every item was asked
    record: Mapping[str, Any] = field(default_factory=dict)  # what the files themselves add to the task's settings

    @classmethod
    def of(
        cls,
        items: Sequence[Item],
        answers: Sequence[T | None],
        count: Callable[[Item, T], tuple[dict[str, float], dict[str, Any]]],  # -> counts and details
        definitions: Mapping[str, Metric],
        notes: tuple[str, ...] = (),
    ) -> Scores:
        """The scores of items that are counted one by one; where there is no answer, that is what counts."""
        per_item, details = [], []
        for item, answer in zip(items, answers, strict=True):
            counts, detail = ({MISSING: 1.0}, {}) if answer is None else count(item, answer)
            per_item.append(counts)
            details.append({"id": item.id, **detail})
        return cls(per_item, definitions, [item.group for item in items], details, notes)

    @property
    def pictures(self) -> list[str]:
        """The former name of `groups`."""
        warnings.warn("Scores.pictures is now called Scores.groups", DeprecationWarning, stacklevel=2)
        return self.groups

    @property
    def names(self) -> list[str]:
        """All counts, in a fixed order: the columns of `matrix`."""
        return sorted({name for counts in self.per_item for name in counts})

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Counts of all items, (items, counts); a count an item does not have is 0."""
        names = self.names
        rows = [[float(counts.get(name, 0.0)) for name in names] for counts in self.per_item]
        return np.asarray(rows, dtype=np.float64).reshape(len(self.per_item), len(names))

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric on all items."""
        totals = self._totals(self.matrix.sum(axis=0))
        return {name: float(metric.formula(totals)) for name, metric in self.definitions.items()}

    @property
    def totals(self) -> dict[str, float]:
        """Every count, summed over the items."""
        return {name: float(value) for name, value in zip(self.names, self.matrix.sum(axis=0), strict=True)}

    def resampled(self, metric: str, weights: NDArray[Any]) -> NDArray[np.float64]:
        """A metric on resamples: weights (B, items) says how often each draw holds each item; gives (B,)."""
        sums = np.asarray(weights, dtype=np.float64) @ self.matrix  # (B, counts)
        return np.asarray(self.definitions[metric].formula(self._totals(sums.T)), dtype=np.float64)

    def only(self, indices: Iterable[int]) -> Scores:
        """The same scores on some of the items."""
        kept = list(indices)
        return replace(
            self,
            per_item=[self.per_item[i] for i in kept],
            groups=[self.groups[i] for i in kept],
            details=[self.details[i] for i in kept] if self.details else [],
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
    def covered(self) -> Coverage:
        """How the answers met the items, with the answers that could not be read."""
        asked = len(self.per_item)
        known = self.coverage or Coverage(asked, asked - self.missing, asked - self.missing)
        return known.read(self.unparsed)

    @property
    def n(self) -> int:
        """Items that count."""
        return len(self.per_item) - self.missing

    def _totals(self, sums: NDArray[np.float64]) -> Counts:
        totals = _Totals(zip(self.names, sums, strict=True))
        totals.shape = sums.shape[1:]
        return totals


class _Totals(dict[str, Any]):
    """Summed counts, in which a count that no item has is 0."""

    shape: tuple[int, ...] = ()

    def __missing__(self, name: str) -> Any:
        return np.zeros(self.shape)


@dataclass(frozen=True)
class Task:
    """A benchmark. Subclasses are frozen dataclasses whose fields are the variants, written into every record.

    Four methods make a task: `items`, `prompt`, `parse`, `score`; `rescore` is the same for a file of answers.
    """

    data: Path | None = None  # the user's folder with the benchmark's files and images

    name: ClassVar[str] = ""
    kind: ClassVar[Literal["caption", "yesno", "choice", "judged"]] = "yesno"
    protocol: ClassVar[Literal["text", "likelihood"]] = "text"  # likelihood: the answer is a JSON list, one per option
    max_new_tokens: ClassVar[int] = 64  # the benchmark's usual cap; the runner may be told another
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # --variant NAME -> field values
    renamed: ClassVar[Mapping[str, str]] = {}  # former name of an option -> its name
    source: ClassVar[str] = ""  # one line: whose protocol this is and where the data come from

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        """The questions, in a fixed order; the first `limit` of them."""
        raise NotImplementedError

    def prompt(self, item: Item) -> str:
        """What the model is asked."""
        return item.question

    def parse(self, item: Item, text: str) -> Any:
        """What the answer says, or None where it says nothing the benchmark understands."""
        raise NotImplementedError

    def parse_all(self, items: Sequence[Item], answers: Sequence[str | None]) -> list[Any]:
        """What each answer says; None where there is no answer too."""
        pairs = zip(items, answers, strict=True)
        return [None if text is None else self.parse(item, text) for item, text in pairs]

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        """Scores of answers in the items' order; None is a missing answer and counts in no metric."""
        raise NotImplementedError

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """Scores of a file of answers, in the formats the benchmark's official files have; needs no model.

        As it stands here: answers by item id, to the items of this task. `lenient`: see coverage.py.
        """
        from airvlm.tasks.files.answers import given_answers, in_order_of

        items = self.items()
        texts, coverage = in_order_of(items, given_answers(answers), answers, lenient=lenient)
        return replace(self.score(items, texts), coverage=coverage)

    def variant(self, name: str | None) -> Task:
        """This task with a named variant's fields."""
        if name is None:
            return self
        if name not in self.variants:
            known = ", ".join(self.variants) or "none"
            raise ValueError(f"{self.name} has no variant {name!r}; it has: {known}")
        return replace(self, **self.variants[name])

    def settings(self) -> dict[str, Any]:
        """Everything that decides a score besides the answers; stored with every run."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "data"}
        return {"task": self.name, **{k: str(v) if isinstance(v, Path) else v for k, v in own.items()}}

    def folder(self, need: str) -> Path:
        """The user's data folder, or an error that says what has to be in it."""
        if self.data is None:
            raise TaskDataMissing(f"{self.name} needs --data FOLDER with {need}")
        if not Path(self.data).is_dir():
            raise TaskDataMissing(f"{self.name}: {self.data} is no folder; it should hold {need}")
        return Path(self.data)
