"""Single answers: the image, the question, what each method answered, and what of it is not in the image."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airvlm.evaluation.results import TaskResults
from airvlm.evaluation.store import Record
from airvlm.inputs.images import BadImage, load_image
from airvlm.tasks.base import Item
from airvlm.tasks.words.objects import Mark, mark_mentions

__all__ = ["AnswerCard", "CardAnswer", "Part", "answer_cards", "choose_items", "mark_objects"]

SIDE = 288  # pixels of an image's longer side on the page


@dataclass(frozen=True)
class Part:
    """A part of an answer; `kind` says whether it names an object that is there or absent."""

    text: str
    kind: str = ""
    title: str = ""


@dataclass(frozen=True)
class PageImage:
    """An image as data of the page, or why it cannot be shown."""

    code: str = ""  # of a JPEG, base64
    width: int = 0
    height: int = 0
    error: str = ""


@dataclass(frozen=True)
class CardAnswer:
    """A method's answer."""

    label: str
    parts: list[Part] = field(default_factory=list)
    wrong: bool = False  # something in it is wrong
    sign: str = ""  # right or wrong as a whole, if that is known
    remarks: list[str] = field(default_factory=list)
    error: str = ""  # in place of an answer


@dataclass(frozen=True)
class AnswerCard:
    """One item with all its answers."""

    task: str
    id: str
    prompt: str
    truth: str
    images: list[PageImage]
    answers: list[CardAnswer]
    differs: bool

    @property
    def wrong(self) -> bool:
        return any(answer.wrong for answer in self.answers)


def choose_items(task: TaskResults, limit: int) -> list[int]:
    """Which items to show: those on which methods differ first, then others; in the items' order."""
    texts = [task.texts(label) for label in task.methods]
    order = sorted(range(len(task.items)), key=lambda i: len({own[i] for own in texts}) == 1)  # stable
    return sorted(order[:limit])


def answer_cards(name: str, task: TaskResults, limit: int) -> list[AnswerCard]:
    """One card per item, `limit` at most."""
    records = {label: task.records(label) for label in task.methods}
    return [
        _card(name, task, i, {label: found[i] for label, found in records.items()}) for i in choose_items(task, limit)
    ]


def _card(name: str, task: TaskResults, i: int, records: Mapping[str, Record | None]) -> AnswerCard:
    item = task.items[i]
    return AnswerCard(
        name,
        item.id,
        task.spec.task.prompt(item),
        _truth(item),
        _images(item),
        [_make_answer(task, label, i, record) for label, record in records.items()],
        differs=len({record.text if record else None for record in records.values()}) > 1,
    )


def _make_answer(task: TaskResults, label: str, i: int, record: Record | None) -> CardAnswer:
    if record is None or record.text is None:
        why = "not answered" if record is None else record.error or "no answer"
        return CardAnswer(label, wrong=True, error=why)
    idle = record.report is not None and not record.report.get("fired")
    remarks = [text for text, so in (("did not act", idle), ("cut at the token cap", not record.finished)) if so]
    found = _marks(task, task.items[i], record.text)
    if found is not None:
        parts = mark_objects(record.text, found)
        named = {mark.category for mark in found}
        if missed := ", ".join(sorted(str(name) for name in task.items[i].truth if name not in named)):
            remarks.append(f"not mentioned: {missed}")
        return CardAnswer(label, parts, any(not mark.present for mark in found), remarks=remarks)
    details = task.scores(label).details[i] if task.scores(label).details else {}
    right = _right(details, task.items[i])
    parts = [Part(record.text)] if record.text else []
    return CardAnswer(label, parts, right is False, {True: "✓", False: "✗", None: ""}[right], remarks)


def _marks(task: TaskResults, item: Item, text: str) -> list[Mark] | None:
    """The objects that a description names; None for other kinds of answers."""
    if task.spec.task.kind != "caption" or not isinstance(item.truth, list | tuple | set | frozenset):
        return None
    mentions = task.spec.task.parse(item, text)
    if not all(hasattr(mention, "token") for mention in mentions or ()):
        return None
    return mark_mentions(text, mentions or [], item.truth)


def mark_objects(text: str, found: list[Mark]) -> list[Part]:
    """The text in parts, with its objects marked."""
    parts, at = [], 0
    for mark in sorted(found, key=lambda mark: mark.start):
        if mark.start < at:
            continue
        where = "in the image" if mark.present else "not in the image"
        kind = "there" if mark.present else "absent"
        parts += [Part(text[at : mark.start]), Part(text[mark.start : mark.end], kind, f"{mark.category}: {where}")]
        at = mark.end
    return [part for part in (*parts, Part(text[at:])) if part.text]


def _right(details: dict[str, Any], item: Item) -> bool | None:
    for name in ("right", "correct"):
        if name in details:
            return bool(details[name])
    if "parsed" in details and isinstance(item.truth, str):
        return bool(details["parsed"] == item.truth)
    return None


def _truth(item: Item) -> str:
    if isinstance(item.truth, str):
        return f"truth: {item.truth}"
    if isinstance(item.truth, list | tuple | set | frozenset):
        there = ", ".join(sorted(map(str, item.truth))) or "none of the objects that count"
        return f"in the image: {there}"
    return ""


def _images(item: Item) -> list[PageImage]:
    images = item.image if isinstance(item.image, list | tuple) else [item.image]
    shown = []
    for image in images:
        if image is None:
            continue
        try:
            small = load_image(image).copy()  # thumbnail works in place
        except BadImage as reason:
            shown.append(PageImage(error=str(reason)))
            continue
        small.thumbnail((SIDE, SIDE))
        data = io.BytesIO()
        small.save(data, "JPEG", quality=80)
        shown.append(PageImage(base64.b64encode(data.getvalue()).decode(), small.width, small.height))
    return shown
