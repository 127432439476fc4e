"""What each method of a leaderboard costs: timed after vanilla and the others in turn, every image new.

The times in a store cannot say it: there vanilla encodes an image and the methods after it find it encoded, and one run
also records what a bias would change.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm import tqdm

from airvlm.bench.methods import count_batches, measure_methods
from airvlm.evaluation.plan import TaskSpec
from airvlm.inputs.images import load_image
from airvlm.methods.base import Method
from airvlm.storage.atomic import write_atomically
from airvlm.vlm import VLM

__all__ = ["BATCH", "TOKENS", "Cost", "measure_costs"]

FILE = "costs.json"
BATCH, TOKENS, ROUNDS = 4, 16, 2


@dataclass(frozen=True)
class Cost:
    """A method's time over vanilla's, the median of all rounds."""

    prefill: float  # of one token, the image's encoding included
    answer: float  # of TOKENS tokens


def measure_costs(vlm: VLM, methods: Mapping[str, Method], specs: Sequence[TaskSpec], folder: Path) -> dict[str, Cost]:
    """The cost of each method by label; those that failed are left out. Written into the folder, and read from there.

    Of methods that were added later only these are timed, beside vanilla again.

    Processor time is counted where a processor computes, which others may use at the same time, else wall time.

    Args:
        vlm: the model.
        methods: by label, without vanilla.
        specs: the tasks; the first one's images are used, each with one pixel changed, so that none is in a cache.
        folder: the leaderboard's.
    """
    path = folder / FILE
    held = _read(path, vlm.fingerprint)
    missing = {label: method for label, method in methods.items() if label not in held}
    if missing:
        images = [item.image for item in specs[0].items]

        def new_image(number: int) -> Image.Image:
            image = load_image(images[number % len(images)]).convert("RGB")
            image.putpixel((0, 0), tuple(number.to_bytes(3)))
            return image

        every: dict[str, Method | None] = {"vanilla": None, **missing}
        clock = time.process_time if vlm.model.device.type == "cpu" else time.perf_counter
        with tqdm(total=count_batches(every, ROUNDS, [BATCH]), unit="batch", disable=None, desc="cost") as bar:

            def show(_: str) -> None:
                bar.update()

            found = measure_methods(
                vlm,
                every,
                new_image,
                batches=[BATCH],
                repeats=ROUNDS,
                tokens=TOKENS,
                clock=clock,
                progress=show,
            )
        rows = {cost.method: cost.to_json() for cost in found}
        held |= {
            label: None if rows[label]["problem"] else Cost(rows[label]["prefill"], rows[label]["total"])
            for label in missing
        }
        content = {"fingerprint": vlm.fingerprint, "batch": BATCH, "tokens": TOKENS, "rounds": ROUNDS}
        costs = {label: None if cost is None else asdict(cost) for label, cost in held.items()}
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({**content, "costs": costs}, indent=1) + "\n")
    return {label: cost for label in methods if (cost := held[label]) is not None}


def _read(path: Path, fingerprint: str) -> dict[str, Cost | None]:
    """What was measured of this model before."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if content["fingerprint"] != fingerprint:
            return {}
        return {label: None if cost is None else Cost(**cost) for label, cost in content["costs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
