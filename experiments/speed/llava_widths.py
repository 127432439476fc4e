"""A LLaVA of the 7B model's real widths with random weights, a prompt with one image, and fair timing.

Layers share one set of weights: a layer's 810 MB in fp32 do not fit any cache, so every layer still reads all of
its weights from memory and computes all of its products, and 32 layers need the memory of one. Knows nothing of
what is measured.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch import nn
from tqdm import tqdm
from transformers import DynamicCache

from airvlm.bench.wide import (
    FFN,
    HEADS,
    PATCH,
    TOWER_FFN,
    TOWER_WIDTH,
    VOCABULARY,
    WIDTH,
    WORDS,
    K,
    wide_llava,
    wide_processor,
    wide_prompt,
)

__all__ = [
    "PATCH",
    "TOWER_FFN",
    "TOWER_WIDTH",
    "K",
]  # what the benchmarks know from here, beside what follows

RESULTS = Path(__file__).parent / "results"
processor, prompt = wide_processor, wide_prompt
TOWER_LAYERS, LAYERS = 24, 32  # of the real model
WINDOW = (26, 32)  # the layers that AIR acts in
TEXT_TOKENS = WORDS
LAYER_WEIGHTS = 4 * WIDTH**2 + 3 * WIDTH * FFN
HEAD_WEIGHTS = WIDTH * VOCABULARY


def build(layers: int, tower_layers: int = 1) -> Any:
    """The model in fp32, with `layers` decoder layers and `tower_layers` in its vision tower, each of one's weights."""
    model = wide_llava(1, 1)
    repeat(model.get_decoder().layers, layers)
    for i, layer in enumerate(model.get_decoder().layers):
        layer.self_attn.layer_idx = i
    model.config.text_config.num_hidden_layers = layers
    repeat(model.get_encoder(modality="image").builder.layers, tower_layers)
    return model.requires_grad_(False)


def repeat(layers: nn.ModuleList, count: int) -> None:
    """Make `count` layers of the first, all with its very weights."""
    shared: dict[int, Any] = {id(p): p for p in layers[0].parameters()}
    layers.extend(copy.deepcopy(layers[0], dict(shared)) for _ in range(count - 1))


def sample_image(seed: int = 0, size: tuple[int, int] = (640, 480)) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def encoded(model: Any, image: Image.Image) -> dict[str, Any]:
    """The image's features, encoded beforehand, as forward takes them."""
    pixels = processor()([image], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        features = model.base_model.get_image_features(pixels, return_dict=True)
    return {"mm_encoder_outputs": {"image": features}}


def filled_cache(model: Any, length: int) -> DynamicCache:
    """A cache as a prefill of `length` tokens leaves it, without the prefill."""
    cache = DynamicCache(config=model.config.text_config)
    keys = torch.randn(1, HEADS, length, WIDTH // HEADS)
    for layer in range(model.config.text_config.num_hidden_layers):
        cache.update(keys.clone(), keys.clone(), layer)
    return cache


@contextmanager
def without_arithmetic(model: Any) -> Iterator[None]:
    """Layers that compute nothing: a prefill in which a method gathers its evidence, and its hooks run."""
    layers = model.get_decoder().layers
    for layer in layers:
        layer.self_attn.forward = lambda hidden_states, **_: (torch.zeros_like(hidden_states), None)
        layer.mlp.forward = lambda x: x
    try:
        yield
    finally:
        for layer in layers:
            del layer.self_attn.forward, layer.mlp.forward


def clock() -> float:
    """With one thread the processor's own clock is fair, and blind to other programs on the machine."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


@contextmanager
def one_clock() -> Iterator[None]:
    """Reports inside count their seconds by `clock` too; on the wall's they fit no ratio to what `clock` timed."""
    alone = torch.get_num_threads() == 1
    with mock.patch.object(time, "perf_counter", time.process_time if alone else time.perf_counter):
        yield


def seconds(job: Callable[[], Any]) -> float:
    started = clock()
    job()
    return clock() - started


def interleaved(jobs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds that each job reports, in turns, so that a slow moment of the machine hits all alike; one warm-up."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    with tqdm(total=(repeats + 1) * len(jobs), unit="job", leave=False, mininterval=1 if _seen() else 30) as bar:
        for turn in range(repeats + 1):
            for name, job in jobs.items():
                bar.set_postfix_str(f"turn {turn} of {repeats}, {name}", refresh=False)
                value = job()
                bar.update()
                if turn:
                    taken[name].append(value)
    return taken


def _seen() -> bool:
    """Whether somebody watches; a file of what was printed needs a line now and then only."""
    return sys.stderr.isatty()


def ratios(taken: Mapping[str, list[float]], base: str) -> dict[str, list[float]]:
    """Each turn's ratio to the base in the same turn."""
    return {name: [t / b for t, b in zip(own, taken[base], strict=True)] for name, own in taken.items()}


def median(values: list[float]) -> float:
    return statistics.median(values)


def spread(values: list[float]) -> str:
    return f"{min(values):.4f} to {max(values):.4f}"


def arguments(about: str, **defaults: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser.parse_args()


def write(name: str, result: Mapping[str, Any]) -> None:
    """Keep the numbers beside the code that made them."""
    RESULTS.mkdir(exist_ok=True)
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n")
    print(f"written to {path.relative_to(RESULTS.parent.parent)}")


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    print(f"\n{title}")
    for row in [head, ["-" * w for w in widths], *rows]:
        print("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
