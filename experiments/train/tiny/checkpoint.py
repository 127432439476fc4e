"""Checkpoints that survive being killed, and a log of the curves, one JSON line a point."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch import nn


def save(path: Path, module: nn.Module, optimiser: torch.optim.Optimizer, step: int) -> None:
    fresh = path.with_suffix(".new")
    torch.save({"module": module.state_dict(), "optimiser": optimiser.state_dict(), "step": step}, fresh)
    os.replace(fresh, path)


def load(path: Path, module: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Restores what was saved; returns the step to go on with, 0 for a new start."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    module.load_state_dict(state["module"])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["step"])


class Log:
    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **values: float | int | str) -> None:
        line = {k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()}
        with open(self.path, "a") as file:
            file.write(json.dumps({**line, "time": round(time.time())}) + "\n")
        print(" ".join(f"{k} {v}" for k, v in line.items()), flush=True)
