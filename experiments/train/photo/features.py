"""The lower part of the tower on every photograph, once: its stride-16 map as 8-bit numbers in one file per view.

OpenVINO computes them where it is installed, three to five times as fast as torch. The first view is the whole
photograph; the second is a zoom, the third the photograph in another shape, both for training photographs only. Resumes
where it was interrupted.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from airvlm.photo.tower import EfficientNetLiteTower
from experiments.train.photo.labels import Labels
from experiments.train.photo.recipe import Recipe

BATCH = 32
SPREAD = 7.0  # standard deviations of a channel that 127 steps cover


def read(path: Path, side: int) -> np.ndarray:
    """The whole photograph, squashed to a square."""
    with Image.open(path) as image:
        whole = image.convert("RGB")
    if whole.size != (side, side):
        whole = whole.resize((side, side), Image.Resampling.BICUBIC)
    return np.asarray(whole)


def read_zoom(path: Path, side: int, recipe: Recipe) -> np.ndarray:
    """A window of the photograph, mirrored in half of the cases; the same at every call."""
    draw = random.Random(f"airvlm zoom {recipe.seed} {path.stem}")
    with Image.open(path) as image:
        whole = image.convert("RGB")
    scale, stretch = draw.uniform(*recipe.zoom), draw.uniform(0.9, 1.1)
    w, h = (min(1.0, scale * s) * n for s, n in zip((stretch, 1 / stretch), whole.size, strict=True))
    x, y = draw.uniform(0, whole.width - w), draw.uniform(0, whole.height - h)
    zoomed = whole.resize((side, side), Image.Resampling.BICUBIC, box=(x, y, x + w, y + h))
    return np.asarray(zoomed)[:, :: -1 if draw.random() < 0.5 else 1]


def read_stretched(path: Path, side: int, recipe: Recipe) -> np.ndarray:
    """The photograph in another shape and size, squashed again, as a user's is; the same at every call.

    Photographs that were squashed before they came here look sharper to the tower than those that it squashes itself.
    """
    draw = random.Random(f"airvlm stretched {recipe.seed} {path.stem}")
    with Image.open(path) as image:
        whole = image.convert("RGB")
    size = tuple(round(n * draw.uniform(1.2, 3.0)) for n in whole.size)
    filters = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS)
    stretched = whole.resize(size, draw.choice(filters))
    return np.asarray(stretched.resize((side, side), Image.Resampling.BICUBIC))


READERS: dict[str, Callable[[Path, int, Recipe], np.ndarray]] = {
    "whole": lambda path, side, recipe: read(path, side),
    "zoom": read_zoom,
    "stretched": read_stretched,
}


class _FromBytes(torch.nn.Module):
    def __init__(self, tower: EfficientNetLiteTower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, photos: torch.Tensor) -> torch.Tensor:
        return self.tower.stride16((photos.permute(0, 3, 1, 2).float() - 127.5) / 127.5)


def compiled(tower: EfficientNetLiteTower, side: int) -> Callable[[np.ndarray], np.ndarray]:
    """The lower part as a function of BATCH photographs (B, side, side, 3) of bytes."""
    lower = _FromBytes(tower).eval()
    try:
        import openvino
    except ImportError:
        fast = lower.to(memory_format=torch.channels_last)

        def slow(photos: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return fast(torch.from_numpy(photos)).numpy()

        return slow
    example = torch.zeros(BATCH, side, side, 3, dtype=torch.uint8)
    graph = openvino.convert_model(lower, example_input=example, input=[BATCH, side, side, 3])
    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "bf16"}
    run = openvino.Core().compile_model(graph, "CPU", threads)
    return lambda photos: run(photos)[0]


class Maps:
    """One view's stride-16 maps on disk: (photographs, channels, side/16, side/16) in 8 bits."""

    def __init__(self, folder: Path, view: str, photographs: int, channels: int, cells: int) -> None:
        self.path, self.state = folder / f"{view}.int8", folder / f"{view}.json"
        shape = (photographs, channels, cells, cells)
        fresh = not self.path.exists()
        self.bytes = np.memmap(self.path, np.int8, "w+" if fresh else "r+", shape=shape)
        scales = folder / "scales.npz"
        self.scales = dict(np.load(scales)) if scales.exists() else None
        self.folder = folder

    @property
    def done(self) -> int:
        return int(json.loads(self.state.read_text())["done"]) if self.state.exists() else 0

    def write(self, rows: list[int], values: np.ndarray) -> None:
        if self.scales is None:
            mean, spread = values.mean((0, 2, 3)), values.std((0, 2, 3))
            self.scales = {"mean": mean, "step": (SPREAD * spread / 127).astype(np.float32)}
            np.savez(self.folder / "scales.npz", **self.scales)
        mean, step = (self.scales[k][:, None, None] for k in ("mean", "step"))
        self.bytes[rows] = np.clip(np.rint((values - mean) / step), -127, 127)

    def read(self, rows: np.ndarray) -> torch.Tensor:
        assert self.scales is not None
        mean, step = (torch.from_numpy(self.scales[k])[:, None, None] for k in ("mean", "step"))
        return torch.from_numpy(self.bytes[rows]).float() * step + mean


def maps(recipe: Recipe, labels: Labels, folder: Path, view: str) -> Maps:
    folder.mkdir(parents=True, exist_ok=True)
    return Maps(folder, view, len(labels.stems), 112, recipe.image_side // 16)


def places(recipe: Recipe, labels: Labels, view: str, done: int) -> list[int]:
    """Where the photographs that a recipe uses stand in the table, from ``done`` on: held out ones, and its share."""
    low, high = labels.trained(recipe.share)
    if view == "zoom":
        return list(range(max(low, done), min(high, low + recipe.zoomed)))
    if view == "stretched":  # the last of its share
        return list(range(max(low, high - recipe.stretched, done), high))
    return [k for k in (*range(labels.splits["train"].start), *range(low, high)) if k >= done]


def extract(
    recipe: Recipe, tower: EfficientNetLiteTower, labels: Labels, photos: Path, folder: Path, view: str
) -> None:
    kept, side = maps(recipe, labels, folder, view), recipe.image_side
    own = places(recipe, labels, view, kept.done)
    if not own:
        return
    batches = [own[k : k + BATCH] for k in range(0, len(own), BATCH)]
    run = compiled(tower, side)
    began = time.time()
    with ThreadPoolExecutor(1) as pool:

        def load(batch: list[int]) -> np.ndarray:
            rows = [READERS[view](photos / f"{labels.stems[k]}.jpg", side, recipe) for k in batch]
            rows += [rows[-1]] * (BATCH - len(rows))
            return np.stack(rows)

        ahead = pool.submit(load, batches[0])
        for number, batch in enumerate(batches, 1):
            photographs = ahead.result()
            if number < len(batches):
                ahead = pool.submit(load, batches[number])
            kept.write(batch, run(photographs)[: len(batch)])
            if number % 50 == 0 or number == len(batches):
                kept.state.write_text(json.dumps({"done": batch[-1] + 1}))
                pace = number * BATCH / (time.time() - began)
                print(f"features {view} {number * BATCH}/{len(own)} {pace:.0f} a second", flush=True)
