"""AMBER: descriptions checked against all objects annotated in an image, and yes/no questions (Wang et al., 2023).

Knows nothing about models. The words, their relations and the annotations are AMBER's own files, from the user's
folder. The official script also compares words by spaCy's vectors; on real descriptions that changes no figure, and
here only words that are equal or listed as related match.

CHAIR is the share of hallucinated nouns among those the benchmark knows, Cover the share of annotated objects that
are named, Hal the share of descriptions with a hallucination, Cog the share of the objects people tend to hallucinate
there that are named (lower is better).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import model_validator

from airvlm.tasks.base import UNPARSED, Counts, Item, Metric, Scores, Task, TaskDataMissing
from airvlm.tasks.coverage import Coverage, Given, match
from airvlm.tasks.files.reading import read_json, read_records, read_text
from airvlm.tasks.files.records import Checked, Text, Whole, checked, first_of
from airvlm.tasks.words.lemmas import nouns
from airvlm.tasks.words.tagger import TaggerChoice, find_tagger, how_tagged, why_rules
from airvlm.tasks.words.tokens import tokenize

__all__ = ["Amber", "AmberFiles", "amber_file", "amber_files", "amber_image", "read_amber_answers"]

PROMPT = "Describe this image."
GENERATIVE = "generative"
GUARD = 0.001  # what every denominator of the official script starts with


@dataclass(frozen=True)
class Guarded:
    """A percentage whose denominator is a little too large, as the official script's are."""

    numerator: str
    denominator: str
    guard: float = GUARD

    def __call__(self, counts: Counts) -> Any:
        return 100 * np.asarray(counts[self.numerator]) / (np.asarray(counts[self.denominator]) + self.guard)


METRICS: dict[str, Metric] = {
    "CHAIR": Metric(Guarded("hallucinated", "nouns"), "lower"),
    "Cover": Metric(Guarded("covered", "truths")),
    "Hal": Metric(Guarded("hallucinating", "descriptions"), "lower"),
    "Cog": Metric(Guarded("cognitive", "tempting"), "lower"),
}
# measured against the official script on the 40 descriptions of tests/data/amber
OFF = (
    "nouns by rules, approximate: on 40 descriptions that the rules were not written for, CHAIR, Cover, Hal and Cog "
    "were off by 0.8, 4.9, 5.0 and 2.4 points"
)
NEED = "AMBER's annotations.json, relation.json, safe_words.txt and (to run models) query files and image/"


@dataclass(frozen=True)
class AmberFiles:
    """AMBER's annotations, and which words belong together."""

    annotations: Mapping[int, Mapping[str, Any]]
    related: Mapping[str, Sequence[str]]  # object -> words that count for it
    safe: frozenset[str]  # words that are never a hallucination
    known: frozenset[str]  # every word the benchmark knows


def amber_files(place: Path) -> AmberFiles:
    """AMBER's files, from its data folder or the path of its annotations.json."""
    folder = place if place.is_dir() else place.parent
    folder = folder / "data" if (folder / "data" / "relation.json").exists() else folder
    for name in ("annotations.json", "relation.json", "safe_words.txt"):
        if not (folder / name).exists():
            raise TaskDataMissing(f"amber: no {name} in {folder}; it should hold {NEED}")
    return _read_files(folder, (folder / "annotations.json").stat().st_mtime_ns)


class Annotation(Checked):
    """An annotation: of a description its objects, of a question its answer."""

    id: Whole
    type: Text
    truth: Any
    hallu: Any = None

    @model_validator(mode="after")
    def _fits_its_type(self) -> Annotation:
        wanted = _names if self.type == GENERATIVE else _yes_no
        for name, value in (
            ("truth", self.truth),
            *((("hallu", self.hallu),) if self.type == GENERATIVE else ()),
        ):
            if not wanted(value):
                raise ValueError(f"{name} of a {self.type} item is {str(value)[:40]!r}")
        return self


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _yes_no(value: Any) -> bool:
    return value in ("yes", "no")


class AmberAnswer(Checked):
    id: Whole
    text: Text = first_of("response", "text", "answer")


@lru_cache(maxsize=2)
def _read_files(folder: Path, changed: int) -> AmberFiles:
    related = read_json(folder / "relation.json")
    if not isinstance(related, dict) or not all(_names(words) for words in related.values()):
        raise ValueError(f"{folder / 'relation.json'}: expected a JSON object of word -> [words]")
    safe = frozenset(line.strip() for line in read_text(folder / "safe_words.txt").splitlines() if line.strip())
    file = folder / "annotations.json"
    notes = checked(Annotation, read_records(file), file)
    annotations = {note.id: {"type": note.type, "truth": note.truth, "hallu": note.hallu} for note in notes}
    if len(annotations) < len(notes) or not notes:
        raise ValueError(f"{file}: {'an id stands there twice' if notes else 'it holds no annotations'}")
    known = frozenset(related) | {word for words in related.values() for word in words}
    return AmberFiles(annotations, related, safe, known)


class _Objects:
    """Annotated objects of one image and the words that name each; a word names the first that it fits."""

    def __init__(self, objects: Sequence[str], related: Mapping[str, Sequence[str]]) -> None:
        self.total, self.covered = len(objects), set[int]()
        self.place: dict[str, int] = {}
        for i, name in enumerate(objects):  # related words first, as the official script looks them up
            for word in related.get(name, ()):
                self.place.setdefault(word, i)
        for i, name in enumerate(objects):
            self.place.setdefault(name, i)

    def cover(self, word: str) -> bool:
        if word in self.place:
            self.covered.add(self.place[word])
        return word in self.place


@dataclass(frozen=True)
class Amber(Task):
    """AMBER's generative part."""

    tagger: TaggerChoice = "auto"  # which words are nouns: NLTK's tagger where it is installed, else rules

    name: ClassVar[str] = "amber"
    kind = "caption"
    max_new_tokens: ClassVar[int] = 512
    source: ClassVar[str] = "AMBER, generative; --data FOLDER with its data files and image/"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.folder(NEED)
        return [
            Item(
                id=str(query["id"]),
                image=amber_image(folder, query["image"]),
                question=query.get("query", PROMPT),
                truth=amber_files(folder).annotations[int(query["id"])],
            )
            for query in read_records(amber_file(folder, "query_generative.json"))[:limit]
        ]

    def parse(self, item: Item, text: str) -> list[str]:
        tagger = find_tagger(self.tagger)
        return nouns(tokenize(text)) if tagger is None else tagger.nouns(text)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"tagger": how_tagged(self.tagger)}

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        return self._score(items, answers, amber_files(self.folder(NEED)))

    def _score(self, items: Sequence[Item], answers: Sequence[str | None], files: AmberFiles) -> Scores:
        def count(item: Item, answer: str) -> tuple[dict[str, float], dict[str, Any]]:
            named = [noun for noun in self.parse(item, answer) if noun in files.known]
            there = _Objects(item.truth["truth"], files.related)
            tempting = _Objects(item.truth["hallu"], files.related)
            wrong = []
            for noun in named:
                if noun in files.safe or there.cover(noun):
                    continue
                tempting.cover(noun)
                wrong.append(noun)
            counts = {
                "descriptions": 1,
                "hallucinating": int(bool(wrong)),
                "nouns": len(named),
                "hallucinated": len(wrong),
                "covered": len(there.covered),
                "truths": there.total,
                "cognitive": len(tempting.covered),
                "tempting": tempting.total,
            }
            if not answer.strip():
                counts[UNPARSED] = 1
            details = {"objects": named, "hallucinated": wrong, "hallucinated_words": wrong}
            return {name: float(value) for name, value in counts.items()}, details

        notes = () if find_tagger(self.tagger) else (f"{OFF} ({why_rules(self.tagger)})",)
        return Scores.of(items, answers, count, METRICS, notes)

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """A JSON list of {"id", "response"}, against AMBER's data folder; yes/no answers among them are left out."""
        files, numbers, texts, coverage = read_amber_answers(
            answers, truth or self.data, lambda kind: kind == GENERATIVE, "amber-yesno", lenient=lenient
        )
        items = [Item(str(number), None, PROMPT, files.annotations[number]) for number in numbers]
        return replace(self._score(items, texts, files), coverage=coverage)


def read_amber_answers(
    answers: Path, truth: Path | None, ours: Callable[[str], bool], other: str, *, lenient: bool
) -> tuple[AmberFiles, list[int], list[str | None], Coverage]:
    """AMBER's files, and the answers to those of its items that are ours, in their order."""
    if truth is None:
        raise TaskDataMissing(f"amber: give --truth FOLDER with {NEED}")
    files = amber_files(Path(truth))
    records = checked(AmberAnswer, read_records(answers), answers)
    rest = [one for one in records if one.id not in files.annotations or ours(files.annotations[one.id]["type"])]
    if records and not rest:
        raise ValueError(f"{answers} answers none of this task's items: score it with {other}")
    numbers = [number for number, note in files.annotations.items() if ours(note["type"])]
    given = [Given(str(one.id), one.text, one.line) for one in rest]
    texts, coverage = match([str(number) for number in numbers], given, answers, lenient=lenient)
    return files, numbers, texts, coverage


def amber_file(folder: Path, name: str) -> Path:
    """One of AMBER's files, wherever in the folder it lies."""
    for place in (folder, folder / "data", folder / "data" / "query", folder / "query"):
        if (place / name).exists():
            return place / name
    raise TaskDataMissing(f"amber: no {name} in {folder}, its data/ or its query/")


def amber_image(folder: Path, name: str) -> Path:
    """An image of AMBER's."""
    for place in (folder / "image", folder / "images", folder):
        if (place / name).exists():
            return place / name
    raise TaskDataMissing(f"amber: no image {name} in {folder} or its image/ folder")
