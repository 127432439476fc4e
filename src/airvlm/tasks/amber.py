"""AMBER: descriptions checked against all objects annotated in a picture, and yes/no questions (Wang et al., 2023).

Knows nothing about models. The words, their relations and the annotations are AMBER's own files, from the user's
folder. The official script also compares words by spaCy's vectors; on real descriptions that changes no figure, and
here only words that are equal or listed as related match.

CHAIR is the share of hallucinated nouns among those the benchmark knows, Cover the share of annotated objects that
are named, Hal the share of descriptions with a hallucination, Cog the share of the objects people tend to hallucinate
there that are named (lower is better).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from airvlm.tasks.base import Counts, Item, Metric, Scores, Task, TaskDataMissing, read_records, read_text
from airvlm.tasks.words.lemmas import nouns
from airvlm.tasks.words.tagger import TaggerChoice, find_tagger, how_tagged, why_rules
from airvlm.tasks.words.tokens import tokenize

__all__ = ["Amber", "AmberFiles", "amber_file", "amber_files", "amber_picture", "read_amber_answers"]

PROMPT = "Describe this image."
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
    return _read_files(folder)


@lru_cache(maxsize=2)
def _read_files(folder: Path) -> AmberFiles:
    related = json.loads(read_text(folder / "relation.json"))
    safe = frozenset(
        line.strip() for line in read_text(folder / "safe_words.txt").splitlines() if line.strip()
    )
    annotations = {int(note["id"]): note for note in read_records(folder / "annotations.json")}
    known = frozenset(related) | {word for words in related.values() for word in words}
    return AmberFiles(annotations, related, safe, known)


class _Objects:
    """Annotated objects of one picture and the words that name each; a word names the first that it fits."""

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
                image=amber_picture(folder, query["image"]),
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
            details = {"objects": named, "hallucinated": wrong, "hallucinated_words": wrong}
            return {name: float(value) for name, value in counts.items()}, details

        notes = () if find_tagger(self.tagger) else (f"{OFF} ({why_rules(self.tagger)})",)
        return Scores.of(items, answers, count, METRICS, notes)

    def rescore(self, answers: Path, truth: Path | None = None) -> Scores:
        """A JSON list of {"id", "response"}, against AMBER's data folder; yes/no answers among them are left out."""
        files, pairs = read_amber_answers(answers, truth or self.data)
        kept = [(number, text) for number, text in pairs if files.annotations[number]["type"] == "generative"]
        if not kept:
            raise ValueError(f"{answers} describes no picture: score its yes/no answers with amber-yesno")
        items = [Item(str(number), None, PROMPT, files.annotations[number]) for number, _ in kept]
        return self._score(items, [text for _, text in kept], files)


def read_amber_answers(answers: Path, truth: Path | None) -> tuple[AmberFiles, list[tuple[int, str]]]:
    """AMBER's files, and (item, answer) of each record of a file of answers."""
    if truth is None:
        raise TaskDataMissing(f"amber: give --truth FOLDER with {NEED}")
    files = amber_files(Path(truth))
    pairs = []
    for place, record in enumerate(read_records(answers), 1):
        text = next((record[key] for key in ("response", "text", "answer") if key in record), None)
        if not isinstance(text, str) or "id" not in record:
            raise ValueError(f"{answers}, record {place}: needs an id and a response")
        if int(record["id"]) not in files.annotations:
            raise ValueError(f"{answers}, record {place}: AMBER has no item {record['id']}")
        pairs.append((int(record["id"]), text))
    return files, pairs


def amber_file(folder: Path, name: str) -> Path:
    """One of AMBER's files, wherever in the folder it lies."""
    for place in (folder, folder / "data", folder / "data" / "query", folder / "query"):
        if (place / name).exists():
            return place / name
    raise TaskDataMissing(f"amber: no {name} in {folder}, its data/ or its query/")


def amber_picture(folder: Path, name: str) -> Path:
    """A picture of AMBER's."""
    for place in (folder / "image", folder / "images", folder):
        if (place / name).exists():
            return place / name
    raise TaskDataMissing(f"amber: no picture {name} in {folder} or its image/ folder")
