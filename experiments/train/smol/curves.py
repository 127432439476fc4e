"""Draw the curves of a training log: python -m experiments.train.smol.curves LOG PICTURE"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

SMOOTHED = 20  # steps that a point of a step's own figures is the mean of


def smooth(values: Iterable[float]) -> list[float]:
    """The mean of each value and of those before it, as far as they go."""
    own = list(values)
    return [float(np.nanmean(own[max(0, k + 1 - SMOOTHED) : k + 1])) for k in range(len(own))]


def main() -> None:
    import matplotlib.pyplot as plt

    log: list[dict[str, Any]] = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]

    def rows(stage: str, column: str) -> list[dict[str, Any]]:
        return [row for row in log if row["stage"] == stage and column in row]

    figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    for stage in ("patch head", "soft words"):
        kept = rows(stage, "mAP")
        axes[0].plot([row["step"] for row in kept], [row["mAP"] for row in kept], label=stage)
    axes[0].set(title="objects read from patches", xlabel="step", ylabel="mAP, 1,000 validation photographs")
    for kind in ("oracle", "real"):
        kept = rows("photos", f"{kind} right")
        steps = [row["step"] for row in kept]
        axes[1].plot(steps, smooth(100 * row[f"{kind} right"] for row in kept), label=f"{kind} tokens")
    watched = rows("photos", "sighted")
    axes[1].plot(
        [row["step"] for row in watched],
        [100 * row["sighted"]["right"] for row in watched],
        "k.",
        label="validation, sighted",
    )
    axes[1].set(title="yes/no questions", xlabel="step of 12 sequences", ylabel="right answers, %")
    kept = [row for row in rows("photos", "text") if row["texts"]]
    axes[2].plot([row["step"] for row in kept], smooth(row["text"] for row in kept), label="all texts")
    axes[2].set(title="texts", xlabel="step of 12 sequences", ylabel="loss per token", ylim=(0, None))
    for axis in axes:
        axis.legend()
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
