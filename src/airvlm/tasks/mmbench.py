"""MMBench: multiple choice, asked once per rotation of the options; a question counts if every rotation is right.

No judge is used: an answer that means no option is wrong and counted as unparsed. The official table (.tsv) has one row
per question or per rotation, and the images in base64.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from airvlm.tasks.answers import ITEMS_FROM_FILE, Entry, read_answers, require_rows, score_entries, score_format
from airvlm.tasks.base import (
    MISSING,
    UNPARSED,
    Item,
    Metric,
    Ratio,
    Scores,
    Task,
    TaskDataMissing,
    TaskKind,
    parse_answers,
)
from airvlm.tasks.files.reading import Row, get_suffix, read_table
from airvlm.tasks.words.options import infer_option

__all__ = ["MMBench"]

WHERE = "opencompass.openxlab.space/utils/MMBench"
ROTATION = 1_000_000  # row index = question + rotation * ROTATION
LETTERS = "ABCD"
ABILITIES = {
    "attribute_reasoning": "AR",
    "coarse_perception": "CP",
    "finegrained_perception (cross-instance)": "FP-C",
    "finegrained_perception (instance-level)": "FP-S",
    "logic_reasoning": "LR",
    "relation_reasoning": "RR",
}


@dataclass(frozen=True)
class MMBench(Task):
    """MMBench dev. The two published dev tables have 1164 and 1176 questions: the file's name is in the record."""

    instruction: Literal["vlmevalkit", "llava"] = "vlmevalkit"
    table: str = "MMBench_DEV_EN.tsv"  # the file in the data folder; mmbench_dev_20230712.tsv is LLaVA's

    name: ClassVar[str] = "mmbench"
    kind: ClassVar[TaskKind] = "choice"
    max_new_tokens: ClassVar[int] = 32
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "vlmevalkit": {},
        "llava": {"instruction": "llava", "table": "mmbench_dev_20230712.tsv"},
    }
    source: ClassVar[str] = f"open-compass/VLMEvalKit; tables at {WHERE}"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        path = self.require_folder(f"MMBench's table {self.table} ({WHERE})") / self.table
        if not path.is_file():
            raise TaskDataMissing(f"mmbench: {path} is not there; get it from {WHERE}")
        rows = _add_rotations(read_table(path), path)[:limit]
        images = {row["index"]: row.get("image", "") for row in rows}
        folder = path.parent / f"{path.stem}_images"
        return [replace(_make_item(row), image=_write_image(row, images, folder)) for row in rows]

    def prompt(self, item: Item) -> str:
        hint, options = item.meta["hint"], item.meta["options"]
        lettered = "".join(f"{letter}. {text}\n" for letter, text in options.items())
        if self.instruction == "llava":
            head = f"{hint}\n{item.question}\n" if hint else f"{item.question}\n"
            return head + lettered + "Answer with the option's letter from the given choices directly."
        head = (f"Hint: {hint}\n" if hint else "") + f"Question: {item.question}\n"
        return head + f"Options:\n{lettered}Please select the correct answer from the options above. \n"

    def parse(self, item: Item, text: str) -> str | None:
        return infer_option(text, item.meta["options"])

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        parsed = parse_answers(self, items, answers)
        right = [letter == item.truth for item, letter in zip(items, parsed)]
        per_item: list[dict[str, float]] = []
        rotations: dict[str, list[int]] = defaultdict(list)
        for i, (item, text, letter) in enumerate(zip(items, answers, parsed)):
            rotations[item.group].append(i)
            counts = {"rows": 1.0, "rows_right": float(right[i])} | ({UNPARSED: 1.0} if letter is None else {})
            per_item.append({MISSING: 1.0} if text is None else counts)
        for group in rotations.values():
            # a question with a missing rotation is neither right nor wrong
            if all(answers[i] is not None for i in group):
                ability, hit = items[group[0]].meta["ability"], float(all(right[i] for i in group))
                counts = {"circles": 1.0, "hits": hit, "first": float(right[group[0]])}
                per_item[group[0]] |= counts | {f"{ability}:circles": 1.0, f"{ability}:hits": hit}
        metrics = {
            "accuracy": Metric(Ratio("hits", "circles")),  # circular: the benchmark's figure
            "vanilla": Metric(Ratio("first", "circles")),  # the unrotated question alone
            "rows": Metric(Ratio("rows_right", "rows")),
        }
        present = {item.meta["ability"] for item in items}
        known = [ability for ability in ABILITIES.values() if ability in present]
        for ability in [*known, *sorted(present - set(known) - {""})]:
            metrics[ability] = Metric(Ratio(f"{ability}:hits", f"{ability}:circles"))
        details = [
            {"id": item.id, "parsed": letter, "right": is_right} for item, letter, is_right in zip(items, parsed, right)
        ]
        return Scores(per_item, metrics, [item.group for item in items], details, variant=self.variant_name)


# -- the table


def _read_options(row: Mapping[str, str]) -> dict[str, str]:
    return {letter: row[letter] for letter in LETTERS if row.get(letter) not in (None, "", "nan")}


def _make_item(row: Row) -> Item:
    index, options = _read_index(row), _read_options(row)
    ability = row.get("l2-category") or row.get("l2_category") or ""
    meta: dict[str, Any] = {
        "options": options,
        "hint": "" if row.get("hint") in (None, "nan") else row["hint"],
        "ability": ABILITIES.get(ability, ability),
        "category": row.get("category", ""),
        "group": str(index % ROTATION),
    }
    answer = row.read_text("answer")
    if answer not in options:
        raise row.error("answer", f"expected the letter of an option ({', '.join(options)}), not {answer[:40]!r}")
    return Item(str(index), None, row.read_text("question"), answer, meta)


def _read_index(row: Row) -> int:
    index = row.read_int("index")
    if index < 0:
        raise row.error("index", f"expected a number greater than or equal to 0, not {index}")
    return index


def _add_rotations(rows: Sequence[Row], path: Path) -> list[Row]:
    """Rows of all rotations, question by question; built here if the table has the unrotated questions only."""
    indices = [_read_index(row) for row in rows]
    if len(set(indices)) < len(indices):
        raise ValueError(f"{path}: duplicate index {next(i for i in indices if indices.count(i) > 1)}")
    if any(index >= ROTATION for index in indices):
        ordered = sorted(zip(indices, rows, strict=True), key=lambda pair: (pair[0] % ROTATION, pair[0]))
        return [row for _, row in ordered]
    rotated = []
    for index, row in zip(indices, rows, strict=True):
        item = _make_item(row)
        options, answer = item.meta["options"], item.truth
        letters = list(options)
        for k in range(len(letters)):
            image = row.get("image", "") if k == 0 else row["index"]
            own = {**options, "index": str(index + k * ROTATION), "answer": answer, "image": image}
            rotated.append(Row({**row, **own}, row.path, row.place, row.line))
            # every option moves to the next letter, the last to A
            texts = list(options.values())
            options = dict(zip(letters, [*texts[-1:], *texts[:-1]], strict=True))
            answer = letters[(letters.index(answer) + 1) % len(letters)]
    return rotated


def _write_image(row: Row, images: Mapping[str, str], folder: Path) -> Path:
    """The row's image as a file, written once; rotated rows name the row that has it."""
    index, content = row["index"], row.get("image", "")
    if len(content) < 64:
        index = content or str(int(index) % ROTATION)
        content = images.get(index, "")
    path = folder / f"{index}.jpg"
    if path.is_file():
        return path
    try:
        data = base64.b64decode(content, validate=True)
    except binascii.Error:
        data = b""
    if not data:
        raise TaskDataMissing(f"mmbench: row {row['index']} has no image; is this the table with the `image` column?")
    folder.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.part")
    scratch.write_bytes(data)
    scratch.replace(path)  # atomic, so a second process never reads half an image
    return path


# -- files of answers


@score_format.register
def score_mmbench_file(task: MMBench, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score predictions by index against the table `truth`, or a table that has answers and predictions."""
    if get_suffix(path) in (".tsv", ".csv", ".xlsx"):
        rows = read_table(path)
        if truth is None and task.data is None:
            if rows and {"answer", "prediction"} <= set(rows[0]):
                return _score_predictions(task, rows, path, lenient=lenient)
            raise ValueError(f"{path}: expected a table with index, question, A, B, ..., answer and prediction")
    entries = read_answers(path)
    if truth is None:
        return score_entries(task, task.items(), entries, path, lenient=lenient)
    rows = require_rows(_add_rotations(read_table(truth), truth), truth, "questions")
    items = [_make_item(row) for row in rows]
    return score_entries(task, items, entries, path, lenient=lenient, record={"table": truth.name})


def _score_predictions(task: MMBench, rows: Sequence[Row], path: Path, *, lenient: bool) -> Scores:
    """Score a table that has questions, right answers and predictions."""
    items = [_make_item(row) for row in rows]
    entries = [Entry(item.id, row.read_text("prediction"), row.line) for item, row in zip(items, rows)]
    unique = {item.id: item for item in items}
    ordered = sorted(unique.values(), key=lambda item: (int(item.group), int(item.id)))
    questions: dict[str, list[Item]] = defaultdict(list)
    for item in ordered:
        questions[item.group].append(item)
    headless = [key for key, rotations in questions.items() if int(rotations[0].id) >= ROTATION]
    if headless and not lenient:
        raise ValueError(f"{path}: question {headless[0]} lacks its unrotated row; with --lenient the others count")
    short = [key for key, rotations in questions.items() if len(rotations) < len(rotations[0].meta["options"])]
    notes: tuple[str, ...] = (ITEMS_FROM_FILE,)
    if short:
        notes = (
            f"{len(short)} of {len(questions)} questions lack rotations (the first is {short[0]}): they count as right "
            "if their rows are right, as in the official script, which is easier than all rotations",
            *notes,
        )
    return score_entries(task, ordered, entries, path, lenient=lenient, notes=notes, record={"table": path.name})
