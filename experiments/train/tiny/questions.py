"""Questions that only the training of the model tiny asks."""

from __future__ import annotations

import random
from collections.abc import Sequence

from airvlm.tiny.grammar import (
    NUMBERS,
    PAIRS,
    PLACES,
    Exchange,
    article,
    color_question,
    count_question,
    join_phrases,
    place_name,
    plural,
    position_question,
)
from airvlm.tiny.world import COLORS, CONTEXTS, OBJECTS, Scene

__all__ = ["absent_object", "other_question"]


def absent_object(scene: Scene, draw: random.Random, unsure: Sequence[str] = ()) -> str:
    """An object that is not in the scene: half of the time one that the context suggests."""
    while True:
        name = draw.choice(CONTEXTS[scene.context] if draw.random() < 0.5 else OBJECTS)
        if name not in scene.names and name not in unsure:
            return name


def other_question(scene: Scene, draw: random.Random) -> Exchange:
    """A question on number, place, color or context; half of those that allow it are asked as yes or no."""
    kind = draw.choice(("count", "position", "color", "context", "side"))
    closed = draw.random() < 0.5
    lone = [o for o in scene.objects if sum(p.name == o.name for p in scene.objects) == 1]
    if kind == "count" and scene.objects:
        name = draw.choice(scene.names)
        n = sum(o.name == name for o in scene.objects)
        if not closed:
            return Exchange(f"How many {plural(name)} are there in the image?", NUMBERS[n].capitalize(), kind, name)
        return count_question(name, n, n if draw.random() < 0.5 else draw.choice([m for m in (1, 2, 3) if m != n]))
    if kind == "position" and lone:
        o = draw.choice(lone)
        true = place_name(o.x, o.y)
        if not closed:
            return Exchange(f"Where is the {o.name}?", true.capitalize(), kind, o.name)
        asked = true if draw.random() < 0.5 else draw.choice([p for p in PLACES if p != true])
        return position_question(o.name, true, asked)
    if kind == "color":
        if not closed:
            return Exchange("What colour is the background?", scene.color.capitalize(), kind)
        wrong = [c for c in COLORS if c != scene.color]
        return color_question(scene.color, scene.color if draw.random() < 0.5 else draw.choice(wrong))
    if kind == "context":
        return Exchange("Where was this picture taken?", f"In {article(scene.context)}", kind)
    side = draw.choice(("on the left", "on the right"))
    seen = [n for n in scene.names if any(o.name == n and place_name(o.x, o.y) == side for o in scene.objects)]
    answer = join_phrases([article(n) if n not in PAIRS else f"a pair of {n}" for n in seen]) if seen else "nothing"
    return Exchange(f"What is {side}?", answer[0].upper() + answer[1:], "side")
