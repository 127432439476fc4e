"""What the page shows, as HTML and words: answers side by side, what differs and what is wrong in them, and why.

Everything that a model said is escaped. Knows nothing of gradio.
"""

from __future__ import annotations

import html
import itertools
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from airvlm import Method, parse_method
from airvlm.inputs.prompts import DESCRIBE
from airvlm.report import Report
from airvlm.reporting.differences import differences
from airvlm.tasks import load_task
from airvlm.tasks.words.marks import Mark, marks

__all__ = [
    "STRENGTHS",
    "MethodCard",
    "Strength",
    "cards",
    "command_line",
    "report_words",
    "specs",
    "wrong_objects",
]


@dataclass(frozen=True)
class Strength:
    """The field that says how much of a method there is."""

    field: str
    low: float
    high: float
    meaning: str

    def default(self, method: str) -> float:
        made = parse_method(method)
        assert isinstance(made, Method)
        return float(getattr(made, self.field))


STRENGTHS: dict[str, Strength] = {
    "air": Strength("weight", 0.0, 1.0, "how much of what the crops say is blended into a visual token"),
    "air-paper": Strength("strength", 0.0, 1.0, "norm of the added term over the feed-forward output's"),
    "vaf": Strength("enhance", 0.0, 1.0, "how much attention to the image is raised"),
    "vcd": Strength("alpha", 0.0, 3.0, "weight of the contrast with a noised image"),
}


@dataclass(frozen=True)
class MethodCard:
    """One method's answer, as far as it has come."""

    method: str  # as the command line spells it
    text: str = ""
    report: Report | None = None
    seconds: float | None = None  # None while it is being written
    error: str | None = None


def specs(methods: Sequence[str], strengths: Mapping[str, float]) -> list[str]:
    """The methods as the command line spells them, the model as it is first; a strength only where it was changed."""
    spelled = ["vanilla"]
    for name in methods:
        if name == "vanilla":
            continue
        strength = STRENGTHS.get(name)
        value = strengths.get(name)
        if strength is None or value is None or abs(value - strength.default(name)) < 1e-9:
            spelled.append(name)
        else:
            spelled.append(f"{name}:{strength.field}={value:g}")
    return spelled


def command_line(image: str, question: str, methods: Sequence[str], model: str) -> str:
    """The same comparison for a terminal."""
    words = ["airvlm", "compare", image]
    if question != DESCRIBE:
        words.append(question)
    words += ["--model", model]
    for method in methods:
        words += ["--method", method]
    return shlex.join(words)


def wrong_objects(text: str, truth: Collection[str] | None) -> list[Mark]:
    """Objects of the built-in world that the text names and the scene does not hold; none where no truth is known."""
    if truth is None:
        return []
    task = load_task("tiny-chair")
    item = task.items()[0]
    return [mark for mark in marks(text, task.parse(item, text) or [], truth) if not mark.present]


def cards(shown: Sequence[MethodCard], truth: Collection[str] | None = None) -> str:
    """The answers side by side: words that differ from the first are marked, wrong objects are red."""
    first = shown[0].text if shown else ""
    there = f'<p class="air-truth">In the image: {html.escape(", ".join(sorted(truth)))}</p>' if truth else ""
    return there + (
        '<div class="air-cards" aria-live="polite">' + "".join(_card(c, first, truth) for c in shown) + "</div>"
    )


def _card(card: MethodCard, first: str, truth: Collection[str] | None) -> str:
    if card.error is not None:
        body = f'<p class="air-error">{html.escape(card.error)}</p>'
    else:
        body = f'<p class="air-text">{_marked(first, card.text, truth)}</p>'
    if card.seconds is None and card.error is None:
        foot = "writing …"
    else:
        foot = "" if card.seconds is None else f"{card.seconds:.2f} s"
    said = f'<p class="air-report">{html.escape(report_words(card.report))}</p>' if card.report else ""
    return (
        f'<section class="air-card"><h3>{html.escape(card.method)}</h3>{body}{said}'
        f'<p class="air-foot">{foot}</p></section>'
    )


def _marked(first: str, text: str, truth: Collection[str] | None) -> str:
    wrong = wrong_objects(text, truth)
    parts: list[str] = []
    for start, end, changed in _stretches(first, text, wrong):
        piece = html.escape(text[start:end])
        absent = any(mark.start <= start < mark.end for mark in wrong)
        kinds = [name for name, so in (("air-changed", changed), ("air-absent", absent)) if so and piece.strip()]
        title = ' title="not in the image"' if absent else ""
        parts.append(f'<mark class="{" ".join(kinds)}"{title}>{piece}</mark>' if kinds else piece)
    return "".join(parts)


def _stretches(first: str, text: str, wrong: Sequence[Mark]) -> Iterator[tuple[int, int, bool]]:
    """The text cut where a difference or a wrong object begins or ends."""
    edges = {0, len(text), *(mark.start for mark in wrong), *(mark.end for mark in wrong)}
    changed: list[tuple[int, int, bool]] = []
    at = 0
    for piece, differs in differences(first, text):
        changed.append((at, at + len(piece), differs))
        at += len(piece)
        edges.add(at)
    places = sorted(edges)
    for start, end in itertools.pairwise(places):
        yield start, end, any(a <= start < b and differs for a, b, differs in changed)


def report_words(report: Report) -> str:
    """What a method did, or why it did nothing, in a sentence or two."""
    name = str(report.method.get("name", "the method"))
    if not report.fired:
        return f"{name} did not act: {report.reason}."
    told = [f"{name} changed {report.tokens} token positions" if report.tokens else f"{name} acted"]
    if report.crops:
        total = sum(len(image) for image in report.crops)
        told.append(f"with what {report.kept} of {total} crops show")
    if -1 in report.layers:
        told.append("where the decoder reads the image")
    elif report.layers:
        told.append(f"in layers {report.layers[0]} to {report.layers[-1]}")
    sentence = " ".join(told) + "."
    if report.norm_ratio is not None:
        sentence += (
            f" What was changed is {report.norm_ratio.mean:.0%} of the token's length on average, "
            f"{report.norm_ratio.max:.0%} at most."
        )
    return sentence
