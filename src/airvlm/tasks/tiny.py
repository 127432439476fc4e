"""The built-in tasks on the scenes of the embedded model: no data, no network.

`tiny-chair` is CHAIR, `tiny-pope` is POPE, and `tiny-existence`, `-count`, `-position` and `-color` ask two questions
per image, one answered by yes and one by no, as MME's hallucination subset does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from airvlm import tiny
from airvlm.tasks.answers import read_answers, score_entries, score_format
from airvlm.tasks.base import Item, Metric, Ratio, Scores, Task
from airvlm.tasks.chair import CHAIR_METRICS, Chair
from airvlm.tasks.pope import SETTINGS, Pope, Setting, split_limit
from airvlm.tasks.words.base_forms import Words
from airvlm.tasks.words.tagger import load_tagger
from airvlm.tasks.words.yesno import PARSERS, YesNo, parse_yes_no, score_yes_no
from airvlm.tiny import grammar
from airvlm.tiny.world import COLORS, OBJECTS

__all__ = ["TinyChair", "TinyPope", "TinyYesNo"]

Subtask = Literal["existence", "count", "position", "color"]


def _refuse_labels(name: str, objects: Path | None) -> None:
    """The bundled scenes have labels of their own; others would have no effect."""
    if objects is not None:
        raise ValueError(f"{name} has its own images and labels: --objects is for chair and pope")


@dataclass(frozen=True)
class TinyChair(Chair):
    """CHAIR on the bundled scenes; every object name is found in the singular and the plural."""

    words: Words = "exact"

    name: ClassVar[str] = "tiny-chair"
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "exact": {"words": "exact"},
        "pattern": {"words": "pattern"},
        "wordnet": {"words": "wordnet"},
        "exact-complete": {"words": "exact", "drop_incomplete": True},
    }
    source: ClassVar[str] = "bundled scenes of the embedded model"

    def __post_init__(self) -> None:
        _refuse_labels(self.name, self.objects)

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        if "wordnet" in self._extractors:
            load_tagger()
        return [
            Item(scene.id, scene, grammar.DESCRIBE, sorted(scene.names), {"context": scene.context})
            for scene in tiny.scenes(split)[:limit]
        ]

    def settings(self) -> dict[str, Any]:
        return Chair.settings(replace(self, data=None))  # there is no list of images to record

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        return replace(super().score(items, answers), definitions=CHAIR_METRICS)


@dataclass(frozen=True)
class TinyPope(Pope):
    """POPE on the bundled scenes."""

    dataset: str = "tiny"
    setting: Setting = "all"

    name: ClassVar[str] = "tiny-pope"
    max_new_tokens: ClassVar[int] = 8
    source: ClassVar[str] = "bundled scenes of the embedded model"

    def __post_init__(self) -> None:
        _refuse_labels(self.name, self.objects)

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        settings = SETTINGS if self.setting == "all" else (self.setting,)
        images = {scene.id: scene for scene in tiny.scenes(split)}
        found: list[Item] = []
        for setting, share in zip(settings, split_limit(limit, len(settings)), strict=True):
            for question in tiny.questions(split, setting)[:share]:
                meta = {"group": question.scene, "setting": setting, "object": question.object}
                key = f"{setting}-{question.id}"
                found.append(Item(key, images[question.scene], question.text, question.label, meta))
        return found


@dataclass(frozen=True)
class TinyYesNo(Task):
    """Two questions per image about existence, number, place or the color of the background."""

    subtask: Subtask = "existence"
    parser: str = "strict"
    seed: int = 0  # of which object is asked for, and of the wrong value

    name: ClassVar[str] = "tiny-yesno"
    kind = "yesno"
    max_new_tokens: ClassVar[int] = 8
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {name: {"parser": name} for name in PARSERS}
    source: ClassVar[str] = "bundled scenes of the embedded model"

    def items(self, limit: int | None = None, split: str = "test") -> list[Item]:
        found: list[Item] = []
        for scene in tiny.scenes(split):
            if limit is not None and len(found) >= limit:
                break
            # the seed keeps the former spelling, so that the questions stay the same
            draw = random.Random(f"{self.seed} {self.subtask.replace('color', 'colour')} {scene.id}")
            for number, exchange in enumerate(_make_pair(self.subtask, scene, draw)):
                meta = {"group": scene.id, "first": number == 0}
                key = f"{self.subtask}-{scene.id}-{number}"
                found.append(Item(key, scene, exchange.question, exchange.answer.lower(), meta))
        return found[:limit]

    def parse(self, item: Item, text: str) -> YesNo | None:
        return parse_yes_no(text, item.truth, self.parser)

    def score(self, items: Sequence[Item], answers: Sequence[str | None]) -> Scores:
        """Accuracy, and accuracy+ (images with both questions right); MME's score is their sum."""
        scores = score_yes_no(items, answers, self.parser, variant=self.variant_name)
        right: dict[str, list[bool]] = {}
        for item, detail in zip(items, scores.details, strict=True):
            right.setdefault(item.group, []).append(bool(detail.get("correct")))
        per_item = [dict(counts) for counts in scores.per_item]
        # an image counts once, with its first question
        for i, item in enumerate(items):
            if item.meta["first"] and "missing" not in per_item[i]:
                per_item[i] |= {"images": 1.0, "both": float(all(right[item.group]))}
        extra = {"accuracy+": Metric(Ratio("both", "images")), "score": Metric(_add_accuracies)}
        return replace(scores, per_item=per_item, definitions={**scores.definitions, **extra})


def _add_accuracies(counts: Mapping[str, Any]) -> Any:
    return Ratio("correct", "n")(counts) + Ratio("both", "images")(counts)


def _make_pair(subtask: Subtask, scene: tiny.BundledScene, draw: random.Random) -> tuple[grammar.Exchange, ...]:
    """A question answered by yes and one answered by no; nothing if the scene does not allow both."""
    if subtask == "existence":
        absent = draw.choice([name for name in OBJECTS if name not in scene.names])
        return grammar.existence_question(draw.choice(scene.names), True), grammar.existence_question(absent, False)
    if subtask == "count":
        name = draw.choice(scene.names)
        n = sum(placed.name == name for placed in scene.objects)
        wrong = draw.choice([other for other in (1, 2, 3) if other != n])
        return grammar.count_question(name, n, n), grammar.count_question(name, n, wrong)
    if subtask == "position":
        lone = [o for o in scene.objects if sum(p.name == o.name for p in scene.objects) == 1]
        if not lone:
            return ()
        placed = draw.choice(lone)
        true = grammar.place_name(placed.x, placed.y)
        wrong_place = draw.choice([place for place in grammar.PLACES if place != true])
        return grammar.position_question(placed.name, true, true), grammar.position_question(
            placed.name, true, wrong_place
        )
    if subtask == "color":
        wrong_color = draw.choice([color for color in COLORS if color != scene.color])
        return grammar.color_question(scene.color, scene.color), grammar.color_question(scene.color, wrong_color)
    raise ValueError(f"unknown subtask {subtask!r}. Known: existence, count, position, color")


@score_format.register(TinyChair)
@score_format.register(TinyPope)
@score_format.register(TinyYesNo)
def score_tiny_file(task: Task, path: Path, truth: Path | None = None, *, lenient: bool = False) -> Scores:
    """Score answers by item id, in whichever split has those items; the truth is built in."""
    if truth is not None:
        raise ValueError(f"{task.name} has its truth built in: leave out --truth")
    entries = read_answers(path)
    keys = {entry.key for entry in entries}
    for split in tiny.SPLITS:
        items = task.items(split=split)
        if any(item.id in keys for item in items):
            return score_entries(task, items, entries, path, lenient=lenient, record={"split": split})
    raise ValueError(f"{path}: no answer has the id of an item of {task.name} (such as {task.items(1)[0].id})")
