"""Features and labels of the photographs, in the rows' order of features.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

PATCHES, WIDTH = 100, 768


class Photos:
    """8-bit features on disk and which of COCO's 80 objects each photograph shows.

    Rows are validation, calibration, then training photographs; `done` of them have been extracted.
    """

    def __init__(self, folder: Path, objects: Path) -> None:
        table = json.loads(objects.read_text())
        splits = table["splits"]
        stems = [*splits["validation"], *splits["calibration"], *splits["train"]]
        held_out = len(splits["validation"])
        self.validation = range(held_out)
        self.calibration = range(held_out, held_out + len(splits["calibration"]))
        self.first_train = self.calibration.stop
        known = sorted({name for own in table["objects"].values() for name in own})
        counts = dict.fromkeys(known, 0)
        for stem in splits["train"]:
            for name in table["objects"][stem]:
                counts[name] += 1
        self.names = sorted(known, key=lambda name: -counts[name])  # the most frequent first
        column = {name: k for k, name in enumerate(self.names)}
        self.present = np.zeros((len(stems), len(known)), dtype=bool)
        for row, stem in enumerate(stems):
            self.present[row, [column[name] for name in table["objects"][stem]]] = True
        self.stems = stems
        self._state = folder / "done.json"
        self._features = np.memmap(folder / "features.int8", np.int8, "r", shape=(len(stems), PATCHES, WIDTH))
        self._step = torch.from_numpy(np.load(folder / "scales.npz")["step"])

    @property
    def train(self) -> range:
        """Training photographs that have features already."""
        return range(self.first_train, int(json.loads(self._state.read_text())["done"]))

    def read(self, rows: np.ndarray | list[int]) -> torch.Tensor:
        """Features (n, 100, 768) in float32."""
        order = np.argsort(rows)
        values = torch.from_numpy(self._features[np.asarray(rows)[order]]).float() * self._step
        return values[torch.from_numpy(np.argsort(order))]

    def labels(self, rows: np.ndarray | list[int]) -> torch.Tensor:
        """(n, 80) 1 where an object is there."""
        return torch.from_numpy(self.present[np.asarray(rows)]).float()


def note(folder: Path, stage: str, **values: Any) -> None:
    """Add a line to a run's log and print it."""
    line = json.dumps({"stage": stage, **{k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}})
    with (folder / "log.jsonl").open("a") as log:
        log.write(line + "\n")
    print(line, flush=True)


def mean_average_precision(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Mean over the objects of average precision: scores and labels (n, 80)."""
    order = scores.argsort(0, descending=True)
    hits = labels.gather(0, order)
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)[:, None]
    per_object = (precision * hits).sum(0) / hits.sum(0).clamp_min(1)
    return float(per_object[labels.sum(0) > 0].mean())
