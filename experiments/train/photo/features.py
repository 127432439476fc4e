"""Cache what the vision tower computes: stride-16 maps of its lower part, and the visual tokens of the trained tower.

Maps are stored in 8 bits, one file per view. The first view is the whole photograph; the second is a zoom, the third
the photograph in another shape, both for training photographs only. OpenVINO is used where it is installed; it is three
to five times as fast as torch. An interrupted run is resumed.
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
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration

from airvlm.photo.tower import EfficientNetLiteTower
from experiments.train.photo.labels import Labels
from experiments.train.photo.recipe import Recipe

BATCH = 32
TOKENS_BATCH = 64
SPREAD = 7.0  # standard deviations of a channel that 127 quantization steps cover


def read_whole(path: Path, side: int) -> np.ndarray:
    """The whole photograph, resized to a square."""
    with Image.open(path) as image:
        whole = image.convert("RGB")
    if whole.size != (side, side):
        whole = whole.resize((side, side), Image.Resampling.BICUBIC)
    return np.asarray(whole)


def read_zoom(path: Path, side: int, recipe: Recipe) -> np.ndarray:
    """A window of the photograph, mirrored in half of the cases; every call gives the same."""
    draw = random.Random(f"airvlm zoom {recipe.seed} {path.stem}")
    with Image.open(path) as image:
        whole = image.convert("RGB")
    scale, stretch = draw.uniform(*recipe.zoom), draw.uniform(0.9, 1.1)
    w, h = (min(1.0, scale * s) * n for s, n in zip((stretch, 1 / stretch), whole.size, strict=True))
    x, y = draw.uniform(0, whole.width - w), draw.uniform(0, whole.height - h)
    zoomed = whole.resize((side, side), Image.Resampling.BICUBIC, box=(x, y, x + w, y + h))
    return np.asarray(zoomed)[:, :: -1 if draw.random() < 0.5 else 1]


def read_stretched(path: Path, side: int, recipe: Recipe) -> np.ndarray:
    """The photograph resized to another shape and then to the square, as a user's is; every call gives the same.

    Photographs that were resized to the square earlier look sharper to the tower than those that it resizes itself.
    """
    draw = random.Random(f"airvlm stretched {recipe.seed} {path.stem}")
    with Image.open(path) as image:
        whole = image.convert("RGB")
    size = tuple(round(n * draw.uniform(1.2, 3.0)) for n in whole.size)
    filters = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS)
    stretched = whole.resize(size, draw.choice(filters))
    return np.asarray(stretched.resize((side, side), Image.Resampling.BICUBIC))


READERS: dict[str, Callable[[Path, int, Recipe], np.ndarray]] = {
    "whole": lambda path, side, recipe: read_whole(path, side),
    "zoom": read_zoom,
    "stretched": read_stretched,
}


class _LowerPart(nn.Module):
    """Photographs (B, side, side, 3) of bytes -> stride-16 maps."""

    def __init__(self, tower: EfficientNetLiteTower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, photos: Tensor) -> Tensor:
        return self.tower.stride16((photos.permute(0, 3, 1, 2).float() - 127.5) / 127.5)


class _UpperPart(nn.Module):
    """Stride-16 maps -> visual tokens."""

    def __init__(self, tower: EfficientNetLiteTower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, kept: Tensor) -> Tensor:
        return self.tower.tokens(kept)


def compile_part(part: nn.Module, example: Tensor) -> Callable[[np.ndarray], np.ndarray]:
    """A part of the tower as a function of arrays of the example's shape; by OpenVINO where it is installed."""
    try:
        import openvino
    except ImportError:
        fast = part.eval().to(memory_format=torch.channels_last)

        def run_torch(values: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return fast(torch.from_numpy(values)).numpy()

        return run_torch
    graph = openvino.convert_model(part.eval(), example_input=example, input=list(example.shape))
    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "bf16"}
    run = openvino.Core().compile_model(graph, "CPU", threads)
    return lambda values: run(values)[0]


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

    def read(self, rows: np.ndarray) -> Tensor:
        assert self.scales is not None
        mean, step = (torch.from_numpy(self.scales[k])[:, None, None] for k in ("mean", "step"))
        return torch.from_numpy(self.bytes[rows]).float() * step + mean


def open_maps(recipe: Recipe, labels: Labels, folder: Path, view: str) -> Maps:
    folder.mkdir(parents=True, exist_ok=True)
    return Maps(folder, view, len(labels.stems), 112, recipe.image_side // 16)


def list_rows(recipe: Recipe, labels: Labels, view: str, done: int) -> list[int]:
    """Rows of the photographs that a recipe uses, from ``done`` on: the held-out ones, and its part of training."""
    low, high = labels.train_range(recipe.share)
    if view == "zoom":
        return list(range(max(low, done), min(high, low + recipe.zoomed)))
    # The last ones of its part
    if view == "stretched":
        return list(range(max(low, high - recipe.stretched, done), high))
    return [k for k in (*range(labels.splits["train"].start), *range(low, high)) if k >= done]


def extract(
    recipe: Recipe, tower: EfficientNetLiteTower, labels: Labels, photos: Path, folder: Path, view: str
) -> None:
    kept, side = open_maps(recipe, labels, folder, view), recipe.image_side
    own = list_rows(recipe, labels, view, kept.done)
    if not own:
        return
    batches = [own[k : k + BATCH] for k in range(0, len(own), BATCH)]
    run = compile_part(_LowerPart(tower), torch.zeros(BATCH, side, side, 3, dtype=torch.uint8))
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
                print(f"features {view} {number * BATCH}/{len(own)} {pace:.0f} per second", flush=True)


def cache_tokens(
    recipe: Recipe, model: LlavaForConditionalGeneration, labels: Labels, kept: Maps, folder: Path
) -> np.ndarray:
    """The trained tower's visual tokens of a view: (photographs, tokens, vision_width) in half precision.

    Rows that the view does not have stay zero. The decoder is trained on these tables alone.
    """
    view = kept.path.stem
    path, state = folder / f"{view}.tokens", folder / f"{view}.tokens.json"
    shape = (len(labels.stems), recipe.visual_tokens, recipe.vision_width)
    table = np.memmap(path, np.float16, "r+" if path.exists() else "w+", shape=shape)
    done = json.loads(state.read_text())["done"] if state.exists() else 0
    wanted = np.array([k for k in list_rows(recipe, labels, view, done) if k < kept.done])
    if not len(wanted):
        return table
    example = torch.zeros(TOKENS_BATCH, *kept.bytes.shape[1:])
    run, began = compile_part(_UpperPart(model.model.vision_tower), example), time.time()
    for at in range(0, len(wanted), TOKENS_BATCH):
        own = wanted[at : at + TOKENS_BATCH]
        padded = np.concatenate([own, np.repeat(own[-1:], TOKENS_BATCH - len(own))])
        table[own] = run(kept.read(padded).numpy())[: len(own)]
        if at // TOKENS_BATCH % 50 == 49 or at + TOKENS_BATCH >= len(wanted):
            state.write_text(json.dumps({"done": int(own[-1]) + 1}))
            pace = (at + len(own)) / (time.time() - began)
            print(f"tokens {view} {at + len(own)}/{len(wanted)} {pace:.0f} per second", flush=True)
    return table
