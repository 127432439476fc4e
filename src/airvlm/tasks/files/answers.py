"""Files of answers as people have them: an object of id -> text, JSON lines, tables. Knows no benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airvlm.tasks.base import Item
from airvlm.tasks.files.reading import kind_of, read_json, read_records, read_table

__all__ = ["answers_by_id", "in_order_of", "kind_of", "read_json", "read_table"]

ID_FIELDS = ("item", "question_id", "id", "index", "image_id")  # in order of trust
TEXT_FIELDS = (
    "text",
    "prediction",
    "model_prediction",
    "model_answer",
    "answer",
    "response",
    "output",
    "caption",
)


def answers_by_id(
    path: Path, keep: Callable[[Mapping[str, Any]], bool] = lambda record: True
) -> dict[str, str]:
    """The answers of a file by the ids it gives them: {id: text}, or records with an id and a text.

    A store of ours holds the answers of several methods: `keep` must choose one of them.
    """
    if kind_of(path) in (".tsv", ".csv"):
        records: Sequence[Mapping[str, Any]] = read_table(path)
    else:
        records = read_records(path)
        if len(records) == 1 and records[0] and all(isinstance(v, str) for v in records[0].values()):
            whole = dict(records[0])
            if not set(whole) & set(ID_FIELDS):
                return whole
    records = [record for record in records if keep(record)]
    if len({json.dumps(record.get("method")) for record in records if "fingerprint" in record}) > 1:
        raise ValueError(f"{path} holds answers of several methods; leave one of them in a file of its own")
    if records and all({"image", "text"} <= set(r) and not {"prompt", "model_id"} & set(r) for r in records):
        raise ValueError(f"{path} holds questions (image and text, no model's answer), not answers")
    answers: dict[str, str] = {}
    for number, record in enumerate(records, start=1):
        key = next((record[name] for name in ID_FIELDS if record.get(name) is not None), None)
        text = next((record[name] for name in TEXT_FIELDS if isinstance(record.get(name), str)), None)
        if key is None or (text is None and record.get("error") is None):
            raise ValueError(
                f"{path}, record {number}: expected an id ({', '.join(ID_FIELDS)}) and an answer "
                f"({', '.join(TEXT_FIELDS)}), found the fields {', '.join(map(str, record))}"
            )
        if text is not None:
            answers[str(key)] = text
    return answers


def in_order_of(items: Sequence[Item], answers: Mapping[str, str], path: Path) -> list[str | None]:
    """Answers in the items' order, None where there is none; refuses a file that shares no id with the items."""
    known = [answers.get(item.id) for item in items]
    if items and all(text is None for text in known):
        theirs = ", ".join(list(answers)[:3]) or "none"
        raise ValueError(
            f"{path}: no answer has the id of a question (the file's ids: {theirs}; ours: {items[0].id}, …)"
        )
    return known
