"""What methods cost: seconds an answer, tokens a second, peak memory, ratio to the model as it is.

All methods answer in turns, in one run, so that a slow moment of the machine hits them alike; every answer is about a
image not seen before and has the same number of tokens. Knows nothing of how results are printed.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from airvlm import tiny
from airvlm.bench.resident import begin_peak, peak
from airvlm.bench.wide import WideLlava
from airvlm.methods.base import Method
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.inputs.prompts import DESCRIBE
from airvlm.report import Report
from airvlm.vlm import VLM

__all__ = ["Cost", "Subject", "answers", "measure", "vlm_subject", "wide_subject"]

Ask = Callable[[Method | None, Image.Image, int], Report | None]


@dataclass(frozen=True)
class Subject:
    """A model to measure on."""

    name: str
    note: str  # what a reader must know of it
    ask: Ask  # (method, image, tokens): one answer of exactly so many tokens
    image: Callable[[int], Image.Image]  # images that differ, by number
    device: torch.device


@dataclass
class Cost:
    """One method's, over all turns."""

    method: str
    tokens: int  # of every answer
    seconds: list[float] = field(default_factory=list)  # of an answer, one a turn
    ratios: list[float] = field(default_factory=list)  # to the first method in the same turn
    memory: int | None = None  # peak bytes above what was held before the answer; None where it cannot be seen
    acted: int = 0  # answers in which the method changed something

    def to_json(self) -> dict[str, Any]:
        median = statistics.median(self.seconds)
        return {
            "method": self.method,
            "seconds": median,
            "seconds_spread": [min(self.seconds), max(self.seconds)],
            "tokens_per_second": self.tokens / median,
            "peak_memory_bytes": self.memory,
            "ratio": statistics.median(self.ratios),
            "ratio_spread": [min(self.ratios), max(self.ratios)],
            "answers": len(self.seconds),
            "acted": self.acted,
        }


def answers(methods: Mapping[str, Method | None], repeats: int) -> int:
    """How many answers `measure` asks for, and `progress` is told of."""
    return 1 + (repeats + 1) * len(methods)


def measure(
    subject: Subject,
    methods: Mapping[str, Method | None],
    *,
    repeats: int = 5,
    tokens: int = 32,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Cost]:
    """The cost of each method; ratios are to the first. One warm-up turn is measured for memory instead of time."""
    costs = [Cost(name, tokens) for name in methods]
    chosen = list(methods.values())
    # The first answer allocates what all later ones use again: nobody's memory, so it is not measured.
    progress(f"{subject.name}: an answer that is not measured")
    _asked(subject, chosen[0], subject.image(0), tokens)
    number = 1
    for turn in range(repeats + 1):
        taken = [0.0] * len(costs)
        # Each turn begins with another method, so that none always follows the same one.
        for place in range(len(costs)):
            i = (place + turn) % len(costs)
            progress(f"{subject.name}: turn {turn} of {repeats}, {costs[i].method}")
            image = subject.image(number)
            number += 1
            if turn == 0:
                costs[i].memory = _peak(subject, chosen[i], image, tokens)
                continue
            started = time.perf_counter()
            report = _asked(subject, chosen[i], image, tokens)
            taken[i] = time.perf_counter() - started
            costs[i].acted += report is not None and report.fired
        if turn:
            for cost, spent in zip(costs, taken, strict=True):
                cost.seconds.append(spent)
                cost.ratios.append(spent / taken[0])
    return costs


def _asked(subject: Subject, method: Method | None, image: Image.Image, tokens: int) -> Report | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MethodInactiveWarning)  # counted, and shown in the table
        report = subject.ask(method, image, tokens)
    if subject.device.type == "cuda":
        torch.cuda.synchronize(subject.device)
    return report


def _peak(subject: Subject, method: Method | None, image: Image.Image, tokens: int) -> int | None:
    """Peak memory of one answer above what was held before it."""
    if subject.device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats(subject.device)
        before = torch.cuda.memory_allocated(subject.device)
        _asked(subject, method, image, tokens)
        return int(torch.cuda.max_memory_allocated(subject.device) - before)
    held = begin_peak() if subject.device.type == "cpu" else None
    _asked(subject, method, image, tokens)
    return None if held is None else max(0, peak() - held)


def vlm_subject(vlm: VLM, note: str = "") -> Subject:
    """A model that answers: the embedded one shows its own scenes, others noise images."""

    def ask(method: Method | None, image: Image.Image, tokens: int) -> Report | None:
        fixed = {"max_new_tokens": tokens, "min_new_tokens": tokens}
        return vlm.ask(image, DESCRIBE, method=method, **fixed).report

    return Subject(vlm.name, note, ask, _scene if vlm.name == "tiny" else _drawn, vlm.model.device)


def wide_subject(wide: WideLlava, note: str) -> Subject:
    """LLaVA's real widths, random weights."""

    def ask(method: Method | None, image: Image.Image, tokens: int) -> Report | None:
        fixed = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        inputs = wide.inputs(image)
        with torch.no_grad():
            if method is None:
                wide.model.generate(**inputs, **fixed)
                return None
            with method(wide.model, wide.processor, images=[[image]], check_images=False) as run:
                wide.model.generate(**inputs, **fixed)
        return run.report

    return Subject("llava-1.5-7b widths", note, ask, _drawn, torch.device("cpu"))


def _scene(number: int) -> Image.Image:
    scenes = tiny.scenes("test")
    with Image.open(scenes[number % len(scenes)].path) as image:
        return image.convert("RGB")


def _drawn(number: int, size: tuple[int, int] = (640, 480)) -> Image.Image:
    coarse = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
