"""The embedded model and the little world it describes, as files inside the package.

``model_path()`` is an ordinary transformers folder; ``scenes(split)`` are the images of the evaluation with what
they show; ``questions(split, kind)`` are POPE's questions on them. Nothing here needs the emoji font.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from airvlm.tiny.world import Placed, Scene

__all__ = ["KINDS", "SPLITS", "BundledScene", "Question", "model_card", "model_path", "questions", "scenes"]

SPLITS = ("test", "calibration", "validation")
KINDS = ("random", "popular", "adversarial")
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class BundledScene:
    """A picture of the evaluation, and the truth about it."""

    id: str
    path: Path  # a WebP file of 448 x 448 pixels
    scene: Scene
    caption: str  # one true description

    @property
    def objects(self) -> tuple[Placed, ...]:
        return self.scene.objects

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds of objects present, each once, the largest first."""
        return self.scene.names

    @property
    def context(self) -> str:
        return self.scene.context

    @property
    def colour(self) -> str:
        return self.scene.colour


@dataclass(frozen=True)
class Question:
    """One of POPE's questions on a bundled scene."""

    id: str
    scene: str  # a BundledScene's id
    object: str
    text: str
    label: str  # yes or no


def model_path() -> Path:
    """The folder that ``from_pretrained`` loads."""
    return _HERE / "model"


def model_card() -> dict[str, object]:
    """How the model was trained and what it scores, as written when it was exported."""
    card: dict[str, object] = json.loads((model_path() / "card.json").read_text())
    return card


@functools.cache
def scenes(split: str = "test") -> tuple[BundledScene, ...]:
    """The bundled scenes of a split, in a fixed order."""
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; choose one of {', '.join(SPLITS)}")
    lines = (_HERE / "pictures" / f"{split}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return tuple(
        BundledScene(
            row["id"],
            _HERE / "pictures" / split / f"{row['id']}.webp",
            Scene.from_json(row["scene"]),
            row["caption"],
        )
        for row in rows
    )


@functools.cache
def questions(split: str = "test", kind: str = "random") -> tuple[Question, ...]:
    """POPE's questions of one kind: six a picture, half of them answered by yes."""
    if split not in SPLITS or kind not in KINDS:
        raise ValueError(
            f"no questions {split!r} {kind!r}; splits: {', '.join(SPLITS)}; kinds: {', '.join(KINDS)}"
        )
    lines = (_HERE / "pictures" / f"{split}.{kind}.jsonl").read_text().splitlines()
    return tuple(Question(**json.loads(line)) for line in lines)
