"""Files of answers as people have them: an object of id -> text, JSON lines, tables. Knows no benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airvlm.tasks.base import Item
from airvlm.tasks.coverage import Coverage, Given, match
from airvlm.tasks.files.reading import kind_of, read_records, read_table
from airvlm.tasks.files.records import ID_FIELDS, TEXT_FIELDS, Checked, Id, Text, checked, first_of

__all__ = ["given_answers", "in_order_of", "one_method"]


class AnswerRecord(Checked):
    """An answer under one of the names that files have for it."""

    key: Id = first_of(*ID_FIELDS)
    text: Text = first_of(*TEXT_FIELDS)


def given_answers(path: Path, keep: Callable[[Mapping[str, Any]], bool] = lambda record: True) -> list[Given[str]]:
    """The answers of a file with the ids it gives them: {id: text}, or records with an id and a text.

    A store of ours holds the answers of several methods: `keep` must choose one of them; where a record of it has
    an error in place of an answer, there is none.
    """
    records: Sequence[Mapping[str, Any]]
    if kind_of(path) in (".tsv", ".csv"):
        records = read_table(path)
    else:
        records = read_records(path)
        if len(records) == 1 and records[0] and not set(records[0]) & {*ID_FIELDS, *TEXT_FIELDS}:
            whole = [{"id": key, "text": text} for key, text in records[0].items()]
            return [Given(one.key, one.text) for one in checked(AnswerRecord, whole, path, what="entry")]
    if not records:
        raise ValueError(f"{path} holds no answers")
    records = one_method([record for record in records if keep(record)], path)
    if records and all({"image", "text"} <= set(r) and not {"prompt", "model_id"} & set(r) for r in records):
        raise ValueError(f"{path} holds questions (image and text, no model's answer), not answers")
    records = [record for record in records if record.get("error") is None or record.get("text") is not None]
    return [Given(one.key, one.text, one.line) for one in checked(AnswerRecord, records, path)]


def one_method(records: Sequence[Mapping[str, Any]], path: Path) -> Sequence[Mapping[str, Any]]:
    """The records, if they are not the answers of several methods in a store of ours."""
    stored = [record for record in records if "fingerprint" in record]
    if len({json.dumps(record.get("method"), sort_keys=True, default=str) for record in stored}) > 1:
        raise ValueError(f"{path} holds answers of several methods; leave one of them in a file of its own")
    return records


def in_order_of(
    items: Sequence[Item], given: Sequence[Given[str]], path: Path, *, lenient: bool = False
) -> tuple[list[str | None], Coverage]:
    """Answers in the items' order, None where there is none, and what the file covers."""
    return match([item.id for item in items], given, path, lenient=lenient)
