"""English about a scene: true descriptions, and questions with their true answers.

A description names every object of the scene, the largest first. A random generator chooses the words, so the same seed
gives the same text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from airvlm.tiny.world import PlacedObject, Scene

# the prompt of CHAIR evaluations, of `VLM.describe` and of the embedded models' training
DESCRIBE = "Please describe this image in detail."
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
PAIRS = ("skis", "scissors")  # plural in form: one of them is "a pair of"
PLACES = ("on the left", "on the right", "at the top", "at the bottom", "in the middle")
IRREGULAR = {"person": "people", "sheep": "sheep", "knife": "knives", "mouse": "mice", "broccoli": "broccoli"}


@dataclass(frozen=True)
class Exchange:
    """A question and its true answer."""

    question: str
    answer: str
    kind: str  # describe, existence, count, position, color, context, side
    subject: str | None = None  # the object that a yes/no question asks for


def article(noun: str) -> str:
    """For example "a cup", "an apple"."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def plural(name: str) -> str:
    """For example "cups", "pairs of skis"."""
    if name in PAIRS:
        return f"pairs of {name}"
    if name in IRREGULAR:
        return IRREGULAR[name]
    if name.endswith(("s", "ch", "sh", "x")):
        return f"{name}es"
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}s"


def count_phrase(name: str, n: int) -> str:
    """For example "a cup", "two cups", "a pair of skis"."""
    if n > 1:
        return f"{NUMBERS[n]} {plural(name)}"
    return f"a pair of {name}" if name in PAIRS else article(name)


def place_name(x: float, y: float) -> str:
    """Where a point is, in words; left and right come before top and bottom."""
    if x < 0.36:
        return "on the left"
    if x > 0.64:
        return "on the right"
    if y < 0.36:
        return "at the top"
    return "at the bottom" if y > 0.64 else "in the middle"


def place_phrase(objects: Sequence[PlacedObject]) -> str:
    """Where the objects of a kind are: their common place, if they have one."""
    single = {place_name(o.x, o.y) for o in objects}
    return single.pop() if len(single) == 1 else "in different places"


def join_phrases(phrases: Sequence[str]) -> str:
    """For example "a cup, a fork and a knife"."""
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def description(scene: Scene, draw: random.Random) -> str:
    """A description that names every kind of object once, with its number and mostly its place."""
    kinds = [(name, [o for o in scene.objects if o.name == name]) for name in scene.names]
    phrases = [(count_phrase(name, len(objects)), place_phrase(objects), len(objects)) for name, objects in kinds]
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
        sentences = [f"In {where} we see {join_phrases([p[0] for p in phrases[:2]])}."]
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
            sentences.append(f"There {verb} also {join_phrases(rest)}.")
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


def existence_question(name: str, present: bool, draw: random.Random | None = None) -> Exchange:
    """POPE's question; with a random generator, two times in five a paraphrase of it."""
    form = EXISTENCE[0] if draw is None or draw.random() < 0.6 else draw.choice(EXISTENCE)
    return Exchange(form.format(article(name)), "Yes" if present else "No", "existence", name)


def count_question(name: str, true: int, asked: int) -> Exchange:
    """For example "Are there two cups in the image?", where there are `true` of them."""
    verb = "Is" if asked == 1 else "Are"
    noun = f"one {'pair of ' if name in PAIRS else ''}{name}" if asked == 1 else count_phrase(name, asked)
    return Exchange(f"{verb} there {noun} in the image?", "Yes" if asked == true else "No", "count", name)


def position_question(name: str, true: str, asked: str) -> Exchange:
    """For example "Is the cup on the left?", where it is at the place `true`."""
    verb = "Are" if name in PAIRS else "Is"
    return Exchange(f"{verb} the {name} {asked}?", "Yes" if asked == true else "No", "position", name)


def color_question(true: str, asked: str) -> Exchange:
    """For example "Is the background blue?", where it is of the color `true`."""
    return Exchange(f"Is the background {asked}?", "Yes" if asked == true else "No", "color")
