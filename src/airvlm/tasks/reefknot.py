"""Reefknot: relations between objects of Visual Genome, asked in three ways (Zheng et al., 2025).

9740 yes/no questions, 6950 with four options and 4870 open ones, each about a relation that can be seen (perception) or
has to be understood (cognition). The paper reports hallucination rates, 100 - accuracy, of each kind of question, and
the mean accuracy of the three. The repository has no scoring script: the rules of parsing here are ours, and figures of
open questions are not those of the paper. It has no license either: its questions are downloaded and never shipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from airvlm.tasks.answers import ITEMS_FROM_FILE, Entry, require_rows, score_by_id, score_entries, score_format
from airvlm.tasks.base import UNPARSED, Item, Metric, Ratio, Scores, Task, TaskKind
from airvlm.tasks.files.reading import Row, find_file, read_records
from airvlm.tasks.words.options import parse_option
from airvlm.tasks.words.yesno import YesNo, parse_yes_no

__all__ = ["Reefknot", "ReefknotChoice", "ReefknotVQA", "parse_relation"]

WHERE = "github.com/JackChen-seu/Reefknot"
PARTS = {"perception": "perception", "cognitive": "cognition", "cognition": "cognition"}
PLACES = ("images", "VG_100K", "VG_100K_2", "VG_dataset/VG_100K", "VG_dataset/VG_100K_2")


@dataclass(frozen=True)
class _Reefknot(Task):
    """What the three kinds of questions share."""

    file: ClassVar[str] = ""

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder(f"{self.file} (from {WHERE}) and the images of Visual Genome in images/")
        rows = read_records(find_file(folder, self.file, "Dataset", task=self.name))
        return [_make_item(row, n, folder) for n, row in enumerate(rows[:limit])]

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        def count(item: Item, answer: str) -> tuple[dict[str, float], dict[str, Any]]:
            parsed, part = self.parse(item, answer), item.meta["part"]
            right = float(parsed == self.get_truth(item))
            counts = {"n": 1.0, "right": right, "wrong": 1 - right, f"{part}:n": 1.0, f"{part}:right": right}
            counts |= {"yes": float(parsed == "yes"), UNPARSED: float(parsed is None)}
            return counts, {"parsed": parsed, "right": bool(right)}

        metrics = {"accuracy": Metric(Ratio("right", "n")), "hallucination_rate": Metric(Ratio("wrong", "n"), "lower")}
        if self.kind == "yesno":
            metrics["yes_ratio"] = Metric(Ratio("yes", "n"), "neither")
        for part in dict.fromkeys(PARTS.values()):
            if any(item.meta["part"] == part for item in items):
                metrics[part] = Metric(Ratio(f"{part}:right", f"{part}:n"))
        return Scores.of(items, answers, count, metrics, variant=self.variant_name)

    def get_truth(self, item: Item) -> Any:
        """What `parse` finds in the right answer."""
        return item.truth


@dataclass(frozen=True)
class Reefknot(_Reefknot):
    """Reefknot's yes/no questions: two per relation, of which one is right."""

    parser: str = "strict"  # a key of yesno.PARSERS

    name: ClassVar[str] = "reefknot"
    kind = "yesno"
    max_new_tokens: ClassVar[int] = 16
    source: ClassVar[str] = f"{WHERE}; --data FOLDER with YESNO.jsonl and Visual Genome's images"
    file: ClassVar[str] = "YESNO.jsonl"

    def parse(self, item: Item, text: str) -> YesNo | None:
        return parse_yes_no(text, item.truth, self.parser)


@dataclass(frozen=True)
class ReefknotChoice(_Reefknot):
    """Reefknot's multiple-choice questions, with the options inside the question."""

    name: ClassVar[str] = "reefknot-choice"
    kind: ClassVar[TaskKind] = "choice"
    max_new_tokens: ClassVar[int] = 16
    source: ClassVar[str] = f"{WHERE}; --data FOLDER with Multichoice.jsonl and Visual Genome's images"
    file: ClassVar[str] = "Multichoice.jsonl"

    def parse(self, item: Item, text: str) -> str | None:
        return parse_option(text, find_options(item.question))


@dataclass(frozen=True)
class ReefknotVQA(_Reefknot):
    """Reefknot's open questions: the answer is a sentence, of which the words between the two objects are compared."""

    match: Literal["exact", "contains"] = "exact"  # contains: the right relation anywhere in the answer's

    name: ClassVar[str] = "reefknot-vqa"
    kind: ClassVar[TaskKind] = "choice"
    max_new_tokens: ClassVar[int] = 32
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "exact": {"match": "exact"},
        "contains": {"match": "contains"},
    }
    source: ClassVar[str] = f"{WHERE}; --data FOLDER with VQA.jsonl and Visual Genome's images"
    file: ClassVar[str] = "VQA.jsonl"

    def parse(self, item: Item, text: str) -> str | None:
        found, right = parse_relation(text, item.question), self.get_truth(item)
        if self.match == "contains" and found is not None and f" {right} " in f" {found} ":
            return str(right)
        return found

    def get_truth(self, item: Item) -> str | None:
        return parse_relation(item.truth, item.question)


def find_options(question: str) -> dict[str, str]:
    """The options of "... in this photo? A. behind B. onto C. on D. into, please choose."."""
    found = re.split(r"\s([A-D])\. ", question.rsplit("?", 1)[-1])
    return {letter: text.removesuffix(", please choose.").strip() for letter, text in zip(found[1::2], found[2::2])}


_FORM = re.compile(r"following format:\s*(.+?) (is|are) <relation> (.+?)\.?$", re.DOTALL)
_FILLERS = re.compile(r"\b(?:a|an|the|is|are)\b")


def parse_relation(answer: str, question: str) -> str | None:
    """The relation in "bag is on ground.", for a question that gives the form "bag is <relation> ground.".

    Articles, case and marks do not matter. None if the answer has another form.
    """
    form = _FORM.search(question)
    if form is None:
        return None

    def plain(text: str) -> str:
        return " ".join(
            _FILLERS.sub(" ", re.sub(r"[^\w\s<>-]", " ", text.lower())).replace("<", " ").replace(">", " ").split()
        )

    first, last, sentence = plain(form[1]), plain(form[3]), plain(answer)
    if not sentence.startswith(first) or not sentence.endswith(last) or len(sentence) <= len(first) + len(last):
        return None
    return sentence[len(first) : len(sentence) - len(last)].strip() or None


def _make_item(row: Row, n: int, folder: Path | None) -> Item:
    key = row.read_id("image_id").removesuffix(".jpg")
    image = None
    if folder is not None:
        places = [folder / place / f"{key}.jpg" for place in PLACES]
        image = next((place for place in places if place.is_file()), places[0])
    part = PARTS[row.read_choice("relation_type", choices=PARTS)]
    label, question = row.read_text("label").strip(), row.read_text("query_prompt")
    truth = label.lower() if label.lower() in ("yes", "no") else label
    return Item(str(n), image, question, truth, {"part": part, "group": key})


@score_format.register
def score_reefknot_file(task: _Reefknot, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score answers by id, or the repository's files with `response` and `label` in every record."""
    rows = require_rows(read_records(path), path)
    if truth is not None or not all({"label", "response", "relation_type"} <= set(row) for row in rows):
        return score_by_id(task, path, truth, lenient=lenient)
    items = [_make_item(row, n, None) for n, row in enumerate(rows)]
    entries = [Entry(item.id, row.read_text("response"), row.line) for item, row in zip(items, rows, strict=True)]
    return score_entries(task, items, entries, path, lenient=lenient, notes=(ITEMS_FROM_FILE,))
