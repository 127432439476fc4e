"""Nullu: projection onto the null space of hallucination (CVPR 2025), and CIPHER's way of making the pairs.

Directions that separate truthful from hallucinated pairs are removed from feed-forward outputs: y - V V^T y in the
upper half of the decoder, where V (d, rank) are the first right singular vectors of the pairs' differences. That is
the same as W_down <- (I - V V^T) W_down, so `bake` writes it into the weights and any engine runs it for nothing.

V comes from an artifact of `airvlm calibrate`. Nullu's pairs are a truthful and a hallucinated text for one image;
CIPHER's (CVPR 2026) are one caption read under the image and under degraded ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from airvlm.methods.artifacts import Artifact
from airvlm.methods.base import option
from airvlm.methods.templates.feed_forward import FeedForwardMethod
from airvlm.methods.templates.layers import layer_span
from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import Context, Intervention

__all__ = ["Nullu"]

DOWN = ("down_proj", "w2", "c_proj", "dense_4h_to_h", "fc2", "linear_fc2")  # names of a feed-forward's last layer


@dataclass(frozen=True)
class Nullu(FeedForwardMethod):
    """Null-space projection of feed-forward outputs."""

    name: ClassVar[str] = "nullu"
    paper: ClassVar[str | None] = "Nullu: nullspace projection (CVPR 2025, arXiv 2412.13817)"
    summary: ClassVar[str] = "removes directions that separate hallucinated from truthful states"
    site: ClassVar[str] = "weights"
    cost: ClassVar[str] = "1 pass; nothing once it is baked into the weights"
    data: ClassVar[str] = "an artifact of airvlm calibrate (200 unlabeled images)"
    engines: ClassVar[tuple[str, ...]] = ("transformers", "vllm (baked)", "any engine (baked)")
    needs_images: ClassVar[bool] = False

    artifact: str = option("", "file made by airvlm calibrate", file=True)
    rank: int = option(4, "directions that are removed per layer; 0 is off", low=0, off=0, search=(1, 32))
    layers: tuple[int, int] | None = option(
        None, "decoder layers that are changed: the first and the one after the last; none is the upper half", span=True
    )

    def span(self, depth: int) -> Sequence[int]:
        return range(depth // 2, depth) if self.layers is None else layer_span(self.layers, depth)

    def bases(self, parts: ModelParts) -> dict[int, Tensor]:
        """V (d, rank) of each layer that is changed."""
        if not self.artifact:
            raise ValueError("nullu needs an artifact: airvlm calibrate --method nullu, then nullu:artifact=FILE")
        artifact = Artifact.load(self.artifact)
        artifact.check(parts.model, self.name)
        found = artifact.layers()
        span = self.span(len(parts.layers))
        short = [layer for layer in span if layer not in found or found[layer].shape[1] < self.rank]
        if short:
            raise ValueError(f"{self.artifact} has fewer than {self.rank} directions for layers {short}")
        return {layer: found[layer][:, : self.rank].float() for layer in span}

    def start(self, context: Context) -> Intervention:
        _bases(self, context.parts)  # what is missing is said before anything runs
        return super().start(context)

    def feed_forward(self, x: Tensor, y: Tensor, layer: int, context: Context) -> Tensor:
        V = _bases(self, context.parts)[layer].to(y.device)
        return (y.float() - (y.float() @ V) @ V.T).to(y.dtype)

    def bake(self, model: nn.Module) -> None:
        parts = ModelParts.of(model)
        for layer, V in self.bases(parts).items():
            down = find_down_projection(parts.ffns[layer])
            V = V.to(down.weight.device)
            with torch.no_grad():
                weight = down.weight.float()  # (d, inner)
                down.weight.copy_(weight - V @ (V.T @ weight))
                if getattr(down, "bias", None) is not None:
                    down.bias.copy_(down.bias.float() - V @ (V.T @ down.bias.float()))


@lru_cache(maxsize=4)
def _bases(method: Nullu, parts: ModelParts) -> dict[int, Tensor]:
    return method.bases(parts)


def find_down_projection(ffn: nn.Module) -> Any:
    """The last linear layer of a feed-forward, whose output is the residual stream's."""
    for name in DOWN:
        layer = getattr(ffn, name, None)
        if isinstance(layer, nn.Linear):
            return layer
    raise ValueError(f"{type(ffn).__name__} has no down projection that can be baked ({', '.join(DOWN)})")
