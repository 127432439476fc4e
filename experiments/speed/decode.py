"""Cost of a method in a decode step, at the widths of LLaVA-1.5-7B with all of its 32 layers (which share weights).

A step reads every weight once. crop-blend and air act in prefill only. air-memory applies the head (0.65 of the weights
of a layer) after each layer of its range until it acts, so that its cost depends on where that is: at once, or never.

    python -m experiments.speed.decode [--layers 32] [--rounds 5] [--steps 2]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from airvlm import AIR, AIRMemory, CropBlend, Method, MethodInactiveWarning
from airvlm.bench.wide import wide_processor, wide_prompt
from experiments.speed import llava_widths as llava
from experiments.speed import timing


def list_methods(layers: int) -> dict[str, Method | None]:
    """The methods that are measured; the range is the last six layers, as 26 to 32 is of 32."""
    span = (layers - 6, layers)
    return {
        "vanilla": None,
        "crop-blend": CropBlend(),
        "air, 3 kept": AIR(layers=span, keep=3),
        "air-memory, acts at once": AIRMemory(layers=span, keep=3, threshold=0.0),
        "air-memory, never acts": AIRMemory(layers=span, keep=3, threshold=1.0),
    }


def step_job(
    model: Any, method: Method | None, image: Any, features: dict[str, Any], steps: int
) -> Callable[[], float]:
    """Seconds per decode step, after a prefill whose layers computed nothing."""
    prompt = wide_prompt()
    length = prompt["input_ids"].shape[1]

    def decode(cache: Any) -> None:
        seen = torch.ones(1, cache.get_seq_length() + 1, dtype=torch.long)
        model(torch.tensor([[7]]), attention_mask=seen, past_key_values=cache, use_cache=True)

    def time_steps(cache: Any) -> float:
        decode(cache)  # warm-up
        return timing.time_job(lambda: [decode(cache) for _ in range(steps)]) / steps

    def job() -> float:
        cache = llava.fill_cache(model, length)
        if method is None:
            return time_steps(cache)
        with method(model, wide_processor(), images=[[image]], check_images=False):
            with llava.without_arithmetic(model):
                model(**prompt, **features, logits_to_keep=1)
            return time_steps(cache)

    return job


@torch.no_grad()
def main() -> None:
    given = timing.parse_arguments(__doc__ or "", layers=llava.LAYERS, rounds=5, steps=2)
    warnings.simplefilter("ignore", MethodInactiveWarning)  # one case never acts
    model, image = llava.build(given.layers), llava.sample_image()
    features = llava.encode_image(model, image)
    methods = list_methods(given.layers)
    jobs = {name: step_job(model, method, image, features, given.steps) for name, method in methods.items()}
    taken = timing.interleave(jobs, given.rounds)
    over = timing.ratios(taken, "vanilla")
    rows = [[name, f"{timing.median(taken[name]):.3f}", timing.show(over[name], 4)] for name in jobs]
    title = f"Decode step, {given.layers} layers, {given.rounds} rounds of {given.steps} steps"
    timing.print_table(title, ["method", "seconds", "ratio to vanilla: median [range]"], rows)
    head = llava.HEAD_WEIGHTS / (llava.LAYER_WEIGHTS * given.layers + llava.HEAD_WEIGHTS)
    print(f"by weights read, one application of the head is {head:.3f} of a step, six are {6 * head:.3f}")
    timing.write_result("decode", {"layers": given.layers, "seconds": taken, "ratios": over, "head_by_weights": head})


if __name__ == "__main__":
    main()
