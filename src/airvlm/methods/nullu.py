"""Nullu and CIPHER: projection onto the null space of directions that separate hallucinated from truthful states.

D_l (n, d) holds the differences of n pairs at layer l's output, and V (d, rank) its first right singular vectors.

* Nullu (CVPR 2025) removes them from feed-forward outputs, y - V V^T y, in the upper half of the decoder. That is
  W_down <- (I - V V^T) W_down, so `bake` writes it into the weights, and any engine runs it at no cost. Its pairs are a
  truthful and a hallucinated text for one image. States are averaged over the text; the published code averages over
  all positions, so that part of D is a direction of the text's length (`faithful=True`).
* CIPHER (CVPR 2026) removes them from layer outputs in decode steps, r - V V^T r. Its pairs are one caption read under
  the image and under edits of it.

`airvlm calibrate` makes the pairs without labels (docs/reference/methods/nullu.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from airvlm.methods.artifacts import ArtifactError, ArtifactMethod, Reads
from airvlm.methods.base import option
from airvlm.methods.templates.layers import layer_span
from airvlm.methods.templates.steering import Site, SteeringIntervention, SteeringMethod
from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import Context, ForwardPass, Intervention

__all__ = ["CIPHER", "Nullu"]

DOWN = ("down_proj", "w2", "c_proj", "dense_4h_to_h", "fc2", "linear_fc2")  # names of a feed-forward's last layer
LARGEST = 64  # directions that an artifact holds per layer


def project_out(y: Tensor, V: Tensor) -> Tensor:
    """y - V V^T y per token, in float32: y (..., d), V (d, rank) with orthonormal columns."""
    wide = y.float()
    return wide - (wide @ V) @ V.T


@dataclass(frozen=True)
class NullSpaceMethod(ArtifactMethod, SteeringMethod):
    """What Nullu and CIPHER share: bases per layer from an artifact, and the span of layers."""

    needs_images: ClassVar[bool] = False

    rank: int = option(4, "directions that are removed per layer; 0 is off", low=0, off=0, search=(1, 2, 4, 8, 16, 32))
    layers: tuple[int, int] | None = option(
        None, "decoder layers that are changed: the first and the one after the last; none is the upper half", span=True
    )

    @classmethod
    def fit(cls, differences: Mapping[int, Tensor]) -> dict[str, Tensor]:
        found = {}
        for layer, D in differences.items():  # (n, d)
            _, _, right = torch.linalg.svd(D.double(), full_matrices=False)  # (min(n, d), d), not centered
            found[f"layer.{layer}"] = right[:LARGEST].T.float().contiguous()
        return found

    @property
    def tensors(self) -> str:
        """Which bases of the artifact are used."""
        return "layer"

    def span(self, depth: int) -> Sequence[int]:
        return range(depth // 2, depth) if self.layers is None else layer_span(self.layers, depth)

    def bases(self, parts: ModelParts) -> dict[int, Tensor]:
        """V (d, rank) of each layer that is changed."""
        found = self.load_artifact(parts).layers(self.tensors)
        span = self.span(len(parts.layers))
        short = [layer for layer in span if layer not in found or found[layer].shape[1] < self.rank]
        if short:
            raise ArtifactError(
                f"{self.artifact} has fewer than {self.rank} directions ({self.tensors}) for layers {short}: make it "
                "of more pairs"
            )
        return {layer: found[layer][:, : self.rank].float() for layer in span}

    def start(self, context: Context) -> Intervention:
        return ProjectionIntervention(self, context)


@dataclass(frozen=True)
class Nullu(NullSpaceMethod):
    """Null-space projection of feed-forward outputs."""

    name: ClassVar[str] = "nullu"
    paper: ClassVar[str | None] = "Nullu: nullspace projection (CVPR 2025, arXiv 2412.13817)"
    summary: ClassVar[str] = "removes directions of hallucinated pairs from feed-forward outputs, or from weights"
    site: ClassVar[str] = "weights"
    cost: ClassVar[str] = "1 pass; nothing once it is baked into the weights"
    engines: ClassVar[tuple[str, ...]] = ("transformers", "any engine (baked)")
    published_reads: ClassVar[Reads | None] = "all"

    faithful: bool = option(False, "directions of the mean over all positions, image and prompt included, as published")

    @property
    def tensors(self) -> str:
        return "published" if self.faithful else "layer"

    def bake(self, model: nn.Module) -> None:
        parts = ModelParts.of(model)
        if self.disabled_reason is not None:
            return
        found = [(find_down_projection(parts.ffns[layer]), V) for layer, V in self.bases(parts).items()]
        with torch.no_grad():
            for down, V in found:
                V = V.to(down.weight.device)
                weight = down.weight.float()  # (d, inner)
                down.weight.copy_(weight - V @ (V.T @ weight))
                if getattr(down, "bias", None) is not None:
                    down.bias.copy_(project_out(down.bias, V))


@dataclass(frozen=True)
class CIPHER(NullSpaceMethod):
    """Null-space projection of layer outputs in decode steps."""

    name: ClassVar[str] = "cipher"
    paper: ClassVar[str | None] = "CIPHER: counterfactual image perturbations (CVPR 2026, arXiv 2603.10470)"
    summary: ClassVar[str] = "removes directions of edited images' pairs from layer outputs, in decode steps"
    site: ClassVar[str] = "hidden states"
    writes: ClassVar[Site] = "residual"
    phases: ClassVar[Literal["all", "decode"]] = "decode"

    rank: int = option(
        8, "directions that are removed per layer; 0 is off", low=0, off=0, search=(1, 2, 4, 8, 16, 32, 64)
    )


class ProjectionIntervention(SteeringIntervention):
    """One session of a NullSpaceMethod."""

    method: NullSpaceMethod

    def __init__(self, method: NullSpaceMethod, context: Context) -> None:
        super().__init__(method, context)
        self.bases = method.bases(context.parts)
        self.directions = {layer: V.T[:1] for layer, V in self.bases.items()}  # says which layers act

    def steer(self, y: Tensor, v: Tensor, layer: int, fp: ForwardPass) -> Tensor:
        V = self.bases[layer] = self.bases[layer].to(y.device)
        return project_out(y, V)

    def inactive_reason(self, row: int | None) -> str:
        return "it acts from the second generated token on, and there was none"


def find_down_projection(ffn: nn.Module) -> Any:
    """The last linear layer of a feed-forward, whose output is the residual stream's."""
    for name in DOWN:
        layer = getattr(ffn, name, None)
        if isinstance(layer, nn.Linear):
            return layer
    raise TypeError(
        f"{type(ffn).__name__} has no down projection that can be changed ({', '.join(DOWN)}): its weights are packed, "
        "or it is a mixture of experts. Use the method as a hook"
    )
