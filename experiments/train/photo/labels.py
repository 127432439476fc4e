"""The objects file as arrays: photographs in one order, and what each of them shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HELD_OUT = ("test", "calibration", "validation", "pope")


@dataclass(frozen=True)
class Labels:
    names: list[str]  # the categories, the most frequent in training first: the order of every description
    stems: list[str]  # photographs: the held-out ones first, then the training ones
    splits: dict[str, range]  # rows of each split in `stems`
    present: np.ndarray  # (photographs, categories) bool

    @classmethod
    def read(cls, path: Path) -> Labels:
        table = json.loads(path.read_text())
        stems: list[str] = []
        splits = {}
        for name in (*HELD_OUT, "train"):
            own = table["splits"].get(name, [])
            splits[name] = range(len(stems), len(stems) + len(own))
            stems += own
        known = sorted({n for own in table["objects"].values() for n in own})
        column = {n: k for k, n in enumerate(known)}
        present = np.zeros((len(stems), len(known)), dtype=bool)
        for row, key in enumerate(stems):
            present[row, [column[n] for n in table["objects"][key]]] = True
        order = np.argsort(-present[splits["train"].start : splits["train"].stop].sum(0), kind="stable")
        return cls([known[k] for k in order], stems, splits, present[:, order])

    def train_range(self, share: tuple[float, float]) -> tuple[int, int]:
        """First row, and the row after the last, of a recipe's part of the training photographs."""
        train = self.splits["train"]
        low, high = (train.start + round(part * len(train)) for part in share)
        return low, high
