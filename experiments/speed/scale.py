"""What the leaderboard would take on models that need GPUs: arithmetic from measured ratios.

    airvlm bench methods --model tiny --json > bench.json
    python -m experiments.speed.scale bench.json

Prefill is bound by arithmetic, decode by reading the weights once per step for a whole batch. The ratios of every
method to vanilla, prefill and decode apart, are those of `airvlm bench methods` at the larger batch size. On the
embedded model hooks weigh more than on a large one, so that the hours are an upper estimate.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

FLOPS, BANDWIDTH = 150e12, 1.5e12  # what an A100 of 80 GB reaches in bfloat16, in FLOP/s and bytes/s
BATCH = 32
VISUAL, TEXT = 576, 60  # prompt tokens of LLaVA-1.5
# parameters, and GPUs of 80 GB that hold them in bfloat16 with room for caches
MODELS = {"7B": (7e9, 1), "34B": (34e9, 2), "72B": (72e9, 3)}
# items, and tokens of an answer
BENCHMARKS = {
    "CHAIR": (5000, 64),
    "POPE (three samplings)": (9000, 2),
    "AMBER": (15220, 10),
    "MME": (2374, 2),
    "MMBench dev": (4329, 2),
    "HallusionBench": (1129, 2),
    "MM-Vet, LLaVA-Bench, MMHal": (374, 128),
    "V*, HR-Bench": (991, 4),
}


def gpu_hours(parameters: float, gpus: int, items: int, tokens: int, prefill: float, decode: float) -> float:
    """GPU hours of one method on one benchmark.

    Args:
        parameters: of the model.
        gpus: that hold it; they work on one batch together.
        items: of the benchmark.
        tokens: of an answer.
        prefill: ratio to vanilla.
        decode: ratio to vanilla.
    """
    first = 2 * parameters * (VISUAL + TEXT) / (FLOPS * gpus)  # seconds per item
    step = 2 * parameters / (BANDWIDTH * gpus) / BATCH  # seconds per token of one item
    return gpus * items * (prefill * first + decode * (tokens - 1) * step) / 3600


def read_ratios(path: Path) -> dict[str, tuple[float, float]]:
    """Method -> (prefill, decode), at the largest batch size that was measured."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    measured = [row for row in content["results"][0]["methods"] if row["problem"] is None]
    largest = max(row["batch"] for row in measured)
    return {row["method"]: (row["prefill"], row["decode"]) for row in measured if row["batch"] == largest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="what `airvlm bench methods --json` printed")
    ratios = read_ratios(parser.parse_args().bench)
    print(f"{len(ratios)} methods, vanilla included\n")
    print("| benchmark | items |" + "".join(f" {name}, vanilla | {name}, all |" for name in MODELS))
    print("|---|---:|" + "---:|" * (2 * len(MODELS)))
    total = {name: [0.0, 0.0] for name in MODELS}
    for benchmark, (items, tokens) in BENCHMARKS.items():
        cells = []
        for name, (parameters, gpus) in MODELS.items():
            hours = [gpu_hours(parameters, gpus, items, tokens, *ratio) for ratio in ratios.values()]
            vanilla = gpu_hours(parameters, gpus, items, tokens, 1.0, 1.0)
            total[name][0] += vanilla
            total[name][1] += sum(hours)
            cells += [f"{vanilla:.2f}", f"{sum(hours):.1f}"]
        print(f"| {benchmark} | {items} | " + " | ".join(cells) + " |")
    print("| all | | " + " | ".join(f"{value:.1f}" for pair in total.values() for value in pair) + " |")
    print("\nGPU hours to add one method, by its ratios:\n")
    for method, (prefill, decode) in ratios.items():
        hours = [
            sum(gpu_hours(p, g, items, tokens, prefill, decode) for items, tokens in BENCHMARKS.values())
            for p, g in MODELS.values()
        ]
        print(f"* {method} ({prefill:.2f}, {decode:.2f}): " + ", ".join(f"{hour:.1f}" for hour in hours))


if __name__ == "__main__":
    main()
