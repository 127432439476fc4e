"""MMBench's table (.tsv): a row a question, all rotations of its options, and images in base64.

Knows nothing of answers or scores.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from airvlm.tasks.base import Item, TaskDataMissing
from airvlm.tasks.files.records import Checked, Text, Whole, checked

__all__ = ["ABILITIES", "CIRCLE", "LETTERS", "circled", "image_file", "item_of", "rotated"]

CIRCLE = 1_000_000  # row index = question + rotation * CIRCLE
LETTERS = "ABCD"
ABILITIES = {
    "attribute_reasoning": "AR",
    "coarse_perception": "CP",
    "finegrained_perception (cross-instance)": "FP-C",
    "finegrained_perception (instance-level)": "FP-S",
    "logic_reasoning": "LR",
    "relation_reasoning": "RR",
}


class TableRow(Checked):
    """A row of MMBench's table."""

    index: Annotated[Whole, Field(ge=0)]
    question: Text
    answer: Text


def item_of(row: Mapping[str, str], image: Path | None, source: Path) -> Item:
    index = checked(TableRow, [row], source, what="row")[0].index
    ability = row.get("l2-category") or row.get("l2_category") or ""
    meta: dict[str, Any] = {
        "options": {letter: row[letter] for letter in LETTERS if row.get(letter) not in (None, "", "nan")},
        "hint": "" if row.get("hint") in (None, "nan") else row["hint"],
        "ability": ABILITIES.get(ability, ability),
        "category": row.get("category", ""),
        "group": str(index % CIRCLE),
    }
    options = meta["options"]
    if row["answer"] not in options:
        line = getattr(row, "line", 0)
        raise ValueError(
            f"{source}, line {line}, field answer: expected the letter of an option ({', '.join(options)}), "
            f"not {row['answer'][:40]!r}"
        )
    return Item(str(index), image, row["question"], row["answer"], meta)


def circled(rows: Sequence[Mapping[str, str]], source: Path) -> list[Mapping[str, str]]:
    """Rows of all rotations, question by question; built here if the table holds the unrotated questions only."""
    indices = [row.index for row in checked(TableRow, rows, source, what="row")]
    if len(set(indices)) < len(indices):
        raise ValueError(f"{source}: index {next(i for i in indices if indices.count(i) > 1)} stands there twice")
    if any(index >= CIRCLE for index in indices):
        ordered = sorted(zip(indices, rows, strict=True), key=lambda pair: (pair[0] % CIRCLE, pair[0]))
        return [row for _, row in ordered]
    every: list[Mapping[str, str]] = []
    for index, row in zip(indices, rows, strict=True):
        item_of(row, None, source)  # so that its answer is one of its options
        options = {letter: row[letter] for letter in LETTERS if row.get(letter) not in (None, "", "nan")}
        letters, answer = list(options), row["answer"]
        for k in range(len(options)):
            image = row.get("image", "") if k == 0 else row["index"]
            every.append(
                {
                    **row,
                    **options,
                    "index": str(index + k * CIRCLE),
                    "answer": answer,
                    "image": image,
                }
            )
            options = rotated(options)
            answer = letters[(letters.index(answer) + 1) % len(letters)]
    return every


def rotated(options: Mapping[str, str]) -> dict[str, str]:
    """Every option moves one letter on, the last to A."""
    texts = list(options.values())
    return dict(zip(options, [*texts[-1:], *texts[:-1]], strict=True))


def image_file(row: Mapping[str, str], images: Mapping[str, str], folder: Path) -> Path:
    """The row's image as a file, written once; rotated rows name the row that holds it."""
    index, content = row["index"], row.get("image", "")
    if len(content) < 64:
        index = content or str(int(index) % CIRCLE)
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
    scratch.replace(path)  # at once, so that a second process never reads half an image
    return path
