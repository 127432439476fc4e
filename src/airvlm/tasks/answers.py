"""Files of answers: their format, how answers are matched to a task's items, and their scores.

A file of answers has one JSON object per line, with the id of an item and the answer to it:

    {"id": "coco-random-17", "text": "Yes, there is a dog."}

The same records are also read from a JSON list, from a table (.tsv, .csv), from one object of id -> text, under the
names that other tools have for the two fields (ID_FIELDS, TEXT_FIELDS), and from the answers that `airvlm evaluate`
stores. `score_file` scores them for any task. A benchmark whose own files look different has a function in its module
that is registered with `@score_format.register`.

Ids decide which answer belongs to which item. A duplicate or unknown id is an error, unless `lenient` is set: then the
last answer of an id counts, and unknown ones are left out. Items without an answer are counted and never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from pathlib import Path
from typing import Any, Generic, TypeVar

from airvlm.tasks.base import Coverage, Item, Scores, Task
from airvlm.tasks.files.reading import Row, get_suffix, read_records, read_table

__all__ = [
    "ITEMS_FROM_FILE",
    "Entry",
    "list_keys",
    "match_entries",
    "raise_on_entries",
    "raise_on_several_methods",
    "read_answers",
    "require_rows",
    "score_by_id",
    "score_entries",
    "score_file",
    "score_format",
]

T = TypeVar("T")
ID_FIELDS = ("item", "question_id", "id", "index", "image_id")  # in order of precedence
TEXT_FIELDS = ("text", "prediction", "model_prediction", "model_answer", "answer", "response", "output", "caption")
ITEMS_FROM_FILE = "missing answers are not counted: the items are those of the file itself (--truth gives others)"


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One answer of a file."""

    key: str
    value: T
    line: int = 0  # 0: unknown


def score_file(task: Task, path: str | Path, truth: str | Path | None = None, *, lenient: bool = False) -> Scores:
    """Score a file of answers; needs no model.

    Args:
        task: the benchmark.
        path: the answers, in the format above or in one of the benchmark's own.
        truth: what the answers are compared with: the benchmark's data folder or file. Default: the task's data
            folder, or what the file itself says.
        lenient: accept duplicate and unknown ids.

    Returns:
        The scores; `coverage` says how the answers cover the items.
    """
    return score_format(task, Path(path), None if truth is None else Path(truth), lenient=lenient)


@singledispatch
def score_format(task: Task, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """What `score_file` does for a task; register a function for a task whose own files have another format."""
    return score_by_id(task, path, truth, lenient=lenient)


def score_by_id(task: Task, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score a file in the format above; its arguments are those of `score_file`."""
    task = task if truth is None else replace(task, data=truth)
    return score_entries(task, task.items(), read_answers(path), path, lenient=lenient)


def score_entries(
    task: Task,
    items: Sequence[Item],
    entries: Sequence[Entry[str]],
    path: Path,
    *,
    lenient: bool = False,
    notes: tuple[str, ...] = (),
    record: Mapping[str, Any] | None = None,
) -> Scores:
    """Match the answers of a file to items by id and score them; `notes` and `record` are added to the scores."""
    texts, coverage = match_entries([item.id for item in items], entries, path, lenient=lenient)
    scores = task.score(items, texts)
    return replace(scores, coverage=coverage, notes=(*notes, *scores.notes), record=record or {})


def read_answers(path: Path, keep: Callable[[Mapping[str, Any]], bool] = lambda record: True) -> list[Entry[str]]:
    """Read the answers of a file.

    Args:
        path: the file.
        keep: which records to take. The answers that `airvlm evaluate` stores may be those of several methods, and
            this must leave one of them; a stored error is not an answer.
    """
    records = read_table(path) if get_suffix(path) in (".tsv", ".csv", ".xlsx") else read_records(path)
    if len(records) == 1 and records[0] and not set(records[0]) & {*ID_FIELDS, *TEXT_FIELDS}:
        pairs = [
            Row({"id": key, "text": text}, path, f"entry {n}") for n, (key, text) in enumerate(records[0].items(), 1)
        ]
        return [Entry(row.read_id("id"), row.read_text("text")) for row in pairs]
    records = [record for record in require_rows(records, path) if keep(record)]
    raise_on_several_methods(records, path)
    if records and all({"image", "text"} <= set(r) and not {"prompt", "model_id"} & set(r) for r in records):
        raise ValueError(f"{path} holds questions (image and text, no model's answer), not answers")
    records = [record for record in records if record.get("error") is None or record.get("text") is not None]
    return [Entry(row.read_id(*ID_FIELDS), row.read_text(*TEXT_FIELDS), row.line) for row in records]


def require_rows(rows: list[Row], path: Path, what: str = "answers") -> list[Row]:
    """The rows of a file, which must not be empty."""
    if not rows:
        raise ValueError(f"{path} has no {what}")
    return rows


def raise_on_several_methods(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Refuse stored answers of several methods, which must not be scored as one."""
    stored = [record for record in records if "fingerprint" in record]
    if len({json.dumps(record.get("method"), sort_keys=True, default=str) for record in stored}) > 1:
        raise ValueError(f"{path} has answers of several methods; copy those of one method to a file of their own")


def list_keys(entries: Sequence[Entry[Any]]) -> list[str]:
    """The ids of a file in its order, each once."""
    return list(dict.fromkeys(entry.key for entry in entries))


def match_entries(
    keys: Sequence[str], entries: Sequence[Entry[T]], path: Path, *, lenient: bool = False
) -> tuple[list[T | None], Coverage]:
    """The value of each key, None if there is none, and how the file covers the keys."""
    if not entries:
        raise ValueError(f"{path} has no answers")
    known = set(keys)
    unknown = [entry for entry in entries if entry.key not in known]
    if len(unknown) == len(entries):
        theirs, ours = ", ".join(entry.key for entry in entries[:3]), ", ".join(list(keys)[:2])
        raise ValueError(f"{path}: no answer has the id of an item (ids in the file: {theirs}; of items: {ours}, ...)")
    seen: set[str] = set()
    duplicates = []
    for entry in entries:
        if entry.key in seen:
            duplicates.append(entry)
        seen.add(entry.key)
    if not lenient:
        raise_on_entries(duplicates, path, "has a duplicate id", "with --lenient the last answer of an id counts")
        raise_on_entries(unknown, path, "has an id that no item has", "with --lenient it is left out")
    found = {entry.key: entry.value for entry in entries}
    matched = sum(key in found for key in keys)
    return [found.get(key) for key in keys], Coverage(len(keys), len(entries), matched, len(duplicates), len(unknown))


def raise_on_entries(wrong: Sequence[Entry[Any]], path: Path, problem: str, remedy: str) -> None:
    """Raise an error about answers that cannot be matched, naming the first."""
    if wrong:
        where = f", line {wrong[0].line}" if wrong[0].line else ""
        others = f" (and {len(wrong) - 1} others)" if len(wrong) > 1 else ""
        raise ValueError(f"{path}{where}: answer {wrong[0].key!r}{others} {problem}; {remedy}")
