"""What a method costs in a decode step, at LLaVA-1.5-7B's widths and all of its 32 layers (weights shared by layers).

One step reads every weight once. The paper's and the transported reading act in prefill only; the lineage reading
looks through the head (0.65 of a layer's weights) after each watched layer until it fires, so its cost depends on
where that is: at the first look, or never.

    python -m experiments.speed.decode [--layers 32] [--repeats 5] [--steps 2]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from airvlm import AIR
from airvlm.methods.base import Method
from experiments.speed import llava_widths as llava

TARGETS = {"air-paper": 1.01, "air-transported": 1.01, "air-lineage, fires at once": 1.05}


def methods(layers: int) -> dict[str, Method | None]:
    span = (layers - 6, layers)  # the last six, as 26 to 32 is of 32
    lineage = {"layers": span, "keep": 3}
    return {
        "vanilla": None,
        "air-paper": AIR.paper(layers=span, keep=3),
        "air-transported": AIR.transported(),
        "air-lineage, fires at once": AIR.lineage(**lineage, threshold=0.0),
        "air-lineage, never fires": AIR.lineage(**lineage, threshold=1.0),
    }


def step(model: Any, method: Method | None, image: Any, features: dict[str, Any], steps: int) -> Callable[[], float]:
    """Seconds of a decode step, one of several, after a prefill whose layers computed nothing."""
    prompt = llava.prompt()
    length = prompt["input_ids"].shape[1]

    def decode(cache: Any) -> None:
        seen = torch.ones(1, cache.get_seq_length() + 1, dtype=torch.long)
        model(torch.tensor([[7]]), attention_mask=seen, past_key_values=cache, use_cache=True)

    def several(cache: Any) -> float:
        decode(cache)  # the first is a warm-up
        return llava.seconds(lambda: [decode(cache) for _ in range(steps)]) / steps

    def job() -> float:
        cache = llava.filled_cache(model, length)
        if method is None:
            return several(cache)
        with method(model, llava.processor(), images=[[image]], check_images=False):
            with llava.without_arithmetic(model):
                model(**prompt, **features, logits_to_keep=1)
            return several(cache)

    return job


@torch.no_grad()
def main() -> None:
    given = llava.arguments(__doc__ or "", layers=llava.LAYERS, repeats=5, steps=2)
    model, image = llava.build(given.layers), llava.sample_image()
    features = llava.encoded(model, image)
    jobs = {name: step(model, method, image, features, given.steps) for name, method in methods(given.layers).items()}
    taken = llava.interleaved(jobs, given.repeats)
    over = llava.ratios(taken, "vanilla")
    rows = [
        [
            name,
            f"{llava.median(taken[name]):.3f}",
            f"{llava.median(over[name]):.4f}",
            llava.spread(over[name]),
            str(TARGETS.get(name, "")),
        ]
        for name in jobs
    ]
    head = ["method", "seconds", "over vanilla", "spread", "at most"]
    llava.table(
        f"Decode step, {given.layers} layers, {given.repeats} interleaved turns of {given.steps} steps",
        head,
        rows,
    )
    look = llava.HEAD_WEIGHTS / (llava.LAYER_WEIGHTS * given.layers + llava.HEAD_WEIGHTS)
    print(f"by weights read, one look through the head is {look:.3f} of a step; six looks {6 * look:.3f}")
    llava.write(
        "decode",
        {
            "layers": given.layers,
            "seconds": {name: llava.median(own) for name, own in taken.items()},
            "over_vanilla": {name: llava.median(own) for name, own in over.items()},
            "turns": over,
            "targets": TARGETS,
            "one_look_by_weights": look,
        },
    )


if __name__ == "__main__":
    main()
