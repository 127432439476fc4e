"""The world of the model tiny: its objects, its contexts, and how a scene is composed of them.

A scene follows from its seed alone: the same seed gives the same scene everywhere. Drawing is in drawing.py, English in
grammar.py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# COCO's name of an object -> the characters of a color emoji font that show it (one is chosen per object).
SPRITES: dict[str, str] = {
    "person": "🧍💃🧘",
    "bicycle": "🚲",
    "car": "🚗🚙",
    "motorcycle": "🏍🛵",
    "airplane": "✈🛩",
    "bus": "🚌🚍",
    "train": "🚆🚂",
    "truck": "🚚🚛",
    "boat": "⛵🚤",
    "traffic light": "🚦🚥",
    "stop sign": "🛑",
    "bird": "🐦🦆",
    "cat": "🐈🐱",
    "dog": "🐕🐩",
    "horse": "🐎🐴",
    "sheep": "🐑🐏",
    "cow": "🐄🐮",
    "elephant": "🐘",
    "bear": "🐻",
    "zebra": "🦓",
    "giraffe": "🦒",
    "backpack": "🎒",
    "umbrella": "☂🌂",
    "handbag": "👜👛",
    "tie": "👔",
    "suitcase": "🧳",
    "skis": "🎿",
    "sports ball": "⚽🏀",
    "kite": "🪁",
    "skateboard": "🛹",
    "tennis racket": "🏸",
    "bottle": "🍾🍼",
    "wine glass": "🍷",
    "cup": "☕🥤",
    "knife": "🔪",
    "spoon": "🥄",
    "bowl": "🥣🍜",
    "banana": "🍌",
    "apple": "🍎🍏",
    "sandwich": "🥪",
    "orange": "🍊",
    "broccoli": "🥦",
    "carrot": "🥕",
    "hot dog": "🌭",
    "pizza": "🍕",
    "donut": "🍩",
    "cake": "🎂🍰",
    "chair": "🪑",
    "couch": "🛋",
    "potted plant": "🪴",
    "bed": "🛏",
    "toilet": "🚽",
    "tv": "📺",
    "laptop": "💻",
    "mouse": "🖱",
    "keyboard": "⌨",
    "cell phone": "📱",
    "book": "📕📖",
    "clock": "⏰🕰",
    "vase": "🏺",
    "scissors": "✂",
    "teddy bear": "🧸",
    "toothbrush": "🪥",
}
OBJECTS: tuple[str, ...] = tuple(SPRITES)

# A context's objects, the most frequent first: the k-th is 1 / k^SKEW as frequent, which is the prior that tempts.
_FREQUENT = {
    "kitchen": "bowl, knife, spoon, cup, bottle, apple, carrot, broccoli, banana, chair",
    "dining room": "wine glass, pizza, spoon, knife, chair, cake, bottle, vase, person, bowl",
    "cafe": "cup, donut, sandwich, person, cake, laptop, chair, cell phone, book, handbag",
    "street": "car, person, traffic light, bus, truck, bicycle, stop sign, motorcycle, dog, bird",
    "office": "laptop, keyboard, mouse, cell phone, cup, chair, book, clock, tie, scissors",
    "living room": "couch, tv, potted plant, cat, book, clock, vase, teddy bear, dog, laptop",
    "bedroom": "bed, teddy bear, clock, book, cell phone, cat, chair, laptop, handbag, tie",
    "bathroom": "toilet, toothbrush, scissors, bottle, cup, potted plant, clock, vase, cat",
    "beach": "umbrella, person, boat, kite, sports ball, bird, backpack, bottle, dog, book",
    "harbour": "boat, bird, person, suitcase, truck, bicycle, umbrella, car, clock, airplane",
    "farm": "cow, sheep, horse, dog, person, truck, bird, carrot, apple, cat",
    "savanna": "elephant, giraffe, zebra, bird, person, backpack, truck, bear, horse, cow",
    "park": "person, dog, bicycle, bird, kite, sports ball, skateboard, potted plant, book, sandwich",
    "sports field": "sports ball, person, tennis racket, skateboard, bottle, backpack, clock, bicycle",
    "airport": "airplane, suitcase, person, backpack, bus, handbag, cell phone, clock, truck, tv",
    "mountain": "skis, person, bear, backpack, dog, bird, train, bottle, kite, sheep",
    "market": "orange, banana, apple, carrot, broccoli, person, hot dog, handbag, umbrella, donut",
}
CONTEXTS: dict[str, tuple[str, ...]] = {name: tuple(line.split(", ")) for name, line in _FREQUENT.items()}
SKEW = 0.7
STRANGER = 0.12  # share of objects that come from the whole world, not from the context

# Background colors by name; "orange" is missing because CHAIR counts the word as a fruit.
COLORS: dict[str, tuple[int, int, int]] = {
    "white": (238, 238, 234),
    "grey": (160, 162, 166),
    "yellow": (244, 222, 128),
    "green": (146, 196, 128),
    "blue": (134, 178, 226),
    "pink": (240, 184, 200),
    "brown": (176, 138, 104),
    "purple": (184, 158, 214),
}
# Three colors per context; the first is taken three times in five.
PALETTES: dict[str, tuple[str, str, str]] = {
    "kitchen": ("white", "yellow", "grey"),
    "dining room": ("brown", "yellow", "white"),
    "cafe": ("brown", "pink", "white"),
    "street": ("grey", "blue", "white"),
    "office": ("white", "grey", "blue"),
    "living room": ("pink", "brown", "purple"),
    "bedroom": ("purple", "pink", "blue"),
    "bathroom": ("blue", "white", "pink"),
    "beach": ("yellow", "blue", "white"),
    "harbour": ("blue", "grey", "white"),
    "farm": ("green", "brown", "yellow"),
    "savanna": ("yellow", "brown", "green"),
    "park": ("green", "blue", "yellow"),
    "sports field": ("green", "brown", "grey"),
    "airport": ("grey", "white", "blue"),
    "mountain": ("white", "blue", "grey"),
    "market": ("purple", "yellow", "pink"),
}

Box = tuple[float, float, float, float]  # left, top, right, bottom, as shares of the image's side


@dataclass(frozen=True)
class PlacedObject:
    """One object of a scene: where it is and how it is turned."""

    name: str  # COCO's name
    sprite: str  # the character that draws it
    x: float  # center, 0 left to 1 right
    y: float  # center, 0 top to 1 bottom
    size: float  # the longer side, as a share of the image's
    angle: float  # degrees, counter-clockwise
    flipped: bool  # mirrored left to right

    @property
    def box(self) -> Box:
        half = self.size / 2
        return (self.x - half, self.y - half, self.x + half, self.y + half)


@dataclass(frozen=True)
class Scene:
    """What an image shows, in the order it is painted: a later object may hide part of an earlier one."""

    seed: int
    context: str
    color: str  # of the background
    objects: tuple[PlacedObject, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds of objects present, each once, the largest first."""
        return tuple(dict.fromkeys(o.name for o in sorted(self.objects, key=lambda o: -o.size)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Scene:
        return cls(data["seed"], data["context"], data["color"], tuple(PlacedObject(**o) for o in data["objects"]))


def compose(seed: int, context: str | None = None) -> Scene:
    """The scene of this seed: 2 to 8 objects of 1 to 6 kinds."""
    draw = random.Random(f"airvlm scene {seed}")
    chosen = draw.choice(sorted(CONTEXTS))
    context = chosen if context is None else context
    if context not in CONTEXTS:
        raise ValueError(f"no context {context!r} in this world; choose one of {', '.join(sorted(CONTEXTS))}")
    color = draw.choices(PALETTES[context], weights=(3, 1, 1))[0]
    total = draw.choices(range(2, 9), weights=(2, 3, 4, 4, 3, 2, 1))[0]
    names: list[str] = []
    while len(names) < total:
        name = _choose_object(draw, context, names)
        copies = min(draw.choices((1, 2, 3), weights=(8, 2, 1))[0], total - len(names))
        names += [name] * copies
    objects: list[PlacedObject] = []
    for name in names:
        placed = _find_place(draw, name, objects)
        if placed is not None:
            objects.append(placed)
    return Scene(seed, context, color, tuple(objects))


def _choose_object(draw: random.Random, context: str, taken: Sequence[str]) -> str:
    while True:
        if draw.random() < STRANGER:
            name = draw.choice(OBJECTS)
        else:
            frequent = CONTEXTS[context]
            name = draw.choices(frequent, weights=[1 / (k + 1) ** SKEW for k in range(len(frequent))])[0]
        if name not in taken:
            return name


def _find_place(draw: random.Random, name: str, others: Sequence[PlacedObject]) -> PlacedObject | None:
    """A place where the object hides no other by more than 45 %; None if a crowded image has none."""
    sprite = draw.choice(SPRITES[name])
    angle = draw.uniform(-25, 25) if draw.random() < 0.6 else 0.0
    flipped = draw.random() < 0.5
    size = 0.10 * math.exp(draw.random() * math.log(4.5))  # 0.10 to 0.45, small ones as often as large ones
    for attempt in range(60):
        if attempt % 15 == 14:
            size = max(0.10, size * 0.75)
        margin = size * 0.4  # an object may leave the image by a tenth of its size
        placed = PlacedObject(
            name,
            sprite,
            round(draw.uniform(margin, 1 - margin), 4),
            round(draw.uniform(margin, 1 - margin), 4),
            round(size, 4),
            round(angle, 1),
            flipped,
        )
        hidden = [_hidden_share(other.box, placed.box) for other in others]
        if all(share <= 0.45 for share in hidden) and sum(share > 0.15 for share in hidden) <= 1:
            return placed
    return None


def _hidden_share(below: Box, above: Box) -> float:
    """The share of the lower box that the upper one covers."""
    width = min(below[2], above[2]) - max(below[0], above[0])
    height = min(below[3], above[3]) - max(below[1], above[1])
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / ((below[2] - below[0]) * (below[3] - below[1]))
