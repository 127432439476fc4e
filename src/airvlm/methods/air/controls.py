"""Controls of AIR: what a result must be compared with before it means anything.

Variants of its evidence: random, farthest, noised or another image's crops, no prototypes, no selection. The biases on
an answer's words, the other controls, are biases.py. They know nothing of any benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airvlm.methods.air.config import AIR

__all__ = ["CONTROLS", "RENAMED", "control"]

# name -> how it differs from the method it controls, and what it would mean if it did as well
CONTROLS: dict[str, tuple[str, Callable[[AIR], AIR]]] = {
    "random-crops": ("as many crops, drawn at random", lambda air: replace(air, order="random")),
    "worst-crops": ("as many crops, the farthest ones", lambda air: replace(air, order="farthest")),
    "noised": ("the kept crops' tokens with Gaussian noise", lambda air: replace(air, noise=1.0)),
    "averaged": ("the mean of all visual features in place of the crops", lambda air: _averaged(air)),
    "no-prototypes": (
        "all visual tokens, not the Q farthest from their mean",
        lambda air: replace(air, top_q=1.0),
    ),
    "no-selection": ("all crops, whatever their distance", lambda air: _all_crops(air)),
    "other-image": ("another image's crops", lambda air: replace(air, source="other")),
    "shrunk": ("crops of the image as the model sees it", lambda air: replace(air, source="shrunk")),
}

RENAMED = {"other-picture": "other-image"}  # former name -> name; runs that were kept spell it so


def control(name: str, air: AIR) -> AIR:
    """The named control of this method."""
    name = RENAMED.get(name, name)
    if name not in CONTROLS:
        raise ValueError(f"unknown control {name!r}; known: {', '.join(CONTROLS)}")
    return CONTROLS[name][1](air)


def _all_crops(air: AIR) -> AIR:
    return replace(air, tau=None, keep=None, quantile=1.0)


def _averaged(air: AIR) -> AIR:
    return replace(air, memory="average")
