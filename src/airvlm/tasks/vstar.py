"""V* Bench: small objects in large images, 115 questions about attributes and 76 about positions, with options.

Two protocols, whose figures cannot be compared: `likelihood` (official) takes the option that is most likely after the
question, and the answer to an item is a JSON list of mean log-likelihoods, one per option in the order of
`item.meta["options"]`; `letter` asks for a letter.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from airvlm.tasks.answers import ITEMS_FROM_FILE, Entry, score_by_id, score_entries, score_format
from airvlm.tasks.base import UNPARSED, Item, Metric, Ratio, Scores, Task, TaskDataMissing, TaskKind
from airvlm.tasks.files.reading import Row, read_json, read_records
from airvlm.tasks.words.options import parse_option

__all__ = ["VStar"]

LETTERS = "ABCDEFGH"
PARTS = {"direct_attributes": "attribute", "relative_position": "spatial"}
IMAGES = (".jpg", ".jpeg", ".png")
WHERE = "huggingface.co/datasets/craigwu/vstar_bench"


@dataclass(frozen=True)
class VStar(Task):
    """V* Bench from the official folder: direct_attributes/ and relative_position/ with images and .json files."""

    ask: Literal["likelihood", "letter"] = "likelihood"
    seed: int = 0  # letter: of the order of the options

    name: ClassVar[str] = "vstar"
    kind: ClassVar[TaskKind] = "choice"
    max_new_tokens: ClassVar[int] = 16
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "likelihood": {"ask": "likelihood"},
        "letter": {"ask": "letter"},
    }
    source: ClassVar[str] = f"penghao-wu/vstar; data at {WHERE}"

    def __post_init__(self) -> None:
        object.__setattr__(self, "protocol", "likelihood" if self.ask == "likelihood" else "text")

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.require_folder(f"V* Bench ({' and '.join(PARTS)}: images with .json files) from {WHERE}")
        items = []
        for part in PARTS:
            files = sorted((folder / part).glob("*.json"))
            if not files:
                raise TaskDataMissing(f"vstar: no .json files in {folder / part}; get the folder from {WHERE}")
            for file in files:
                content = read_json(file)
                row = Row(content if isinstance(content, dict) else {}, file, "line 1", 1)
                items.append(self._make_item(part, file.stem, row, _find_image(file)))
                if limit is not None and len(items) >= limit:
                    return items
        return items

    def _make_item(self, part: str, stem: str, row: Row, image: Path) -> Item:
        options = _read_options(row)
        # in the files the first option is always right
        order = list(range(len(options)))
        if self.ask == "letter":
            random.Random(f"{self.seed}/{part}/{stem}").shuffle(order)
        meta = {"part": PARTS[part], "options": [options[k] for k in order]}
        return Item(f"{part}/{stem}", image, row.read_text("question"), order.index(0), meta)

    def prompt(self, item: Item) -> str:
        if self.ask == "likelihood":
            return item.question
        lettered = "\n".join(f"{letter}. {text}" for letter, text in _label_options(item).items())
        return f"{item.question}\n{lettered}\nAnswer with the option's letter from the given choices directly."

    def parse(self, item: Item, text: str) -> int | None:
        """The number of the chosen option; None if the answer names none."""
        if self.ask == "letter":
            letter = parse_option(text, _label_options(item))
            return None if letter is None else list(_label_options(item)).index(letter)
        try:
            likelihoods = [float(value) for value in json.loads(text)]
        except (ValueError, TypeError):
            return None
        if len(likelihoods) != len(item.meta["options"]) or not all(math.isfinite(value) for value in likelihoods):
            return None
        return max(range(len(likelihoods)), key=likelihoods.__getitem__)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        def count(item: Item, text: str) -> tuple[dict[str, float], dict[str, Any]]:
            chosen, part = self.parse(item, text), item.meta["part"]
            right = float(chosen == item.truth)
            counts = {"n": 1.0, "right": right, f"{part}:n": 1.0, f"{part}:right": right}
            counts |= {UNPARSED: 1.0} if chosen is None else {}
            return counts, {"parsed": chosen, "right": chosen == item.truth}

        metrics = {"accuracy": Metric(Ratio("right", "n"))}
        metrics |= {part: Metric(Ratio(f"{part}:right", f"{part}:n")) for part in PARTS.values()}
        notes = (f"V* Bench by {self.ask}: not comparable with figures of the other protocol",)
        return Scores.of(items, answers, count, metrics, notes, self.variant_name)


def _read_options(row: Row) -> list[str]:
    options = row.read_texts("options")
    if not 2 <= len(options) <= len(LETTERS):
        raise row.error("options", f"expected 2 to {len(LETTERS)} options, not {len(options)}")
    return options


def _label_options(item: Item) -> dict[str, str]:
    return dict(zip(LETTERS, item.meta["options"]))


def _find_image(file: Path) -> Path:
    for suffix in IMAGES:
        if file.with_suffix(suffix).is_file():
            return file.with_suffix(suffix)
    raise TaskDataMissing(f"vstar: no image beside {file}; expected {file.stem}.jpg or .png")


@score_format.register
def score_vstar_file(task: VStar, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score answers by id (truth: the official folder), or records with category, options, label and text."""
    if truth is not None or task.data is not None:
        return score_by_id(task, path, truth, lenient=lenient)
    items, entries = [], []
    for n, row in enumerate(read_records(path)):
        category, label = row.read_text("category"), row.find("label")[1]
        letters = list(LETTERS)
        if str(label).strip().upper() not in letters:
            raise row.error("label", f"expected a letter from A to {letters[-1]}, not {str(label)[:40]!r}")
        meta = {"part": PARTS.get(category, category), "options": _read_options(row)}
        key = row.read_id("question_id", default=str(n))
        items.append(Item(key, None, "", letters.index(str(label).strip().upper()), meta))
        entries.append(Entry(key, row.read_text("text", "prediction"), row.line))
    unique = list({item.id: item for item in items}.values())
    return score_entries(task.with_variant("letter"), unique, entries, path, lenient=lenient, notes=(ITEMS_FROM_FILE,))
