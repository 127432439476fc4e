"""V* Bench: small things in large images, 115 questions on attributes and 76 on positions, with options.

Two protocols, never to be mixed in one table: *likelihood* (official) picks the option whose words the
model finds likeliest after the question; *letter* asks for a letter. Knows nothing of how likelihoods are
computed: the answer to an item is then a JSON list of mean log-likelihoods, one an option, in the order of
``item.meta["options"]``.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from airvlm.tasks.base import (
    MISSING,
    UNPARSED,
    Item,
    Metric,
    Ratio,
    Scores,
    Task,
    TaskDataMissing,
)
from airvlm.tasks.coverage import Given, match
from airvlm.tasks.files.answers import given_answers, in_order_of
from airvlm.tasks.files.reading import read_json, read_records
from airvlm.tasks.files.records import Checked, OptionalId, Text, checked, first_of
from airvlm.tasks.words.options import strict_option

__all__ = ["VStar"]

PARTS = {"direct_attributes": "attribute", "relative_position": "spatial"}
IMAGES = (".jpg", ".jpeg", ".png")
WHERE = "huggingface.co/datasets/craigwu/vstar_bench"


@dataclass(frozen=True)
class VStar(Task):
    """V* Bench from the official folder: direct_attributes/ and relative_position/, each an image and a .json."""

    ask: Literal["likelihood", "letter"] = "likelihood"
    seed: int = 0  # letter: the order of the options (in the files the first is always right)

    name: ClassVar[str] = "vstar"
    kind: ClassVar[Literal["caption", "yesno", "choice", "judged"]] = "choice"
    max_new_tokens: ClassVar[int] = 16
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "likelihood": {"ask": "likelihood"},
        "letter": {"ask": "letter"},
    }
    source: ClassVar[str] = f"penghao-wu/vstar; data at {WHERE}"

    def __post_init__(self) -> None:
        object.__setattr__(self, "protocol", "likelihood" if self.ask == "likelihood" else "text")

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        folder = self.folder(f"V* Bench ({' and '.join(PARTS)}: images with .json files) from {WHERE}")
        items = []
        for part in PARTS:
            files = sorted((folder / part).glob("*.json"))
            if not files:
                raise TaskDataMissing(f"vstar: no .json files in {folder / part}; get the folder from {WHERE}")
            for file in files:
                question = checked(
                    VStarQuestion, [read_json(file)] if isinstance(read_json(file), dict) else [{}], file
                )[0]
                items.append(self._item(part, file.stem, question, _image_of(file)))
                if limit is not None and len(items) >= limit:
                    return items
        return items

    def _item(self, part: str, stem: str, record: VStarQuestion, image: Path | None) -> Item:
        options, order = record.options, list(range(len(record.options)))
        if self.ask == "letter":
            random.Random(f"{self.seed}/{part}/{stem}").shuffle(order)
        meta = {"part": PARTS[part], "options": [options[k] for k in order]}
        return Item(f"{part}/{stem}", image, record.question, order.index(0), meta)

    def prompt(self, item: Item) -> str:
        if self.ask == "likelihood":
            return item.question
        lettered = "\n".join(f"{letter}. {text}" for letter, text in _lettered(item).items())
        return f"{item.question}\n{lettered}\nAnswer with the option's letter from the given choices directly."

    def parse(self, item: Item, text: str) -> int | None:
        """The number of the option chosen; None if the answer names none."""
        if self.ask == "letter":
            letter = strict_option(text, _lettered(item))
            return None if letter is None else list(_lettered(item)).index(letter)
        try:
            likelihoods = [float(value) for value in json.loads(text)]
        except (ValueError, TypeError):
            return None
        if len(likelihoods) != len(item.meta["options"]) or not all(math.isfinite(value) for value in likelihoods):
            return None
        return max(range(len(likelihoods)), key=likelihoods.__getitem__)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        per_item: list[dict[str, float]] = []
        details: list[dict[str, Any]] = []
        for item, text in zip(items, answers):
            chosen = None if text is None else self.parse(item, text)
            right, part = float(chosen == item.truth), item.meta["part"]
            counts = {"n": 1.0, "right": right, f"{part}:n": 1.0, f"{part}:right": right}
            counts |= {UNPARSED: 1.0} if chosen is None else {}
            per_item.append({MISSING: 1.0} if text is None else counts)
            details.append({"id": item.id, "parsed": chosen, "right": chosen == item.truth})
        metrics = {"accuracy": Metric(Ratio("right", "n"))}
        metrics |= {part: Metric(Ratio(f"{part}:right", f"{part}:n")) for part in PARTS.values()}
        notes = (f"V* Bench by {self.ask}: not comparable with figures of the other protocol",)
        return Scores(per_item, metrics, [item.group for item in items], details, notes)

    def rescore(self, answers: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
        """Ids and answers (truth: the official folder), or records with category, options, label and answer."""
        if truth is None and self.data is None:
            said = checked(Labelled, read_records(answers), answers)
            items = [_labelled(n, record) for n, record in enumerate(said)]
            given = [Given(item.id, one.text, one.line) for item, one in zip(items, said)]
            unique = list({item.id: item for item in items}.values())
            texts, coverage = match([item.id for item in unique], given, answers, lenient=lenient)
            return replace(self.variant("letter").score(unique, texts), coverage=coverage)
        task = self if truth is None else type(self)(truth, ask=self.ask, seed=self.seed)
        items = task.items()
        texts, coverage = in_order_of(items, given_answers(answers), answers, lenient=lenient)
        return replace(task.score(items, texts), coverage=coverage)


class VStarQuestion(Checked):
    """A question's .json; its first option is right."""

    question: Text
    options: Annotated[list[str], Field(min_length=2, max_length=8)]


class Labelled(Checked):
    """A record that carries its own options and the letter of the right one."""

    question_id: OptionalId = None
    category: Text
    options: Annotated[list[str], Field(min_length=2, max_length=8)]
    label: Annotated[Literal["A", "B", "C", "D", "E", "F", "G", "H"], BeforeValidator(lambda v: str(v).strip().upper())]
    text: Text = first_of("text", "prediction")


def _labelled(n: int, record: Labelled) -> Item:
    part = PARTS.get(record.category, record.category)
    truth = "ABCDEFGH".index(record.label)
    return Item(record.question_id or str(n), None, "", truth, {"part": part, "options": record.options})


def _lettered(item: Item) -> dict[str, str]:
    return dict(zip("ABCDEFGH", item.meta["options"]))


def _image_of(file: Path) -> Path:
    for suffix in IMAGES:
        if file.with_suffix(suffix).is_file():
            return file.with_suffix(suffix)
    raise TaskDataMissing(f"vstar: no image beside {file}; expected {file.stem}.jpg or .png")
