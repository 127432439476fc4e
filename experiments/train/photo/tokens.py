"""The trained tower's tokens of every view, once: the decoder is trained on these alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlavaForConditionalGeneration

from airvlm.photo.tower import EfficientNetLiteTower
from experiments.train.photo.features import Maps, places
from experiments.train.photo.labels import Labels
from experiments.train.photo.recipe import Recipe

BATCH = 64


class _Upper(nn.Module):
    def __init__(self, tower: EfficientNetLiteTower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, kept: Tensor) -> Tensor:
        return self.tower.tokens(kept)


def compiled(tower: EfficientNetLiteTower, shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
    upper = _Upper(tower).eval()
    try:
        import openvino
    except ImportError:

        def slow(kept: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return upper(torch.from_numpy(kept)).numpy()

        return slow
    graph = openvino.convert_model(upper, example_input=torch.zeros(shape), input=list(shape))
    threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "bf16"}
    run = openvino.Core().compile_model(graph, "CPU", threads)
    return lambda kept: run(kept)[0]


def cache_tokens(
    recipe: Recipe, model: LlavaForConditionalGeneration, labels: Labels, kept: Maps, folder: Path
) -> np.ndarray:
    """(photographs, tokens, vision_width) in half precision; rows without the view stay zero."""
    view = kept.path.stem
    path, state = folder / f"{view}.tokens", folder / f"{view}.tokens.json"
    shape = (len(labels.stems), recipe.visual_tokens, recipe.vision_width)
    table = np.memmap(path, np.float16, "r+" if path.exists() else "w+", shape=shape)
    done = json.loads(state.read_text())["done"] if state.exists() else 0
    wanted = np.array([k for k in places(recipe, labels, view, done) if k < kept.done])
    if not len(wanted):
        return table
    run, began = compiled(model.model.vision_tower, (BATCH, *kept.bytes.shape[1:])), time.time()
    for at in range(0, len(wanted), BATCH):
        own = wanted[at : at + BATCH]
        padded = np.concatenate([own, np.repeat(own[-1:], BATCH - len(own))])
        table[own] = run(kept.read(padded).numpy())[: len(own)]
        if at // BATCH % 50 == 49 or at + BATCH >= len(wanted):
            state.write_text(json.dumps({"done": int(own[-1]) + 1}))
            pace = (at + len(own)) / (time.time() - began)
            print(f"tokens {view} {at + len(own)}/{len(wanted)} {pace:.0f} a second", flush=True)
    return table
