"""The embedded model tiny and the emoji scenes that it describes, as files inside the package.

`model_path()` is an ordinary transformers folder, `scenes(split)` are the images of the evaluation with what they show,
and `questions(split, kind)` are POPE's questions on them. A scene is drawn when its file is first used.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airvlm.tiny import grammar
from airvlm.tiny.world import PlacedObject, Scene

if TYPE_CHECKING:
    from airvlm.tiny.files import SceneFile

__all__ = ["KINDS", "SPLITS", "BundledScene", "Question", "model_card", "model_path", "questions", "scenes"]

SPLITS = ("test", "calibration", "validation")
KINDS = ("random", "popular", "adversarial")
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class BundledScene:
    """An image of the evaluation and its ground truth. It can be used wherever an image file can."""

    id: str
    scene: Scene
    caption: str  # one true description
    content_hash: str  # of the WebP file that published results were measured on
    pixels_hash: str  # of that file's pixels

    @property
    def file(self) -> SceneFile:
        """The image's file, drawn now if it was not before."""
        from airvlm.tiny.files import scene_file  # imports numpy and Pillow, which most commands' help does not need

        return scene_file(self.id, self.scene, self.content_hash, self.pixels_hash)

    @property
    def path(self) -> Path:
        """A WebP file of 448 x 448 pixels in the user's cache folder."""
        return self.file.path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return self.id

    @property
    def objects(self) -> tuple[PlacedObject, ...]:
        return self.scene.objects

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds of objects present, each once, the largest first."""
        return self.scene.names

    @property
    def context(self) -> str:
        return self.scene.context

    @property
    def color(self) -> str:
        return self.scene.color


@dataclass(frozen=True)
class Question:
    """One of POPE's questions on a bundled scene."""

    id: str
    scene: str  # a BundledScene's id
    object: str
    text: str
    label: str  # yes or no


def model_path() -> Path:
    """The folder that `from_pretrained` loads."""
    return _HERE / "model"


def model_card() -> dict[str, object]:
    """How the model was trained and what it scores, as written when it was exported."""
    card: dict[str, object] = json.loads((model_path() / "card.json").read_text())
    return card


@functools.cache
def _rows(split: str) -> list[dict[str, Any]]:
    lines = (_HERE / "scenes" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@functools.cache
def scenes(split: str = "test") -> tuple[BundledScene, ...]:
    """The bundled scenes of a split, in a fixed order."""
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; choose one of {', '.join(SPLITS)}")
    found = []
    for row in _rows(split):
        objects = tuple(PlacedObject(*values) for values in row["objects"])
        scene = Scene(row["seed"], row["context"], row["colour"], objects)
        found.append(BundledScene(row["id"], scene, row["caption"], row["content"], row["pixels"]))
    return tuple(found)


@functools.cache
def questions(split: str = "test", kind: str = "random") -> tuple[Question, ...]:
    """POPE's questions of one kind: six per image, half of them with the answer yes."""
    if split not in SPLITS or kind not in KINDS:
        raise ValueError(f"no questions {split!r} {kind!r}; splits: {', '.join(SPLITS)}; kinds: {', '.join(KINDS)}")
    found: list[Question] = []
    for row in _rows(split):
        for place, name in enumerate(row["asked"].get(kind, ())):
            label = "no" if place % 2 else "yes"  # present and absent objects alternate
            text = grammar.existence_question(name, label == "yes").question
            found.append(Question(f"{kind}-{len(found):04d}", row["id"], name, text, label))
    return tuple(found)
