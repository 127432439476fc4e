"""Single answers to look at: the picture, the question, what each method said, and what of it is not in the
picture.

Writes HTML; everything that a model or a file said is escaped. Knows what a task's scores tell about an
answer, nothing of pages.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from typing import Any

from airvlm.evaluation.run import TaskRun
from airvlm.evaluation.store import Record
from airvlm.images.load import BadPicture, load_picture
from airvlm.reporting.marks import Mark, marks
from airvlm.tasks.base import Item

__all__ = ["answer_cards", "chosen", "marked_up"]

SIDE = 288  # pixels of a picture's longer side on the page


def chosen(task: TaskRun, limit: int) -> list[int]:
    """Which items to show: those on which methods differ come first, then the rest; in the items' order."""
    texts = [task.texts(label) for label in task.methods]
    order = sorted(range(len(task.items)), key=lambda i: len({said[i] for said in texts}) == 1)  # stable
    return sorted(order[:limit])


def answer_cards(name: str, task: TaskRun, limit: int) -> list[str]:
    """One card an item."""
    records = {label: task.records(label) for label in task.methods}  # looked up once for all cards
    return [
        _card(name, task, i, {label: found[i] for label, found in records.items()})
        for i in chosen(task, limit)
    ]


def _card(name: str, task: TaskRun, i: int, records: Mapping[str, Record | None]) -> str:
    item, e = task.items[i], html.escape
    answers = [_answer(task, label, i, record) for label, record in records.items()]
    differs = len({record.text if record else None for record in records.values()}) > 1
    wrong = any(bad for _, bad in answers)
    state = f'data-task="{e(name)}" data-differs="{int(differs)}" data-wrong="{int(wrong)}"'
    return "\n".join(
        [
            f'<article class="card" {state}>',
            f'<div class="shown">{_picture(item)}<p class="id">{e(name)} · {e(item.id)}</p></div>',
            f'<div class="said"><p class="question">{e(task.asked.task.prompt(item))}</p>',
            f'<p class="truth">{e(_truth(item))}</p>' if _truth(item) else "",
            *(block for block, _ in answers),
            "</div></article>",
        ]
    )


def _answer(task: TaskRun, label: str, i: int, record: Record | None) -> tuple[str, bool]:
    """A method's answer as HTML, and whether something in it is wrong."""
    e = html.escape
    head = f'<div class="answer"><h4>{e(label)}'
    if record is None or record.text is None:
        why = "not answered" if record is None else record.error or "no answer"
        return f'{head}</h4><p class="failed">{e(why)}</p></div>', True
    details = task.scores(label).details[i] if task.scores(label).details else {}
    found = _marks(task, task.items[i], record.text)
    if found is not None:
        bad = any(not mark.present for mark in found)
        said, sign = marked_up(record.text, found), ""
    else:
        right = _right(details, task.items[i])
        bad = right is False
        said, sign = e(record.text), {True: " ✓", False: " ✗", None: ""}[right]
    idle = record.report is not None and not record.report.get("fired")
    asides = [text for text, so in (("did not act", idle), ("cut at the cap", not record.finished)) if so]
    aside = "".join(f' <span class="idle">{text}</span>' for text in asides)
    verdict = f'<span class="{"wrong" if bad else "right"}">{sign}</span>'
    return f"{head}{verdict}{aside}</h4><p>{said or '(empty)'}</p></div>", bad


def _marks(task: TaskRun, item: Item, text: str) -> list[Mark] | None:
    """The objects a description names; None for other kinds of answers."""
    if task.asked.task.kind != "caption" or not isinstance(item.truth, list | tuple | set | frozenset):
        return None
    mentions = task.asked.task.parse(item, text)
    if not all(hasattr(mention, "token") for mention in mentions or ()):
        return None
    return marks(text, mentions or [], item.truth)


def marked_up(text: str, found: list[Mark]) -> str:
    """The text with its objects marked: struck where the picture has none."""
    parts, at = [], 0
    for mark in sorted(found, key=lambda mark: mark.start):
        if mark.start < at:
            continue
        parts.append(html.escape(text[at : mark.start]))
        word, kind = html.escape(text[mark.start : mark.end]), "there" if mark.present else "absent"
        title = html.escape(f"{mark.category}: {'in the picture' if mark.present else 'not in the picture'}")
        parts.append(f'<mark class="{kind}" title="{title}">{word}</mark>')
        at = mark.end
    return "".join([*parts, html.escape(text[at:])])


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
        return "in the picture: " + (
            ", ".join(sorted(map(str, item.truth))) or "none of the objects that count"
        )
    return ""


def _picture(item: Item) -> str:
    """The picture within the page itself; a word in its place where it cannot be read."""
    images = item.image if isinstance(item.image, list | tuple) else [item.image]
    shown = []
    for image in images:
        if image is None:
            continue
        try:
            picture = load_picture(image)
        except BadPicture as reason:
            shown.append(f'<p class="failed">{html.escape(str(reason))}</p>')
            continue
        picture.thumbnail((SIDE, SIDE))
        data = io.BytesIO()
        picture.save(data, "JPEG", quality=80)
        code = base64.b64encode(data.getvalue()).decode()
        size = f'width="{picture.width}" height="{picture.height}"'
        shown.append(
            f'<img src="data:image/jpeg;base64,{code}" {size} alt="picture of {html.escape(item.id)}">'
        )
    return "".join(shown) or '<p class="idle">no picture</p>'
