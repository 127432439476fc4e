"""How many workers, threads and rows per batch suit a model and the machine.

A model of a few hundred megabytes gains nothing from a second thread, and loses much where another program keeps a core
busy, since its threads wait for one another in every layer. So a small model gets one thread per worker and one worker
per core, and a large one stays in one process. Memory bounds the rows per batch and what is cached of images.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

__all__ = [
    "MAX_ROWS",
    "Resources",
    "choose_batch_size",
    "choose_resources",
    "count_cores",
    "free_memory",
    "keep_images",
]

SMALL = 400 * 2**20  # bytes of weights up to which a model is small
ANSWERS_PER_WORKER = 250  # that make up for starting a process, some ten seconds
MAX_ROWS = 64  # a larger batch gains little, and its longest answer keeps all the others waiting
BATCH_SHARE = 0.25  # of the free memory, for a batch
CACHE_SHARE = 0.2  # of the free memory, for what all workers cache of images
PROMPT = 256  # token positions of a row besides the visual tokens


@dataclass(frozen=True)
class Resources:
    """What an evaluation uses of a machine."""

    workers: int
    threads: int | None  # per worker; None is torch's default
    batch_size: int


def choose_resources(vlm: Any, answers: int, *, workers: int | None = None, batch_size: int | None = None) -> Resources:
    """What suits the model.

    Args:
        vlm: the model.
        answers: that are still to be generated.
        workers: as asked for; None to choose.
        batch_size: as asked for; None to choose.
    """
    weights = _count_bytes(getattr(vlm, "model", None))
    small = 0 < weights <= SMALL and _device(vlm) == "cpu"
    if workers is None:
        fit = int(free_memory("cpu") * 0.5 // max(4 * weights, 1)) if small else 1
        workers = max(1, min(count_cores(), fit, 1 + answers // ANSWERS_PER_WORKER)) if small else 1
    return Resources(workers, 1 if small else None, batch_size or choose_batch_size(vlm, workers))


def choose_batch_size(vlm: Any, workers: int = 1) -> int:
    """Rows that fit into a share of the free memory; most of it is for the keys and values of all layers."""
    model = getattr(vlm, "model", None)
    if model is None:
        return MAX_ROWS
    config = getattr(model.config, "text_config", None) or model.config
    d = int(getattr(config, "hidden_size", 4096))
    layers = int(getattr(config, "num_hidden_layers", 32))
    heads = int(getattr(config, "num_attention_heads", 32))
    groups = int(getattr(config, "num_key_value_heads", None) or heads)
    size = next(model.parameters()).element_size()
    positions = int(getattr(model.config, "image_seq_length", None) or 1024) + PROMPT
    keys_and_values = 2 * layers * positions * (d * groups // heads) * size
    activations = 16 * positions * d * max(size, 4)  # of the widest layer: feed-forward, scores, residuals
    fit = int(BATCH_SHARE * free_memory(_device(vlm)) / max(workers, 1) // (keys_and_values + activations))
    return max(1, min(MAX_ROWS, 1 << max(0, fit.bit_length() - 1)))  # a power of two


def keep_images(vlm: Any, workers: int = 1) -> AbstractContextManager[None]:
    """Let a model on the CPU cache more of its images inside the block.

    Method after method asks about the same images, and a matched control's search returns to all of them for every
    strength: what was dropped by then would be encoded again.
    """
    cache = getattr(getattr(vlm, "builder", None), "cache", None)
    if cache is None or _device(vlm) != "cpu":
        return nullcontext()
    larger: AbstractContextManager[None] = cache.larger_limit(int(CACHE_SHARE * free_memory("cpu") / max(workers, 1)))
    return larger


def count_cores() -> int:
    """Processors that this process may use, its control group's limit included."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            found = min(found, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # another system, or no limit
    return found


def free_memory(device: str) -> float:
    """Free bytes; a cautious guess if the system does not say."""
    import torch

    if device.startswith("cuda") and torch.cuda.is_available():
        return float(torch.cuda.mem_get_info(torch.device(device))[0])
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        free = 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return 4.0 * 2**30
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            free = min(free, float(limit.read()) - float(used.read()))
    except (OSError, ValueError):
        pass  # no limit
    return max(free, 0.0)


def _device(vlm: Any) -> str:
    return str(getattr(getattr(vlm, "model", None), "device", "cpu"))


def _count_bytes(model: Any) -> int:
    if model is None or not hasattr(model, "parameters"):
        return 0
    return sum(p.numel() * p.element_size() for p in model.parameters())
