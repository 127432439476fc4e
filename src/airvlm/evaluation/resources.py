"""How many workers, threads and rows at once: what suits a model and the machine, where nobody says.

A model of a few hundred megabytes gains nothing from a second thread, and loses much where another program keeps a core
busy, since its threads wait for one another in every layer. So small models get a thread a worker and a worker a core.
Large ones stay in one process. Rows at once are bounded by memory, and so is what is kept of images. Knows sizes;
nothing about what is evaluated.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Resources", "chosen", "cores", "free_memory", "keeping_images", "rows_at_once"]

SMALL = 400 * 2**20  # bytes of weights up to which a model is small
WORTH = 250  # answers for each further process, so that its start, some ten seconds, pays
MOST_ROWS = 64  # beyond this a batch gains little, and its longest answer keeps all the others waiting
SHARE = 0.25  # of the free memory that a batch may take
KEPT = 0.2  # of the free memory that all workers may fill with what they computed of images
PROMPT = 256  # token positions of a row besides the visual tokens


@dataclass(frozen=True)
class Resources:
    """What an evaluation takes of a machine."""

    workers: int
    threads: int | None  # of each worker; None: as torch has it
    batch_size: int


def chosen(
    vlm: Any,
    answers: int,  # that are still to be given
    *,
    workers: int | None = None,  # as asked for; None: choose
    batch_size: int | None = None,
) -> Resources:
    """What suits the model, except where it was asked for otherwise."""
    weights = _bytes(getattr(vlm, "model", None))
    small = 0 < weights <= SMALL and _device(vlm) == "cpu"
    if workers is None:
        room = int(free_memory("cpu") * 0.5 // max(4 * weights, 1)) if small else 1
        workers = max(1, min(cores(), room, 1 + answers // WORTH)) if small else 1
    threads = 1 if small else None
    return Resources(workers, threads, batch_size or rows_at_once(vlm, workers))


def rows_at_once(vlm: Any, workers: int = 1) -> int:
    """Rows of a batch: as many as a share of the free memory holds, the keys and values of all layers above all."""
    model = getattr(vlm, "model", None)
    if model is None:
        return MOST_ROWS
    config = getattr(model.config, "text_config", None) or model.config
    d = int(getattr(config, "hidden_size", 4096))
    layers = int(getattr(config, "num_hidden_layers", 32))
    heads = int(getattr(config, "num_attention_heads", 32))
    groups = int(getattr(config, "num_key_value_heads", None) or heads)
    visual = int(getattr(model.config, "image_seq_length", None) or 1024)
    size = next(model.parameters()).element_size()
    positions = visual + PROMPT
    keys_and_values = 2 * layers * positions * (d * groups // heads) * size
    activations = 16 * positions * d * max(size, 4)  # of the widest layer: feed-forward, scores, residuals
    room = SHARE * free_memory(_device(vlm)) / max(workers, 1)
    fit = int(room // (keys_and_values + activations))
    return max(1, min(MOST_ROWS, 1 << max(0, fit.bit_length() - 1)))  # a power of two


def keeping_images(vlm: Any, workers: int = 1) -> AbstractContextManager[None]:
    """Let a model on the CPU keep more of its images while an evaluation asks about them under method after method.

    Matched controls come back to the whole calibration split for every strength that they try: crops that were dropped
    by then would be encoded anew each time.
    """
    cache = getattr(getattr(vlm, "encoder", None), "cache", None)
    if cache is None or _device(vlm) != "cpu":
        return nullcontext()
    roomier: AbstractContextManager[None] = cache.roomier(int(KEPT * free_memory("cpu") / max(workers, 1)))
    return roomier


def cores() -> int:
    """Processors that we may use: of the machine, of this process, of its control group."""
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
    """Bytes that are free; a cautious guess where the system does not say."""
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
        pass  # "max": no limit
    return max(free, 0.0)


def _device(vlm: Any) -> str:
    device = getattr(getattr(vlm, "model", None), "device", "cpu")
    return str(device)


def _bytes(model: Any) -> int:
    if model is None or not hasattr(model, "parameters"):
        return 0
    return sum(p.numel() * p.element_size() for p in model.parameters())
