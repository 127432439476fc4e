"""Every method with options that act on the small random models, and with what a user would have to give.

The small models have four layers, few tokens and confident logits, so that layers and thresholds are set for them. What
a user would give is made up: names, boxes, and artifacts of random directions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from airvlm import __version__
from airvlm.methods.artifacts import SAMPLE, Artifact, ArtifactInfo, ArtifactMethod, sample_weights
from airvlm.methods.base import Method
from airvlm.methods.controls import Wrapper
from airvlm.methods.names import METHODS
from airvlm.models.loading import fingerprint
from airvlm.models.parts import ModelParts

__all__ = ["build_method", "list_checked"]

# What a user would give
GIVEN: dict[str, dict[str, Any]] = {
    "marine": {"objects": ("dog and cat",)},
    "crg": {"boxes": ((0.0, 0.2, 0.5, 1.0),)},
    "project-away": {"objects": "dog/red car"},
    "ad-hh": {"heads": ((1, 0), (1, 2), (2, 1))},
    "var": {"dims": (3, 17)},
}
_CROPS = {"layers": (1, 4), "num_prototypes": 8, "keep": 2, "num_crops": 3, "strength": 0.5}
# beta = 0 in contrastive methods: a token at the edge of the cut would fall on either side by the order of summation
SMALL: dict[str, dict[str, Any]] = {
    "air": _CROPS,
    "air-memory": {**_CROPS, "threshold": 0.3},
    "crop-blend": {"num_crops": 3, "weight": 0.5},
    "memvr": {"alpha": 0.3, "threshold": 0.3, "layers": (1, 4)},
    "vaf": {"enhance": 0.8, "suppress": 0.4, "layers": (1, 4)},
    "vcd": {"alpha": 0.5, "beta": 0.0},
    "pai": {"alpha": 0.8, "gamma": 1.5, "beta": 0.0},
    "m3id": {"decay": 0.3},
    "sid": {"beta": 0.0},
    "icd": {"beta": 0.0},
    "avisc": {"beta": 0.0},
    "crops": {"decay": 0.3, "beta": 0.0, "gate": 1.0},
    "code": {"tokens": 3},
    "dola": {"beta": 0.0},
    "mlihe": {"alpha": 1.5},
    "spin": {"keep": 0.5},
    "ad-hh": {"tau": 0.1},
    "var": {"tau": 1.0, "min_image": 0.05, "keep": 0.0, "layers": (1, 4)},
    "ritual": {"alpha": 1.0, "beta": 0.0},
    "ed": {"beta": 0.0, "tau": 1.0},
    "rudder": {"strength": 0.5},
    "vista": {"strength": 0.3},
    "damo": {"tau": 0.9, "beta_2": 0.5},
    "vti": {"strength": 3.0},
    "nullu": {"rank": 8},
    "cipher": {"rank": 8},
    "vicrop": {"size": 16},
    "tta": {"views": 2},
    "cut-off": {"beta": 0.1},
    "near-tie": {"margin": 1.0, "mass": 0.0},
    "temperature": {"temperature": 0.5},
}


def list_checked() -> list[str]:
    """The names of all methods but the controls around another method."""
    return [name for name in METHODS if not issubclass(METHODS[name], Wrapper)]


def build_method(name: str, model: nn.Module, folder: Path, *, small: bool = True) -> Method:
    """A method that can run on a model.

    Args:
        name: as in the registry.
        model: what an artifact is written for.
        folder: where it is written.
        small: with options that act on the small models; otherwise the method's own defaults.
    """
    kind = METHODS[name]
    options = {**GIVEN.get(name, {}), **(SMALL.get(name, {}) if small else {})}
    if issubclass(kind, ArtifactMethod) and name not in GIVEN:
        options["artifact"] = str(_write_artifact(kind, model, folder))
    return kind(**options)


def _write_artifact(kind: type[ArtifactMethod], model: nn.Module, folder: Path, pairs: int = 16) -> Path:
    """An artifact of random directions for this model."""
    parts = ModelParts.of(model)
    draw = torch.Generator().manual_seed(0)
    shared = torch.randn(1, parts.hidden_size, generator=draw)
    spread = {i: shared + torch.randn(pairs, parts.hidden_size, generator=draw) for i in range(len(parts.layers))}
    own = fingerprint(model)
    path = folder / f"{kind.name}-{own}.safetensors"
    info = ArtifactInfo(kind.name, parts.family, own, pairs, kind.pairs or "none", "random", __version__)
    Artifact({**kind.fit(spread), SAMPLE: sample_weights(model)}, info).save(path)
    return path
