"""What methods cost: seconds per answer, tokens per second, peak memory, and the ratio to vanilla.

All methods take turns in one run, so that a slow moment of the machine affects them alike. Every answer is about a new
image and has the same number of tokens.
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
from airvlm.inputs.prompts import DESCRIBE
from airvlm.methods.base import Method
from airvlm.report import Report
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.vlm import VLM

__all__ = ["Cost", "Subject", "count_answers", "measure", "noise_image", "scene_image", "vlm_subject", "wide_subject"]


@dataclass(frozen=True)
class Subject:
    """A model to measure on."""

    name: str
    note: str  # what a reader must know of it
    ask: Callable[[Method | None, Image.Image, int], Report | None]  # one answer with this number of tokens
    image: Callable[[int], Image.Image]  # different images, by number
    device: torch.device


@dataclass
class Cost:
    """What one method costs, over all rounds."""

    method: str
    tokens: int  # per answer
    seconds: list[float] = field(default_factory=list)  # per answer, one per round
    ratios: list[float] = field(default_factory=list)  # to the first method in the same round
    memory: int | None = None  # peak bytes above what was held before the answer; None if the system does not tell
    acted: int = 0  # answers in which the method changed something

    def to_json(self) -> dict[str, Any]:
        median = statistics.median(self.seconds)
        return {
            "method": self.method,
            "seconds": median,
            "seconds_range": [min(self.seconds), max(self.seconds)],
            "tokens_per_second": self.tokens / median,
            "peak_memory_bytes": self.memory,
            "ratio": statistics.median(self.ratios),
            "ratio_range": [min(self.ratios), max(self.ratios)],
            "answers": len(self.seconds),
            "acted": self.acted,
        }


def count_answers(methods: Mapping[str, Method | None], repeats: int) -> int:
    """How many answers `measure` generates."""
    return 1 + (repeats + 1) * len(methods)


def measure(
    subject: Subject,
    methods: Mapping[str, Method | None],
    *,
    repeats: int = 5,
    tokens: int = 32,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Cost]:
    """The cost of each method.

    Args:
        subject: the model.
        methods: by label; ratios are to the first.
        repeats: rounds that are timed. One round before them measures memory.
        tokens: per answer.
        progress: called before each answer with what it is.
    """
    costs = [Cost(name, tokens) for name in methods]
    chosen = list(methods.values())
    # The first answer allocates what all later ones reuse: it is not measured.
    progress(f"{subject.name}: warm-up")
    _ask(subject, chosen[0], subject.image(0), tokens)
    number = 1
    for turn in range(repeats + 1):
        spent = [0.0] * len(costs)
        # Each round starts with another method, so that none always follows the same one.
        for place in range(len(costs)):
            i = (place + turn) % len(costs)
            progress(f"{subject.name}: round {turn} of {repeats}, {costs[i].method}")
            image = subject.image(number)
            number += 1
            if turn == 0:
                costs[i].memory = _measure_memory(subject, chosen[i], image, tokens)
                continue
            started = time.perf_counter()
            report = _ask(subject, chosen[i], image, tokens)
            spent[i] = time.perf_counter() - started
            costs[i].acted += report is not None and report.fired
        if turn:
            for cost, seconds in zip(costs, spent, strict=True):
                cost.seconds.append(seconds)
                cost.ratios.append(seconds / spent[0])
    return costs


def _ask(subject: Subject, method: Method | None, image: Image.Image, tokens: int) -> Report | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MethodInactiveWarning)  # counted, and shown in the table
        report = subject.ask(method, image, tokens)
    if subject.device.type == "cuda":
        torch.cuda.synchronize(subject.device)
    return report


def _measure_memory(subject: Subject, method: Method | None, image: Image.Image, tokens: int) -> int | None:
    """Peak memory of one answer above what was held before it."""
    if subject.device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats(subject.device)
        before = torch.cuda.memory_allocated(subject.device)
        _ask(subject, method, image, tokens)
        return int(torch.cuda.max_memory_allocated(subject.device) - before)
    held = begin_peak() if subject.device.type == "cpu" else None
    _ask(subject, method, image, tokens)
    return None if held is None else max(0, peak() - held)


def vlm_subject(vlm: VLM, note: str = "") -> Subject:
    """A loaded model: tiny sees emoji scenes, every other model noise images."""

    def ask(method: Method | None, image: Image.Image, tokens: int) -> Report | None:
        return vlm.ask(image, DESCRIBE, method=method, max_new_tokens=tokens, min_new_tokens=tokens).report

    return Subject(vlm.name, note, ask, scene_image if vlm.name == "tiny" else noise_image, vlm.model.device)


def wide_subject(wide: WideLlava, note: str) -> Subject:
    """LLaVA-7B's widths with random weights."""

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

    return Subject("llava-1.5-7b widths", note, ask, noise_image, wide.model.device)


def scene_image(number: int) -> Image.Image:
    """An emoji scene of the test split."""
    scenes = tiny.scenes("test")
    with Image.open(scenes[number % len(scenes)].path) as image:
        return image.convert("RGB")


def noise_image(number: int, size: tuple[int, int] = (640, 480)) -> Image.Image:
    """Smooth noise."""
    coarse = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
