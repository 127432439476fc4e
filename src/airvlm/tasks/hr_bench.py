"""HR-Bench: multiple choice about images of 4K or 8K, each question asked with its options in four orders.

200 questions x 4 orders: half about one instance (FSP), half across instances (FCP). Every order counts alone: accuracy
is the mean over the orders of the accuracy within each (Wang et al., 2024). The official table (.tsv) has the images in
base64; they are written beside it once.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from airvlm.storage.atomic import write_atomically
from airvlm.tasks.answers import read_answers, score_entries, score_format
from airvlm.tasks.base import UNPARSED, Counts, Item, Metric, Ratio, Scores, TaskDataMissing, TaskKind
from airvlm.tasks.files.reading import MAX_FIELD, Row, read_records
from airvlm.tasks.judges.judge import JudgeQuestion, make_messages
from airvlm.tasks.judges.task import JudgedTask
from airvlm.tasks.words.options import infer_option

__all__ = ["HRBench", "extract_table"]

WHERE = "huggingface.co/datasets/DreamMr/HR-Bench"
LETTERS = "ABCD"
CATEGORIES = {"single": "FSP", "cross": "FCP"}
MIN_IMAGE = 64  # characters; a shorter cell is the index of the row that has the image


@dataclass(frozen=True)
class MeanOfOrders:
    """The mean over the orders of the options of the accuracy within each."""

    orders: tuple[str, ...]
    prefix: str = ""

    def __call__(self, counts: Counts) -> Any:
        parts = [Ratio(f"{self.prefix}{order}:right", f"{self.prefix}{order}:n")(counts) for order in self.orders]
        return np.mean(parts, axis=0)


@dataclass(frozen=True)
class HRBench(JudgedTask):
    """HR-Bench from hr_bench_4k.tsv or hr_bench_8k.tsv."""

    size: Literal["4k", "8k"] = "4k"
    grading: Literal["option", "judge"] = "option"  # judge: a model says whether an answer is right (official)
    instruction: Literal["official", "lmms"] = "official"  # lmms: lmms-eval's

    name: ClassVar[str] = "hr-bench"
    kind: ClassVar[TaskKind] = "choice"
    max_new_tokens: ClassVar[int] = 32
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "option": {"grading": "option"},
        "judge": {"grading": "judge"},
        "lmms": {"instruction": "lmms"},
    }
    source: ClassVar[str] = f"DreamMr/HR-Bench; tables at {WHERE}"
    judge_prompt: ClassVar[str] = (
        "You check whether an answer to a multiple-choice question is right. Reply with yes or no and nothing else.\n\n"
        "Question and options: {question}\nThe right answer: {reference}\nThe answer to check: {prediction}"
    )

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder(f"HR-Bench's table hr_bench_{self.size}.tsv ({WHERE})")
        return _read_items(folder, self.size)[:limit]

    def prompt(self, item: Item) -> str:
        if self.instruction == "lmms":
            return f"{item.question}\n{_list_options(item)}Answer the option letter directly."
        options = _list_options(item)
        return (
            f"Question: {item.question}\nOptions:\n{options}Please select the correct answer from the options above. \n"
        )

    def parse(self, item: Item, text: str) -> str | None:
        return infer_option(text, item.meta["options"])

    def make_question(self, item: Item, answer: str) -> JudgeQuestion[bool]:
        question = f"{item.question}\n{_list_options(item)}"
        reference = f"{item.truth}. {item.meta['options'][item.truth]}"
        prompt = self.fill_prompt(question=question, reference=reference, prediction=answer)
        return JudgeQuestion(make_messages(prompt), parse_verdict, max_tokens=8)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        if self.grading == "judge":
            return super().score(items, answers)
        letters = [None if text is None else self.parse(item, text) for item, text in zip(items, answers, strict=True)]
        verdicts = [
            None if text is None else letter == item.truth for item, text, letter in zip(items, answers, letters)
        ]
        scores = self.aggregate(items, verdicts, [{"parsed": letter} for letter in letters])
        for counts, text, letter in zip(scores.per_item, answers, letters, strict=True):
            counts |= {UNPARSED: 1.0} if text is not None and letter is None else {}
        return scores

    def aggregate(self, items: Sequence[Item], verdicts: Sequence[Any], details: Sequence[Mapping[str, Any]]) -> Scores:
        orders = tuple(sorted({item.meta["order"] for item in items}))
        parts = [part for part in CATEGORIES.values() if any(item.meta["part"] == part for item in items)]

        def count(item: Item, right: bool) -> tuple[dict[str, float], dict[str, Any]]:
            order, part = item.meta["order"], item.meta["part"]
            counts = {"n": 1.0, "right": float(right)}
            for prefix in (f"{order}:", f"{part}:{order}:"):
                counts |= {f"{prefix}n": 1.0, f"{prefix}right": float(right)}
            return counts, {"right": right}

        metrics = {"accuracy": Metric(MeanOfOrders(orders))}
        metrics |= {part: Metric(MeanOfOrders(orders, f"{part}:")) for part in parts}
        notes = () if self.grading == "judge" else ("options are read by rules; the official figures ask a judge",)
        return Scores.of(items, verdicts, count, metrics, notes, self.variant_name, details)


def parse_verdict(verdict: str) -> bool | None:
    """Whether a verdict begins with yes or with no."""
    word = verdict.strip().lower()
    return True if word.startswith("yes") else False if word.startswith("no") else None


def _list_options(item: Item) -> str:
    return "".join(f"{letter}. {text}\n" for letter, text in item.meta["options"].items())


# -- the table


def _read_items(folder: Path, size: str) -> list[Item]:
    """The questions, from the table as it was extracted; extracts it if that was not done yet."""
    table, extracted = folder / f"hr_bench_{size}.tsv", folder / f"hr_bench_{size}.jsonl"
    if not extracted.is_file():
        if not table.is_file():
            raise TaskDataMissing(f"hr-bench: neither {table.name} nor {extracted.name} is in {folder}; see {WHERE}")
        extract_table(table, extracted)
    return [_make_item(row, folder) for row in read_records(extracted)]


def _make_item(row: Row, folder: Path) -> Item:
    options = {letter: row.read_text(letter) for letter in LETTERS if row.has(letter)}
    answer, category = row.read_text("answer"), row.read_text("category")
    if answer not in options:
        raise row.error("answer", f"expected the letter of an option ({', '.join(options)}), not {answer[:40]!r}")
    order, image = row.read_id("cycle_category", default="0"), row.read_text("image")
    meta = {"options": options, "part": CATEGORIES.get(category, category), "order": order, "group": image}
    return Item(row.read_id("index"), folder / image, row.read_text("question"), answer, meta)


def extract_table(table: Path, extracted: Path) -> None:
    """Write a table's images beside it and its other columns as JSON lines.

    The table of 8K is larger than a machine may have memory for: it is read row by row.
    """
    import json

    folder, lines, places = extracted.parent, list[str](), dict[str, str]()
    for row in _read_rows(table):
        index, content = row.read_id("index"), row.read_text("image")
        if len(content) > MIN_IMAGE:
            places[index] = _write_image(row, content, folder, f"{extracted.stem}_images")
        elif content in places:
            places[index] = places[content]
        else:
            raise row.error("image", f"neither an image in base64 nor the index of an earlier row: {content!r}")
        kept = {name: value for name, value in row.items() if name != "image" and value not in ("", "nan")}
        lines.append(json.dumps({**kept, "image": places[index]}, ensure_ascii=False))
    if not lines:
        raise ValueError(f"{table} has no rows")
    write_atomically(extracted, "\n".join(lines) + "\n")


def _read_rows(table: Path) -> Iterator[Row]:
    before = csv.field_size_limit(MAX_FIELD)
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file, delimiter="\t"), 1):
                if None in row or None in row.values():
                    raise ValueError(f"{table}, row {number}: not as many cells as columns; is the file complete?")
                yield Row(row, table, f"row {number}", number)
    except csv.Error as error:
        raise ValueError(f"{table}: not a table ({error})") from None
    finally:
        csv.field_size_limit(before)


def _write_image(row: Row, content: str, folder: Path, place: str) -> str:
    """Write an image once, named by its content, since the four orders of a question repeat it; its path."""
    try:
        data = base64.b64decode(content, validate=True)
    except binascii.Error:
        raise row.error("image", "not base64") from None
    name = f"{place}/{hashlib.sha256(data).hexdigest()[:16]}.jpg"
    path = folder / name
    if not path.is_file():
        os.makedirs(path.parent, exist_ok=True)
        write_atomically(path, data)
    return name


@score_format.register
def score_hr_bench_file(task: HRBench, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score predictions by index; truth: the folder with the table."""
    place = truth or task.data
    if place is None:
        raise TaskDataMissing(f"hr-bench: give --truth FOLDER with hr_bench_{task.size}.tsv ({WHERE})")
    items = _read_items(place if place.is_dir() else place.parent, task.size)
    return score_entries(task, items, read_answers(path), path, lenient=lenient)
