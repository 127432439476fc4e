"""AMBER's yes/no questions: existence, attribute (state, number, action) and relation.

Knows nothing about models. The positive class is "no", and F1 is computed from rounded precision and recall, as the
official script does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from airvlm.tasks.amber import (
    GUARD,
    NEED,
    Guarded,
    amber_file,
    amber_files,
    amber_image,
    read_amber_answers,
)
from airvlm.tasks.base import Counts, Item, Metric, Scores, Task, read_records
from airvlm.tasks.words.yesno import YesBias, read_yes_no

__all__ = ["AmberYesNo"]


@dataclass(frozen=True)
class OfficialF1:
    """AMBER's F1: from precision and recall rounded to one decimal; the positive class is "no"."""

    group: str
    guard: float
    starts: float = GUARD  # what the denominators of precision and recall start with

    def __call__(self, counts: Counts) -> Any:
        said = np.asarray(counts[f"{self.group}.said_no"], dtype=float)
        truly = np.asarray(counts[f"{self.group}.no"], dtype=float)
        both = np.asarray(counts[f"{self.group}.both_no"], dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            p, r = (
                np.round(100 * both / (said + self.starts), 1) / 100,
                np.round(100 * both / (truly + self.starts), 1) / 100,
            )
            return 200 * p * r / (p + r + self.guard)


_GROUPS = {  # annotation type -> the groups it is reported in
    "discriminative-hallucination": ("existence",),
    "discriminative-attribute-state": ("attribute", "state"),
    "discriminative-attribute-number": ("attribute", "number"),
    "discriminative-attribute-action": ("attribute", "action"),
    "discriminative-relation": ("relation",),
    "relation": ("relation",),
}
_ORDER = ("all", "existence", "attribute", "state", "number", "action", "relation")
_PARTS = {"attribute": 3}  # groups that sum several denominators, each of which starts with the guard


@dataclass(frozen=True)
class AmberYesNo(Task):
    """AMBER's discriminative part: accuracy, and precision, recall and F1 of the answer "no"."""

    parser: Literal["strict", "official"] = "strict"  # official: the answer is "Yes" or "No" to the letter

    name: ClassVar[str] = "amber-yesno"
    kind = "yesno"
    max_new_tokens: ClassVar[int] = 16
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "strict": {"parser": "strict"},
        "official": {"parser": "official"},
    }
    source: ClassVar[str] = "AMBER, discriminative; --data FOLDER with its data files and image/"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.folder(NEED)
        notes = amber_files(folder).annotations
        return [
            Item(
                id=str(query["id"]),
                image=amber_image(folder, query["image"]),
                question=query["query"],
                truth=notes[int(query["id"])]["truth"],
                meta={"group": query["image"], "type": notes[int(query["id"])]["type"]},
            )
            for query in read_records(amber_file(folder, "query_discriminative.json"))[:limit]
        ]

    def parse(self, item: Item, text: str) -> YesBias | None:
        if self.parser == "official":
            exact: dict[str, YesBias] = {"Yes": "yes", "No": "no"}
            return exact.get(text)
        return read_yes_no(text, item.truth, "strict")

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        per_item: list[dict[str, float]] = []
        details: list[dict[str, Any]] = []
        present = {"all"}
        for item, answer in zip(items, answers, strict=True):
            said = None if answer is None else self.parse(item, answer)
            groups = ("all", *_GROUPS[item.meta["type"]])
            present |= set(groups)
            counts: dict[str, float] = {"missing": 1.0} if answer is None else {"unparsed": float(said is None)}
            for name in groups if answer is not None else ():
                counts[f"{name}.n"] = 1.0
                counts[f"{name}.correct"] = float(said == item.truth)
                counts[f"{name}.said_no"] = float(said == "no")
                counts[f"{name}.no"] = float(item.truth == "no")
                counts[f"{name}.both_no"] = float(said == "no" == item.truth)
            per_item.append(counts)
            details.append({"id": item.id, "label": item.truth, "parsed": said, "correct": said == item.truth})
        metrics: dict[str, Metric] = {}
        for name in (name for name in _ORDER if name in present):
            starts = GUARD * _PARTS.get(name, 1)
            tail = "" if name == "all" else f"-{name}"
            metrics[f"accuracy{tail}"] = Metric(Guarded(f"{name}.correct", f"{name}.n", starts))
            metrics[f"precision{tail}"] = Metric(Guarded(f"{name}.both_no", f"{name}.said_no", starts))
            metrics[f"recall{tail}"] = Metric(Guarded(f"{name}.both_no", f"{name}.no", starts))
            metrics[f"f1{tail}"] = Metric(OfficialF1(name, 0.001 if name == "existence" else 0.0001, starts))
        return Scores(per_item, metrics, [item.group for item in items], details)

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """A JSON list of {"id", "response"}, against AMBER's data folder; descriptions among them are left out."""
        files, numbers, texts, coverage = read_amber_answers(
            answers, truth or self.data, lambda kind: kind in _GROUPS, "amber", lenient=lenient
        )
        notes = files.annotations
        items = [Item(str(n), None, "", notes[n]["truth"], {"type": notes[n]["type"]}) for n in numbers]
        return replace(self.score(items, texts), coverage=coverage)
