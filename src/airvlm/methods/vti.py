"""VTI: visual and textual intervention (ICLR 2025), its textual half: steering towards truthful captions.

d_l is the mean difference of layer l's state at the end of truthful and of hallucinated captions. Every state r of
every layer is turned towards it and keeps its length: unit(unit(r) + 0.1 strength unit(d_l)) |r|.

`faithful=True` computes what the published code does: it turns feed-forward outputs, and d_l is the mean plus the first
principal component of the differences of all layers together, a vector of length 1.

The visual half steers the vision tower at every patch position. The published script leaves it out by default, and so
do we: it needs a tower with a fixed number of patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from airvlm.methods.artifacts import ArtifactMethod, PairKind
from airvlm.methods.base import option
from airvlm.methods.templates.layers import layer_span
from airvlm.methods.templates.steering import Site, SteeringMethod, steer_keeping_norm
from airvlm.runtime.intervention import Context, ForwardPass

__all__ = ["VTI"]

SCALE = 0.1  # of the strength, fixed in the published code


@dataclass(frozen=True)
class VTI(ArtifactMethod, SteeringMethod):
    """Latent-space steering towards truthful captions."""

    name: ClassVar[str] = "vti"
    paper: ClassVar[str | None] = "Reducing hallucinations via latent space steering (ICLR 2025, arXiv 2410.15778)"
    summary: ClassVar[str] = "turns all states towards the mean difference of truthful and hallucinated captions"
    site: ClassVar[str] = "hidden states"
    needs_images: ClassVar[bool] = False
    pairs: ClassVar[PairKind] = "swapped"
    reads: ClassVar[Literal["caption", "last", "all"]] = "last"

    strength: float = option(0.9, "lambda; the states are turned by a tenth of it", low=0, off=0, search=(0.2, 3.0))
    layers: tuple[int, int] | None = option(
        None, "decoder layers that are changed: the first and the one after the last; none is all", span=True
    )
    faithful: bool = option(False, "compute what the published code does, flaws included")

    @classmethod
    def fit(cls, differences: Mapping[int, Tensor]) -> dict[str, Tensor]:
        layers = sorted(differences)
        all_layers = torch.stack([differences[layer] for layer in layers], 1).double()  # (n, layers, d)
        mean = all_layers.mean(0)  # (layers, d)
        _, _, right = torch.linalg.svd((all_layers - mean).flatten(1), full_matrices=False)
        component = right[0].view_as(mean)
        component = component * torch.sign((component * mean).sum())  # its sign is arbitrary
        found = {f"layer.{layer}": mean[i].float() for i, layer in enumerate(layers)}
        return found | {f"published.{layer}": (mean + component)[i].float() for i, layer in enumerate(layers)}

    @property
    def writes(self) -> Site:  # type: ignore[override]  # an option decides
        return "ffn" if self.faithful else "residual"

    def span(self, depth: int) -> Sequence[int]:
        return range(depth) if self.layers is None else layer_span(self.layers, depth)

    def artifact_directions(self, context: Context) -> Mapping[int, Tensor]:
        return self.load_artifact(context.parts).layers("published" if self.faithful else "layer")

    def steer(self, y: Tensor, v: Tensor, layer: int, fp: ForwardPass) -> Tensor:
        return steer_keeping_norm(y, v, SCALE * self.strength)
