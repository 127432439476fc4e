"""Draws the curves of a training log."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw_curves(log: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    for axis, stage, columns in (
        (axes[0], "vision", ("loss",)),
        (axes[1], "joint", ("words", "yes_no_right")),
        (axes[2], "joint", ("pooled",)),
    ):
        rows = [row for row in log if row["stage"] == stage]
        for column in columns:
            axis.plot([r["step"] for r in rows], [r[column] for r in rows], label=column.replace("_", " "))
        axis.set(title=stage, xlabel="step", ylim=(0, None))
        axis.legend()
    figure.savefig(path, dpi=110)
