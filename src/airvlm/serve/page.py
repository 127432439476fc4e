"""What the page shows, as HTML: answers side by side, what differs and what is wrong in them, and the crops.

Everything that a model or a visitor wrote is escaped.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import itertools
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from airvlm import AIR, VAF, VCD, VLM, CropBlend, MemVR, Method, tiny
from airvlm.inputs.prompts import DESCRIBE
from airvlm.report import Crop, Report
from airvlm.reporting.differences import differences
from airvlm.tasks.words.objects import Mark, find_mentions, mark_mentions

__all__ = [
    "CHOICES",
    "STRENGTHS",
    "Card",
    "Example",
    "Strength",
    "answers_html",
    "choose_methods",
    "command_line",
    "crops_html",
    "describe_report",
    "examples",
    "find_wrong_objects",
    "message_html",
]

# What visitors may choose, by label. AIR as printed keeps no crop of most images, so the page offers it with keep=3.
CHOICES: dict[str, Method] = {m.label: m for m in (CropBlend(), AIR(keep=3), MemVR(), VAF(), VCD())}
PHOTOGRAPHS = {"astronaut": ("person",), "coffee": ("cup", "spoon", "dining table"), "chelsea": ("cat",)}
SCENES = ("test-1275", "test-0001", "test-0003", "test-0020")
THUMBNAIL = 240  # pixels


@dataclass(frozen=True)
class Strength:
    """The option that sets how strongly a method acts."""

    option: str
    low: float
    high: float
    help: str


STRENGTHS: dict[str, Strength] = {
    "crop-blend": Strength("weight", 0.0, 1.0, "share of the crops in each visual token"),
    "air:keep=3": Strength("strength", 0.0, 1.0, "norm of the added term relative to the feed-forward output"),
    "vaf": Strength("enhance", 0.0, 1.0, "how much attention to the image is raised"),
    "vcd": Strength("alpha", 0.0, 3.0, "weight of the contrast with a noisy image"),
}


@dataclass(frozen=True)
class Example:
    """An image that comes with the package, and what it shows."""

    name: str
    path: Path
    truth: tuple[str, ...]

    @property
    def alt(self) -> str:
        return f"Example {self.name}: {', '.join(self.truth)}"


@dataclass(frozen=True)
class Card:
    """One method's answer so far."""

    label: str
    text: str = ""
    report: Report | None = None
    seconds: float | None = None  # None while the answer is generated
    error: str | None = None


def examples(vlm: VLM) -> list[Example]:
    """Images that the model can describe: emoji scenes for tiny, photographs for all others."""
    if vlm.name.partition("+")[0] == "tiny":  # also with an adapter
        scenes = {scene.id: scene for scene in tiny.scenes("test")}
        return [Example(name, scenes[name].path, tuple(sorted(scenes[name].names))) for name in SCENES]
    folder = Path(__file__).parent / "photographs"
    return [Example(name, folder / f"{name}.webp", truth) for name, truth in PHOTOGRAPHS.items()]


def choose_methods(labels: Sequence[str], strengths: Mapping[str, float]) -> list[Method]:
    """The methods that a visitor chose.

    Args:
        labels: keys of CHOICES.
        strengths: values of the sliders, by the same keys.
    """
    chosen = []
    for label in labels:
        if label not in CHOICES:
            raise ValueError(f"the page offers no method {label[:40]!r}")
        method, value, strength = CHOICES[label], strengths.get(label), STRENGTHS.get(label)
        if value is not None and strength is not None:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and strength.low <= value <= strength.high):
                raise ValueError(f"the strength of {label} is a number from {strength.low:g} to {strength.high:g}")
            method = dataclasses.replace(method, **{strength.option: round(float(value), 4)})
        chosen.append(method)
    return chosen


def command_line(image: str, question: str, labels: Sequence[str], options: Sequence[str]) -> str:
    """The same comparison for a terminal.

    Args:
        image: a path.
        question: what was asked.
        labels: spellings of the methods.
        options: further options of `airvlm ask`: which model, and how long an answer may be.
    """
    words = ["airvlm", "ask", image if not image.startswith("-") else f"./{image}"]
    if question != DESCRIBE:
        words.append(question)
    words += options
    for label in labels:
        words += ["--method", label]
    return shlex.join(words)


def find_wrong_objects(text: str, truth: Collection[str] | None) -> list[Mark]:
    """Where the text names an object that is not in the image; nothing if it is not known what the image shows."""
    if truth is None:
        return []
    return [mark for mark in mark_mentions(text, find_mentions(text, "exact"), truth) if not mark.present]


def describe_report(report: Report) -> str:
    """What a method did, or why it did nothing, in a sentence or two."""
    name = str(report.method.get("name", "the method"))
    if not report.fired:
        return f"{name} did not act: {report.reason}."
    words = [f"{name} changed {report.tokens} token positions" if report.tokens else f"{name} acted"]
    if report.crops:
        words.append(f"using {report.kept} of {sum(len(image) for image in report.crops)} crops")
    if -1 in report.layers:
        words.append("at the decoder's input")
    elif len(report.layers) == 1:
        words.append(f"in layer {report.layers[0]}")
    elif report.layers:
        words.append(f"in layers {report.layers[0]} to {report.layers[-1]}")
    sentence = " ".join(words) + "."
    if report.norm_ratio is not None:
        mean, most = report.norm_ratio.mean, report.norm_ratio.max
        sentence += f" The change is {mean:.0%} of the value's norm on average, {most:.0%} at most."
    return sentence


# -- HTML


def message_html(text: str) -> str:
    """A message about a mistake, which screen readers announce; nothing for an empty text."""
    return f'<p class="air-error" role="alert">{html.escape(text)}</p>' if text else ""


def answers_html(cards: Sequence[Card], truth: Collection[str] | None = None) -> str:
    """The answers side by side. Words that differ from the first are marked, wrong objects are underlined."""
    if not cards:
        return (
            '<p class="air-hint">The answers appear here, side by side: the model as it is (vanilla), and under each '
            "method that you choose.</p>"
        )
    first = cards[0].text
    legend = []
    if len(cards) > 1:
        legend.append('<mark class="air-changed">marked</mark>: differs from vanilla')
    if truth is not None:
        legend.append('<mark class="air-absent">underlined</mark>: not in the image')
        legend.append(f"the image shows: {html.escape(', '.join(sorted(truth)))}")
    parts = "".join(_card_html(card, first, truth) for card in cards)
    note = f'<p class="air-legend">{"; ".join(legend)}</p>' if legend else ""
    return f'<div class="air-cards" aria-live="polite">{parts}</div>{note}'


def _card_html(card: Card, first: str, truth: Collection[str] | None) -> str:
    body = f'<p class="air-text">{_marked_html(first, card.text, truth)}</p>'
    if card.error is not None:
        body = message_html(card.error)
    elif card.seconds is None and not card.text:
        body = '<p class="air-text air-waiting">…</p>'
    report = f'<p class="air-report">{html.escape(describe_report(card.report))}</p>' if card.report else ""
    seconds = "" if card.seconds is None else f'<span class="air-seconds">{card.seconds:.2f} s</span>'
    return f'<section class="air-card"><h3>{html.escape(card.label)}{seconds}</h3>{body}{report}</section>'


def _marked_html(first: str, text: str, truth: Collection[str] | None) -> str:
    wrong = find_wrong_objects(text, truth)
    parts: list[str] = []
    for start, end, changed in _stretches(first, text, wrong):
        piece = html.escape(text[start:end])
        absent = any(mark.start <= start < mark.end for mark in wrong)
        kinds = [name for name, so in (("air-changed", changed), ("air-absent", absent)) if so and piece.strip()]
        title = ' title="not in the image"' if absent else ""
        parts.append(f'<mark class="{" ".join(kinds)}"{title}>{piece}</mark>' if kinds else piece)
    return "".join(parts)


def _stretches(first: str, text: str, wrong: Sequence[Mark]) -> Iterator[tuple[int, int, bool]]:
    """The text cut where a difference or a wrong object begins or ends: start, end, and whether it differs."""
    edges = {0, len(text), *(mark.start for mark in wrong), *(mark.end for mark in wrong)}
    changed: list[tuple[int, int, bool]] = []
    at = 0
    for piece, differs in differences(first, text):
        changed.append((at, at + len(piece), differs))
        at += len(piece)
        edges.add(at)
    for start, end in itertools.pairwise(sorted(edges)):
        yield start, end, any(a <= start < b and differs for a, b, differs in changed)


def crops_html(image: Image.Image, report: Report) -> str:
    """The image with its crops outlined, and each crop with its distance."""
    if not report.crops:
        return ""
    crops = report.crops[0]
    name = html.escape(str(report.method.get("name", "the method")))
    used = sum(crop.kept for crop in crops)
    which = f"All {used} crops were used" if used == len(crops) else f"{used} of {len(crops)} crops were used"
    boxes = "".join(_box_html(number, crop, image.size) for number, crop in enumerate(crops, 1))
    shown = "".join(_crop_html(number, crop, image) for number, crop in enumerate(crops, 1))
    whole = _img_html(image, f"The image with its {len(crops)} crops outlined", 2 * THUMBNAIL)
    return (
        f'<h3 class="air-heading">Crops of {name}</h3>'
        f'<p class="air-report">{which}; a smaller distance means closer to the image as a whole.</p>'
        f'<div class="air-crops"><div class="air-whole">{whole}{boxes}</div>{shown}</div>'
    )


def _box_html(number: int, crop: Crop, size: tuple[int, int]) -> str:
    (x0, y0, x1, y1), (width, height) = crop.box, size
    place = (100 * x0 / width, 100 * y0 / height, 100 * (x1 - x0) / width, 100 * (y1 - y0) / height)
    style = "left:{:.2f}%;top:{:.2f}%;width:{:.2f}%;height:{:.2f}%".format(*place)
    return f'<span class="air-box{"" if crop.kept else " air-unused"}" style="{style}"><b>{number}</b></span>'


def _crop_html(number: int, crop: Crop, image: Image.Image) -> str:
    note = "" if crop.kept else ", not used"
    alt = f"Crop {number}, distance {crop.distance:.3f}{note}"
    kind = "air-crop" if crop.kept else "air-crop air-unused"
    picture = _img_html(image.crop(crop.box), alt, THUMBNAIL)
    return f'<figure class="{kind}">{picture}<figcaption>{number}: {crop.distance:.3f}{note}</figcaption></figure>'


def _img_html(image: Image.Image, alt: str, side: int) -> str:
    small = image.copy()
    small.thumbnail((side, side))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=85)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/jpeg;base64,{data}">'
