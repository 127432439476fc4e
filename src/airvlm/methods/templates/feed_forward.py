"""FeedForwardMethod: changes the feed-forward output of some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method
from airvlm.methods.templates.layers import layer_span
from airvlm.runtime.intervention import Context, ForwardPass, Intervention, norm_ratio

__all__ = ["FeedForwardMethod"]


@dataclass(frozen=True)
class FeedForwardMethod(Method):
    """Changes feed-forward outputs of some layers, in prefill and decode steps."""

    site: ClassVar[str] = "feed-forward"

    def span(self, depth: int) -> Sequence[int]:
        """The layers that are changed in a decoder of `depth` layers: those of an option `layers`, or all."""
        layers: tuple[int, int] | None = getattr(self, "layers", None)
        return range(depth) if layers is None else layer_span(layers, depth)

    def feed_forward(self, x: Tensor, y: Tensor, layer: int, context: Context) -> Tensor:
        """The new output (B, L, d).

        Args:
            x: the feed-forward's input (B, L, d).
            y: its output (B, L, d).
            layer: the layer's number.
            context: the model's parts, its processor and the images.
        """
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return _FeedForward(self, context)


class _FeedForward(Intervention):
    method: FeedForwardMethod
    acts_in_decode = True

    def __init__(self, method: FeedForwardMethod, context: Context) -> None:
        super().__init__(method, context)
        self.ffn_layers = method.span(len(context.parts.layers))

    def ffn(self, fp: ForwardPass, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        rows = self.active_rows(fp)
        if rows is None:
            return None
        changed = self.method.feed_forward(x, y, layer, self.context)
        new = torch.where(rows.to(y.device)[:, None, None], changed, y)
        self.stats.add(layer, fp.zero_padding(norm_ratio(new, y)), fp.batch_size)
        return new
