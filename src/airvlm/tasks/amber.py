"""AMBER: descriptions checked against all annotated objects of an image, and yes/no questions (Wang et al., 2023).

Words, their relations and annotations are AMBER's own files, in the user's folder. The official script also compares
words by spaCy's vectors; that changes no figure on real descriptions, so here words match only if they are equal or
listed as related.

Descriptions: CHAIR is the share of hallucinated nouns among those that the benchmark knows, Cover the share of the
annotated objects that are named, Hal the share of descriptions with a hallucination, and Cog the share of the objects
that people tend to hallucinate that are named (lower is better). Questions: accuracy, and precision, recall and F1 of
the answer "no"; F1 is computed from rounded precision and recall, as in the official script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from airvlm.tasks.answers import Entry, score_entries, score_format
from airvlm.tasks.base import UNPARSED, Counts, Item, Metric, Ratio, Scores, Task, TaskDataMissing
from airvlm.tasks.files.reading import find_file, read_json, read_records, read_text
from airvlm.tasks.words.base_forms import find_nouns
from airvlm.tasks.words.tagger import describe_tagger, load_tagger
from airvlm.tasks.words.tokens import tokenize
from airvlm.tasks.words.yesno import YesNo, parse_yes_no

__all__ = ["Amber", "AmberYesNo"]

GENERATIVE = "generative"
GUARD = 0.001  # what every denominator of the official script starts with
NEED = "AMBER's annotations.json, relation.json, safe_words.txt and (to run models) query files and image/"
# measured against the official script on the 40 descriptions of tests/data/amber
APPROXIMATION = (
    "approximate: nouns are found by rules instead of NLTK's tagger. On 40 descriptions that the rules were not "
    "written for, CHAIR, Cover, Hal and Cog were off by 0.8, 4.9, 5.0 and 2.4 points"
)


@dataclass(frozen=True)
class Guarded:
    """A percentage whose denominator is a little too large, as in the official script."""

    numerator: str
    denominator: str
    guard: float = GUARD

    def __call__(self, counts: Counts) -> Any:
        return 100 * np.asarray(counts[self.numerator]) / (np.asarray(counts[self.denominator]) + self.guard)


# -- AMBER's files


@dataclass(frozen=True)
class AmberFiles:
    """AMBER's annotations, and which words belong together."""

    annotations: Mapping[int, Mapping[str, Any]]  # id -> type, truth and hallu
    related: Mapping[str, Sequence[str]]  # object -> words that count for it
    safe: frozenset[str]  # words that are never a hallucination
    known: frozenset[str]  # every word that the benchmark knows


def read_amber_files(place: Path) -> AmberFiles:
    """AMBER's files, from its folder, its data folder or the path of its annotations.json."""
    folder = place if place.is_dir() else place.parent
    folder = folder / "data" if (folder / "data" / "relation.json").exists() else folder
    for name in ("annotations.json", "relation.json", "safe_words.txt"):
        if not (folder / name).exists():
            raise TaskDataMissing(f"amber: no {name} in {folder}; it should hold {NEED}")
    return _read_files(folder, (folder / "annotations.json").stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _read_files(folder: Path, changed: int) -> AmberFiles:
    """`changed` is the modification time of the annotations, for the cache."""
    related = read_json(folder / "relation.json")
    if not isinstance(related, dict) or not all(_is_list_of_texts(words) for words in related.values()):
        raise ValueError(f"{folder / 'relation.json'}: expected a JSON object of word -> [words]")
    safe = frozenset(line.strip() for line in read_text(folder / "safe_words.txt").splitlines() if line.strip())
    file = folder / "annotations.json"
    annotations: dict[int, Mapping[str, Any]] = {}
    for row in read_records(file):
        key, kind, truth, hallu = row.read_int("id"), row.read_text("type"), row.find("truth")[1], row.get("hallu")
        right = _is_list_of_texts(truth) and _is_list_of_texts(hallu) if kind == GENERATIVE else truth in ("yes", "no")
        if not right:
            raise row.error("truth", f"not that of a {kind} item: {str(truth)[:40]!r}, hallu {str(hallu)[:40]!r}")
        if key in annotations:
            raise row.error("id", f"duplicate id {key}")
        annotations[key] = {"type": kind, "truth": truth, "hallu": hallu}
    if not annotations:
        raise ValueError(f"{file} has no annotations")
    known = frozenset(related) | {word for words in related.values() for word in words}
    return AmberFiles(annotations, related, safe, known)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _read_items(folder: Path, file: str, limit: int | None) -> list[Item]:
    """The questions of a query file; an item's truth is its annotation."""
    annotations = read_amber_files(folder).annotations
    items = []
    for row in read_records(find_file(folder, file, "data", "data/query", "query", task="amber"))[:limit]:
        key, image = row.read_int("id"), row.read_text("image")
        if key not in annotations:
            raise row.error("id", f"there is no annotation {key}")
        path = find_file(folder, image, "image", "images", task="amber")
        items.append(Item(str(key), path, row.read_text("query"), annotations[key], {"group": image}))
    return items


def _read_answers(
    task: Task, path: Path, truth: Path | None, is_wanted: Callable[[str], bool], other: str
) -> tuple[Path, list[Item], list[Entry[str]]]:
    """AMBER's folder, the task's items, and the answers to them in a JSON list of {"id", "response"}.

    Answers to the items of the `other` task are left out.
    """
    place = truth or task.data
    if place is None:
        raise TaskDataMissing(f"{task.name}: give --truth FOLDER with {NEED}")
    annotations = read_amber_files(Path(place)).annotations
    entries, answers_other = [], False
    for row in read_records(path):
        key, text = row.read_int("id", "item"), row.read_text("response", "text", "answer")
        if key not in annotations or is_wanted(annotations[key]["type"]):
            entries.append(Entry(str(key), text, row.line))
        else:
            answers_other = True
    if answers_other and not entries:
        raise ValueError(f"{path} answers none of the items of {task.name}: score it with {other}")
    items = [Item(str(key), None, "", note) for key, note in annotations.items() if is_wanted(note["type"])]
    return place if place.is_dir() else place.parent, items, entries


# -- descriptions


class _Objects:
    """Annotated objects of one image, and the words that name each; a word names the first object that it fits."""

    def __init__(self, objects: Sequence[str], related: Mapping[str, Sequence[str]]) -> None:
        self.total, self.covered = len(objects), set[int]()
        self.index: dict[str, int] = {}
        # related words first, as the official script looks them up
        for i, name in enumerate(objects):
            for word in related.get(name, ()):
                self.index.setdefault(word, i)
        for i, name in enumerate(objects):
            self.index.setdefault(name, i)

    def cover(self, word: str) -> bool:
        """Mark the object that a word names as covered; False if it names none."""
        if word in self.index:
            self.covered.add(self.index[word])
        return word in self.index


@dataclass(frozen=True)
class Amber(Task):
    """AMBER's generative part: descriptions."""

    approximate: bool = False  # find nouns by rules instead of NLTK's tagger

    name: ClassVar[str] = "amber"
    kind = "caption"
    max_new_tokens: ClassVar[int] = 512
    source: ClassVar[str] = "AMBER, generative; --data FOLDER with its data files and image/"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "CHAIR": Metric(Guarded("hallucinated", "nouns"), "lower"),
        "Cover": Metric(Guarded("covered", "truths")),
        "Hal": Metric(Guarded("hallucinating", "descriptions"), "lower"),
        "Cog": Metric(Guarded("cognitive", "tempting"), "lower"),
        "length": Metric(Ratio("words", "descriptions", scale=1.0), "neither"),  # saying less lowers CHAIR and Cover
    }

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder(NEED)
        self.check_installed()  # fails now instead of after the generation
        return _read_items(folder, "query_generative.json", limit)

    def check_installed(self) -> None:
        if not self.approximate:
            load_tagger()

    @property
    def variant_name(self) -> str:
        return "approximate" if self.approximate else ""

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"tagger": describe_tagger(self.approximate)}

    def parse(self, item: Item, text: str) -> list[str]:
        return find_nouns(tokenize(text)) if self.approximate else load_tagger().find_nouns(text)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        files = read_amber_files(self.require_folder(NEED))

        def count(item: Item, answer: str) -> tuple[dict[str, float], dict[str, Any]]:
            nouns = [noun for noun in self.parse(item, answer) if noun in files.known]
            present = _Objects(item.truth["truth"], files.related)
            tempting = _Objects(item.truth["hallu"], files.related)
            wrong = [noun for noun in nouns if noun not in files.safe and not present.cover(noun)]
            for noun in wrong:
                tempting.cover(noun)
            counts = {
                "descriptions": 1,
                "words": len(answer.split()),
                "hallucinating": int(bool(wrong)),
                "nouns": len(nouns),
                "hallucinated": len(wrong),
                "covered": len(present.covered),
                "truths": present.total,
                "cognitive": len(tempting.covered),
                "tempting": tempting.total,
            }
            if not answer.strip():
                counts[UNPARSED] = 1
            details = {"objects": nouns, "hallucinated": wrong, "hallucinated_words": wrong}
            return {name: float(value) for name, value in counts.items()}, details

        notes = (APPROXIMATION,) if self.approximate else ()
        return Scores.of(items, answers, count, self.metrics, notes, self.variant_name)


@score_format.register
def score_amber_file(task: Amber, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score a JSON list of {"id", "response"} against AMBER's data folder; yes/no answers in it are left out."""
    folder, items, entries = _read_answers(task, path, truth, lambda kind: kind == GENERATIVE, "amber-yesno")
    return score_entries(replace(task, data=folder), items, entries, path, lenient=lenient)


# -- yes/no questions


@dataclass(frozen=True)
class OfficialF1:
    """AMBER's F1 of the answer "no", from precision and recall rounded to one decimal."""

    group: str
    guard: float
    start: float = GUARD  # what the denominators of precision and recall start with

    def __call__(self, counts: Counts) -> Any:
        answered, truly, both = (
            np.asarray(counts[f"{self.group}.{name}"], dtype=float) for name in ("said_no", "no", "both_no")
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            precision = np.round(100 * both / (answered + self.start), 1) / 100
            recall = np.round(100 * both / (truly + self.start), 1) / 100
            return 200 * precision * recall / (precision + recall + self.guard)


_GROUPS = {  # annotation type -> the groups in which it is reported
    "discriminative-hallucination": ("existence",),
    "discriminative-attribute-state": ("attribute", "state"),
    "discriminative-attribute-number": ("attribute", "number"),
    "discriminative-attribute-action": ("attribute", "action"),
    "discriminative-relation": ("relation",),
    "relation": ("relation",),
}
_ORDER = ("all", "existence", "attribute", "state", "number", "action", "relation")
_PARTS = {"attribute": 3}  # groups that sum several denominators, each of which starts with the guard


def _define_metrics(groups: Iterable[str]) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for name in groups:
        start = GUARD * _PARTS.get(name, 1)
        suffix = "" if name == "all" else f"-{name}"
        metrics[f"accuracy{suffix}"] = Metric(Guarded(f"{name}.correct", f"{name}.n", start))
        metrics[f"precision{suffix}"] = Metric(Guarded(f"{name}.both_no", f"{name}.said_no", start))
        metrics[f"recall{suffix}"] = Metric(Guarded(f"{name}.both_no", f"{name}.no", start))
        metrics[f"f1{suffix}"] = Metric(OfficialF1(name, 0.001 if name == "existence" else 0.0001, start))
        metrics[f"yes_ratio{suffix}"] = Metric(Ratio(f"{name}.said_yes", f"{name}.n"), "neither")
    return metrics


def _make_question(item: Item) -> Item:
    """An item whose truth is its annotation as a yes/no question."""
    return replace(item, truth=item.truth["truth"], meta={**item.meta, "type": item.truth["type"]})


@dataclass(frozen=True)
class AmberYesNo(Task):
    """AMBER's discriminative part: accuracy and yes-ratio, and precision, recall and F1 of the answer "no"."""

    parser: Literal["strict", "official"] = "strict"  # official: the answer must be exactly "Yes" or "No"

    name: ClassVar[str] = "amber-yesno"
    kind = "yesno"
    max_new_tokens: ClassVar[int] = 16
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "strict": {"parser": "strict"},
        "official": {"parser": "official"},
    }
    source: ClassVar[str] = "AMBER, discriminative; --data FOLDER with its data files and image/"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        items = _read_items(self.require_folder(NEED), "query_discriminative.json", limit)
        return [_make_question(item) for item in items]

    def parse(self, item: Item, text: str) -> YesNo | None:
        if self.parser == "official":
            return "yes" if text == "Yes" else "no" if text == "No" else None
        return parse_yes_no(text, item.truth, "strict")

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        def count(item: Item, answer: str) -> tuple[dict[str, float], dict[str, Any]]:
            parsed = self.parse(item, answer)
            counts = {UNPARSED: float(parsed is None)}
            for name in ("all", *_GROUPS[item.meta["type"]]):
                counts[f"{name}.n"] = 1.0
                counts[f"{name}.correct"] = float(parsed == item.truth)
                counts[f"{name}.said_no"] = float(parsed == "no")
                counts[f"{name}.said_yes"] = float(parsed == "yes")
                counts[f"{name}.no"] = float(item.truth == "no")
                counts[f"{name}.both_no"] = float(parsed == "no" == item.truth)
            return counts, {"label": item.truth, "parsed": parsed, "correct": parsed == item.truth}

        present = {"all", *(name for item in items for name in _GROUPS[item.meta["type"]])}
        metrics = _define_metrics(name for name in _ORDER if name in present)
        return Scores.of(items, answers, count, metrics, variant=self.variant_name)


@score_format.register
def score_amber_yesno_file(task: AmberYesNo, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score a JSON list of {"id", "response"} against AMBER's data folder; descriptions in it are left out."""
    _, items, entries = _read_answers(task, path, truth, lambda kind: kind in _GROUPS, "amber")
    return score_entries(task, [_make_question(item) for item in items], entries, path, lenient=lenient)
