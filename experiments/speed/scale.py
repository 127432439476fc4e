"""What the leaderboard would take on models that need GPUs: arithmetic from measured ratios.

    python -m experiments.speed.scale docs/results/methods-cost.md
    python -m experiments.speed.scale bench.json  # of airvlm bench methods --model tiny --json

Prefill is bound by arithmetic, decode by reading the weights once per step for a whole batch. The ratios of every
method to vanilla, prefill and decode apart, are those of `airvlm bench methods` at the larger batch size. On the
embedded model hooks weigh more than on a large one, so that the hours are an upper estimate. Of methods whose prefill
only adds the encoding of crops it is the tower's arithmetic: the embedded model is nearly all tower.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

FLOPS, BANDWIDTH = 150e12, 1.5e12  # what an A100 of 80 GB reaches in bfloat16, in FLOP/s and bytes/s
BATCH = 32
VISUAL, TEXT = 576, 60  # prompt tokens of LLaVA-1.5
TOWER = 4.9e12 / 12  # FLOP of CLIP-L/336 for one crop (docs/results/speed.md)
CROPS = {"air": 12, "air-memory": 12, "crop-blend": 4, "mean-token(crop-blend)": 4, "other-image(crop-blend)": 4}
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


def estimate_prefill(method: str, measured: float, parameters: float) -> float:
    """A method's prefill as a ratio to vanilla's: of crops by the tower's arithmetic, of all else as measured."""
    if method not in CROPS:
        return measured
    return 1 + CROPS[method] * TOWER / (2 * parameters * (VISUAL + TEXT) + TOWER)


def read_ratios(path: Path) -> dict[str, tuple[float, float]]:
    """Method -> (prefill, decode), at the largest batch size that was measured; of the page or of the JSON."""
    if path.suffix == ".md":
        lines = [line.split("|") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
        cells = {row[1].strip(" `"): [cell.split("[")[0].strip() for cell in row[4:6]] for row in lines}
        return {name: (float(prefill), float(decode)) for name, (prefill, decode) in cells.items()}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    measured = [row for row in content["results"][0]["methods"] if row["problem"] is None]
    largest = max(row["batch"] for row in measured)
    return {row["method"]: (row["prefill"], row["decode"]) for row in measured if row["batch"] == largest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "bench", type=Path, help="docs/results/methods-cost.md, or what `airvlm bench methods --json` wrote"
    )
    ratios = read_ratios(parser.parse_args().bench)
    # benchmark -> method -> hours on each model
    hours = {
        benchmark: {
            method: [
                gpu_hours(p, gpus, items, tokens, estimate_prefill(method, prefill, p), decode)
                for p, gpus in MODELS.values()
            ]
            for method, (prefill, decode) in ratios.items()
        }
        for benchmark, (items, tokens) in BENCHMARKS.items()
    }
    totals = {method: [sum(own[method][i] for own in hours.values()) for i in range(len(MODELS))] for method in ratios}
    print(f"{len(ratios)} methods, vanilla included\n")
    print("| benchmark | items |" + "".join(f" {name}, vanilla | {name}, all |" for name in MODELS))
    print("|---|---:|" + "---:|" * (2 * len(MODELS)))
    for benchmark, own in {**hours, "all": totals}.items():
        cells = [
            f"{own['vanilla'][i]:.2f} | {sum(method[i] for method in own.values()):.1f}" for i in range(len(MODELS))
        ]
        items = BENCHMARKS[benchmark][0] if benchmark in BENCHMARKS else sum(i for i, _ in BENCHMARKS.values())
        print(f"| {benchmark} | {items} | " + " | ".join(cells) + " |")
    print("\n| to add one method | " + " | ".join(MODELS) + " |\n|---|" + "---:|" * len(MODELS))
    for method, total in sorted(totals.items(), key=lambda entry: entry[1][0]):
        print(f"| `{method}` | " + " | ".join(f"{hour:.1f}" for hour in total) + " |")


if __name__ == "__main__":
    main()
