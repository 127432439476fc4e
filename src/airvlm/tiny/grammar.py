"""What can be said of a scene: descriptions, questions and their answers, all true.

Every object of a scene is named in its description, the largest first. Which words are chosen depends on the
random generator that is handed in, so the same seed tells the same story. Knows nothing of pixels or models.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from airvlm.tiny.world import COLOURS, CONTEXTS, OBJECTS, Placed, Scene

# the sentence of CHAIR evaluations: what `describe` and every task ask, and what the embedded models were trained on
DESCRIBE = "Please describe this image in detail."
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
PAIRS = ("skis", "scissors")  # plural in form: one of them is "a pair of"
IRREGULAR = {"person": "people", "sheep": "sheep", "knife": "knives", "mouse": "mice", "broccoli": "broccoli"}


@dataclass(frozen=True)
class Exchange:
    """A question and its true answer; ``subject`` is the object that a yes/no question asks for."""

    question: str
    answer: str
    kind: str  # describe, existence, count, position, colour, context, side
    subject: str | None = None


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def plural(name: str) -> str:
    if name in PAIRS:
        return f"pairs of {name}"
    if name in IRREGULAR:
        return IRREGULAR[name]
    if name.endswith(("s", "ch", "sh", "x")):
        return f"{name}es"
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}s"


def counted(name: str, n: int) -> str:
    """ "a cup", "two cups", "a pair of skis"."""
    if n > 1:
        return f"{NUMBERS[n]} {plural(name)}"
    return f"a pair of {name}" if name in PAIRS else article(name)


def place(x: float, y: float) -> str:
    """Where a point lies, in words; left and right come before top and bottom."""
    if x < 0.36:
        return "on the left"
    if x > 0.64:
        return "on the right"
    if y < 0.36:
        return "at the top"
    return "at the bottom" if y > 0.64 else "in the middle"


def places(objects: Sequence[Placed]) -> str:
    """Where the objects of a kind are: their common place, if they have one."""
    single = {place(o.x, o.y) for o in objects}
    return single.pop() if len(single) == 1 else "in different places"


def listed(phrases: Sequence[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def description(scene: Scene, draw: random.Random) -> str:
    """A description that names every kind of object once, with its number and mostly its place."""
    kinds = [(name, [o for o in scene.objects if o.name == name]) for name in scene.names]
    phrases = [(counted(name, len(objects)), places(objects), len(objects)) for name, objects in kinds]
    where = article(scene.context)
    if not phrases:
        return f"The image shows {where}."
    opening = draw.randrange(4)
    if opening == 0:
        sentences = [f"The image shows {where} with {phrases.pop(0)[0]}."]
    elif opening == 1:
        sentences = [f"This is a picture of {where}."]
    elif opening == 2:
        what, there, _ = phrases.pop(0)
        sentences = [f"The image features {what} {there} of {where}."]
    else:
        sentences = [f"In {where} we see {listed([p[0] for p in phrases[:2]])}."]
        phrases = phrases[2:]
    while phrases:
        what, there, n = phrases.pop(0)
        verb = "is" if n == 1 else "are"
        form = draw.randrange(6)
        if form == 0 and phrases:
            other, elsewhere, _ = phrases.pop(0)
            sentences.append(_sentence(f"{what} {verb} {there} and {other} {elsewhere}"))
        elif form == 1 and len(phrases) >= 1:
            rest = [what, *(p[0] for p in phrases[:3])]
            phrases = phrases[3:]
            sentences.append(f"There {verb} also {listed(rest)}.")
        elif form == 2:
            sentences.append(_sentence(f"{there}, there {verb} {what}"))
        elif form == 3:
            sentences.append(_sentence(f"{what} can be seen {there}"))
        else:
            sentences.append(f"There {verb} {what} {there}.")
    return " ".join(sentences)


EXISTENCE = (
    "Is there {} in the image?",
    "Is there {} in this picture?",
    "Can you see {}?",
    "Does the image contain {}?",
)


def existence(name: str, present: bool, draw: random.Random | None = None) -> Exchange:
    """POPE's question; with a random generator, two times in five one of its paraphrases."""
    form = EXISTENCE[0] if draw is None or draw.random() < 0.6 else draw.choice(EXISTENCE)
    return Exchange(form.format(article(name)), "Yes" if present else "No", "existence", name)


def absent_object(scene: Scene, draw: random.Random, unsure: Sequence[str] = ()) -> str:
    """An object that is not there: half of the time one that the context suggests."""
    while True:
        name = draw.choice(CONTEXTS[scene.context] if draw.random() < 0.5 else OBJECTS)
        if name not in scene.names and name not in unsure:
            return name


def other_question(scene: Scene, draw: random.Random) -> Exchange:
    """A question on number, place, colour or context; half of those that allow it are asked as yes or no."""
    kind = draw.choice(("count", "position", "colour", "context", "side"))
    closed = draw.random() < 0.5
    lone = [o for o in scene.objects if sum(p.name == o.name for p in scene.objects) == 1]
    if kind == "count" and scene.objects:
        name = draw.choice(scene.names)
        n = sum(o.name == name for o in scene.objects)
        if not closed:
            return Exchange(f"How many {plural(name)} are there in the image?", NUMBERS[n].capitalize(), kind, name)
        return counting(name, n, n if draw.random() < 0.5 else draw.choice([m for m in (1, 2, 3) if m != n]))
    if kind == "position" and lone:
        o = draw.choice(lone)
        true = place(o.x, o.y)
        if not closed:
            return Exchange(f"Where is the {o.name}?", true.capitalize(), kind, o.name)
        asked = true if draw.random() < 0.5 else draw.choice([p for p in PLACES if p != true])
        return located(o.name, true, asked)
    if kind == "colour":
        if not closed:
            return Exchange("What colour is the background?", scene.colour.capitalize(), kind)
        wrong = [c for c in COLOURS if c != scene.colour]
        return coloured(scene.colour, scene.colour if draw.random() < 0.5 else draw.choice(wrong))
    if kind == "context":
        return Exchange("Where was this picture taken?", f"In {article(scene.context)}", kind)
    side = draw.choice(("on the left", "on the right"))
    seen = [n for n in scene.names if any(o.name == n and place(o.x, o.y) == side for o in scene.objects)]
    answer = listed([article(n) if n not in PAIRS else f"a pair of {n}" for n in seen]) if seen else "nothing"
    return Exchange(f"What is {side}?", answer[0].upper() + answer[1:], "side")


PLACES = ("on the left", "on the right", "at the top", "at the bottom", "in the middle")


def counting(name: str, true: int, asked: int) -> Exchange:
    verb = "Is" if asked == 1 else "Are"
    noun = f"one {'pair of ' if name in PAIRS else ''}{name}" if asked == 1 else counted(name, asked)
    return Exchange(f"{verb} there {noun} in the image?", "Yes" if asked == true else "No", "count", name)


def located(name: str, true: str, asked: str) -> Exchange:
    verb = "Are" if name in PAIRS else "Is"
    return Exchange(f"{verb} the {name} {asked}?", "Yes" if asked == true else "No", "position", name)


def coloured(true: str, asked: str) -> Exchange:
    return Exchange(f"Is the background {asked}?", "Yes" if asked == true else "No", "colour")
