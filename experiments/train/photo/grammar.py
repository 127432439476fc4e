"""Sentences about a photograph whose objects are known: descriptions, questions and answers, all true.

A description names every labeled object, the most frequent kinds first. How many objects a sentence holds depends only
on its opening, so that wording and objects are predicted separately. No sentence comes from a data set.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airvlm.tiny.grammar import Exchange, article

DESCRIBE = "Please describe this image in detail."
PLAIN = {"skis": "a pair of skis", "scissors": "a pair of scissors", "broccoli": "some broccoli"}
# How a description begins, and the number of objects in its first sentence
OPENINGS = (
    ("The image shows", 3),
    ("This is a photo of", 3),
    ("There is", 2),
    ("In the image there is", 2),
    ("The photo shows", 4),
    ("We can see", 3),
    ("This image contains", 4),
    ("In this scene there is", 3),
)
GOING_ON = (
    ("There is also", 2),
    ("We can also see", 3),
    ("The image also shows", 3),
    ("Besides, there is", 2),
)
NOTHING = "The image shows no object that I know."
DESCRIBING = (
    DESCRIBE,
    "Describe this image.",
    "What is shown in this image?",
    "Describe the image in detail.",
    "Write a description of this photo.",
    "What do you see?",
)
LISTING = ("What objects are in the image?", "List the objects in this image.", "Which objects can you see?")
EXISTENCE = (
    "Is there {} in the photo?",
    "Is there {} in this image?",
    "Do you see {} in the image?",
    "Can you see {} in this photo?",
    "Does the image show {}?",
    "Is {} visible in the image?",
    "Is there {} here?",
    "Is there {} in the imange?",  # spelled like this in some of POPE's own questions
)
ENDINGS = (
    " Please answer yes or no.",
    " Please answer this question with one word.",
    " Please just answer yes or no.",
    "\nAnswer the question using a single word or phrase.",
)
CHOICES = ("Which is in the image, {} or {}?", "Does the image show {} or {}?")
GROUPS = {
    "animals": "bird cat dog horse sheep cow elephant bear zebra giraffe",
    "vehicles": "bicycle car motorcycle airplane bus train truck boat",
    "foods": "banana apple sandwich orange broccoli carrot hot_dog pizza donut cake",
}


def noun(name: str) -> str:
    """ "a dog", "an apple", "a pair of skis"."""
    return PLAIN.get(name, article(name))


def join_nouns(names: Sequence[str]) -> str:
    """ "a dog, a cat and an apple"."""
    nouns = [noun(n) for n in names]
    return nouns[0] if len(nouns) == 1 else f"{', '.join(nouns[:-1])} and {nouns[-1]}"


def description(names: Sequence[str], draw: random.Random) -> str:
    """A description that names the objects in the given order."""
    if not names:
        return NOTHING
    sentences, rest = [], list(names)
    opening, size = draw.choice(OPENINGS)
    while rest:
        sentences.append(f"{opening} {join_nouns(rest[:size])}.")
        rest = rest[size:]
        opening, size = draw.choice(GOING_ON)
    return " ".join(sentences)


@dataclass(frozen=True)
class World:
    """Which objects exist, how often, and how often together."""

    names: list[str]  # the most frequent first
    counts: list[int]  # of training photographs
    beside: list[list[int]]  # how often two objects are in one photograph

    @classmethod
    def of(cls, names: list[str], present: np.ndarray) -> World:
        """From an array (photographs, names) of what is present."""
        table = present.astype(np.float32)
        return cls(names, present.sum(0).tolist(), (table.T @ table).astype(int).tolist())

    def absent(self, present: Sequence[str], draw: random.Random) -> str:
        """An object that is not present: any, a frequent one, or one that often occurs with those that are."""
        away = [k for k, name in enumerate(self.names) if name not in present]
        kind = draw.choices(range(3), (0.25, 0.35, 0.4))[0]
        if kind == 0 or (kind == 2 and not present):
            weights = [1.0] * len(away)
        elif kind == 1:
            weights = [float(self.counts[k]) for k in away]
        else:
            row = self.beside[self.names.index(draw.choice(present))]
            weights = [row[k] + 1e-3 for k in away]
        return self.names[draw.choices(away, weights)[0]]


def existence(name: str, there: bool, draw: random.Random) -> Exchange:
    """A yes/no question; half of them have POPE's wording."""
    plain = draw.random() < 0.5
    # POPE puts a or an before every name, also before skis
    question = f"Is there {article(name)} in the image?" if plain else draw.choice(EXISTENCE).format(noun(name))
    if draw.random() < 0.15:
        question += draw.choice(ENDINGS)
    return Exchange(question, "Yes" if there else "No", "existence", name)


def other_question(names: Sequence[str], world: World, draw: random.Random) -> Exchange:
    """A list, a choice between two, or the members of a group."""
    kind = draw.randrange(3)
    if kind == 0 or not names:
        told = f"{join_nouns(names).capitalize()}." if names else "No object that I know."
        return Exchange(draw.choice(LISTING), told, "list")
    groups = [(g, own) for g, text in GROUPS.items() if (own := [n for n in names if n in _members(text)])]
    if kind == 1 and groups:
        group, own = draw.choice(groups)
        return Exchange(f"Which {group} are in the image?", f"{join_nouns(own).capitalize()}.", "group")
    there, away = draw.choice(names), world.absent(names, draw)
    pair = [noun(there), noun(away)]
    draw.shuffle(pair)
    return Exchange(draw.choice(CHOICES).format(*pair), f"{noun(there).capitalize()}.", "choice", there)


def _members(text: str) -> list[str]:
    return [word.replace("_", " ") for word in text.split()]
