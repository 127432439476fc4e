"""Checkpoints that are replaced atomically, and a log of the curves with one JSON line per point."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch import nn


def save(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write module, optimizer and the number of finished steps."""
    fresh = path.with_suffix(".new")
    torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, fresh)
    os.replace(fresh, path)


def load(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restore what was saved; returns the step to continue with, 0 for a new start."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    module.load_state_dict(state["module"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


class Log:
    """Appends lines of values to a file, and prints them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **values: float | int | str) -> None:
        line = {k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()}
        with open(self.path, "a") as file:
            file.write(json.dumps({**line, "time": round(time.time())}) + "\n")
        print(" ".join(f"{k} {v}" for k, v in line.items()), flush=True)
