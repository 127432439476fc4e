"""Single answers to look at: the image, the question, what each method said, and what of it is not in the image.

Gives plain values for a template, which escapes them. Knows what a task's scores tell about an answer; nothing of
pages.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airvlm.evaluation.store import Record
from airvlm.evaluation.task_results import TaskResults
from airvlm.inputs.images import BadImage, load_image
from airvlm.tasks.base import Item
from airvlm.tasks.words.marks import Mark, marks

__all__ = ["AnswerCard", "Part", "Said", "answer_cards", "chosen", "marked_up"]

SIDE = 288  # pixels of an image's longer side on the page


@dataclass(frozen=True)
class Part:
    """A stretch of an answer; `kind` says whether it names an object that is there or absent."""

    text: str
    kind: str = ""
    title: str = ""


@dataclass(frozen=True)
class PageImage:
    """An image within the page itself, or why it cannot be shown."""

    code: str = ""  # of a JPEG, base64
    width: int = 0
    height: int = 0
    error: str = ""


@dataclass(frozen=True)
class Said:
    """A method's answer."""

    label: str
    parts: list[Part] = field(default_factory=list)
    wrong: bool = False  # something in it is
    sign: str = ""  # right or wrong as a whole, where that can be said
    asides: list[str] = field(default_factory=list)
    error: str = ""  # in place of an answer


@dataclass(frozen=True)
class AnswerCard:
    """One item with all its answers."""

    task: str
    id: str
    prompt: str
    truth: str
    images: list[PageImage]
    answers: list[Said]
    differs: bool

    @property
    def wrong(self) -> bool:
        return any(answer.wrong for answer in self.answers)


def chosen(task: TaskResults, limit: int) -> list[int]:
    """Which items to show: those on which methods differ come first, then the rest; in the items' order."""
    texts = [task.texts(label) for label in task.methods]
    order = sorted(range(len(task.items)), key=lambda i: len({said[i] for said in texts}) == 1)  # stable
    return sorted(order[:limit])


def answer_cards(name: str, task: TaskResults, limit: int) -> list[AnswerCard]:
    """One card an item."""
    records = {label: task.records(label) for label in task.methods}  # looked up once for all cards
    return [_card(name, task, i, {label: found[i] for label, found in records.items()}) for i in chosen(task, limit)]


def _card(name: str, task: TaskResults, i: int, records: Mapping[str, Record | None]) -> AnswerCard:
    item = task.items[i]
    return AnswerCard(
        name,
        item.id,
        task.asked.task.prompt(item),
        _truth(item),
        _images(item),
        [_said(task, label, i, record) for label, record in records.items()],
        differs=len({record.text if record else None for record in records.values()}) > 1,
    )


def _said(task: TaskResults, label: str, i: int, record: Record | None) -> Said:
    if record is None or record.text is None:
        why = "not answered" if record is None else record.error or "no answer"
        return Said(label, wrong=True, error=why)
    idle = record.report is not None and not record.report.get("fired")
    asides = [text for text, so in (("did not act", idle), ("cut at the cap", not record.finished)) if so]
    found = _marks(task, task.items[i], record.text)
    if found is not None:
        parts = marked_up(record.text, found)
        return Said(label, parts, any(not mark.present for mark in found), asides=asides)
    details = task.scores(label).details[i] if task.scores(label).details else {}
    right = _right(details, task.items[i])
    parts = [Part(record.text)] if record.text else []
    return Said(label, parts, right is False, {True: "✓", False: "✗", None: ""}[right], asides)


def _marks(task: TaskResults, item: Item, text: str) -> list[Mark] | None:
    """The objects a description names; None for other kinds of answers."""
    if task.asked.task.kind != "caption" or not isinstance(item.truth, list | tuple | set | frozenset):
        return None
    mentions = task.asked.task.parse(item, text)
    if not all(hasattr(mention, "token") for mention in mentions or ()):
        return None
    return marks(text, mentions or [], item.truth)


def marked_up(text: str, found: list[Mark]) -> list[Part]:
    """The text in parts, its objects marked."""
    parts, at = [], 0
    for mark in sorted(found, key=lambda mark: mark.start):
        if mark.start < at:
            continue
        where = "in the image" if mark.present else "not in the image"
        parts += [
            Part(text[at : mark.start]),
            Part(
                text[mark.start : mark.end],
                "there" if mark.present else "absent",
                f"{mark.category}: {where}",
            ),
        ]
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
            small = load_image(image).copy()  # it is made smaller in place
        except BadImage as reason:
            shown.append(PageImage(error=str(reason)))
            continue
        small.thumbnail((SIDE, SIDE))
        data = io.BytesIO()
        small.save(data, "JPEG", quality=80)
        shown.append(PageImage(base64.b64encode(data.getvalue()).decode(), small.width, small.height))
    return shown
