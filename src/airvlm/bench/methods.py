"""What every method costs in one run: prefill and decode apart, for one image and for a batch.

An answer of one token is the prefill (with image encoding, crops, probes and extra prefills); the rest of an answer of
N tokens are N - 1 decode steps. All methods take turns on new images, and ratios are to vanilla in the same round.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from airvlm.inputs.prompts import DESCRIBE
from airvlm.methods.base import Method
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.vlm import VLM

__all__ = ["MethodCost", "count_batches", "measure_methods"]

VANILLA = "vanilla"


@dataclass
class MethodCost:
    """What one method costs at one batch size, over all rounds."""

    method: str
    batch: int
    prefill: list[float] = field(default_factory=list)  # ratios to vanilla, one per round
    decode: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of a whole batch
    acted: int = 0  # batches in which the method changed something
    problem: str | None = None  # why it could not run

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"method": self.method, "batch": self.batch, "problem": self.problem}
        if self.problem is None:
            for name in ("prefill", "decode", "total", "seconds"):
                values = getattr(self, name)
                found[name] = statistics.median(values)
                found[f"{name}_range"] = [min(values), max(values)]
            found["acted"] = self.acted
        return found


def count_batches(methods: Mapping[str, Method | None], repeats: int, batches: Sequence[int]) -> int:
    """How many batches `measure_methods` answers at most."""
    return 2 * (repeats + 1) * len(methods) * len(batches)


def measure_methods(
    vlm: VLM,
    methods: Mapping[str, Method | None],
    image: Callable[[int], Image.Image],
    *,
    batches: Sequence[int] = (1, 16),
    repeats: int = 5,
    tokens: int = 32,
    clock: Callable[[], float] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[MethodCost]:
    """The cost of each method at each batch size.

    Args:
        vlm: the model.
        methods: by label; vanilla, None, must be among them.
        image: different images, by number.
        batches: batch sizes.
        repeats: rounds that are timed; one round before them is not.
        tokens: per answer, 2 or more.
        clock: `time.process_time` counts this process alone, for a CPU that others use too; by default wall time.
        progress: called before each batch with what it is.
    """
    if VANILLA not in methods or tokens < 2:
        raise ValueError("the methods need vanilla among them, and 2 tokens or more")
    found, number = list[MethodCost](), 0
    clock = clock or time.perf_counter
    for size in batches:
        costs = {label: MethodCost(label, size) for label in methods}
        for turn in range(repeats + 1):
            spent: dict[str, tuple[float, float]] = {}
            order = list(methods)
            order = order[turn % len(order) :] + order[: turn % len(order)]  # none always follows the same one
            for label in order:
                if costs[label].problem is not None:
                    continue
                times = []
                try:
                    for length in (1, tokens):
                        progress(f"batch of {size}, round {turn} of {repeats}, {label}")
                        images = [image(number + i) for i in range(size)]
                        number += size
                        started = clock()
                        acted = _answer(vlm, images, methods[label], length)
                        times.append(clock() - started)
                except Exception as error:  # a method that does not fit this model is a row that says so
                    costs[label].problem = f"{type(error).__name__}: {error}"
                    continue
                spent[label] = times[0], times[1]
                costs[label].acted += acted and turn > 0
            if turn == 0:
                continue
            first, whole = spent[VANILLA]
            for label, (one, all_) in spent.items():
                cost = costs[label]
                cost.prefill.append(one / first)
                cost.decode.append(max(0.0, all_ - one) / max(1e-9, whole - first))
                cost.total.append(all_ / whole)
                cost.seconds.append(all_)
        found += costs.values()
    return found


def _answer(vlm: VLM, images: Sequence[Image.Image], method: Method | None, tokens: int) -> bool:
    """Whether the method acted on any of these images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MethodInactiveWarning)  # counted, and shown in the table
        answers = vlm.batch(
            [(one, DESCRIBE) for one in images],
            method=method,
            batch_size=len(images),
            progress=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
        )
    return any(answer.report is not None and answer.report.fired for answer in answers)
