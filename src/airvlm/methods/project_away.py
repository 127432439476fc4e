"""ProjectAway (ICLR 2025): removes named objects from the visual tokens inside the decoder.

An object's vector o is the state of its last token in one layer when the bare word is read. In prefill, every visual
token r_k of another layer's output loses its share of each object: with p = (r_k . o) / (o . o), if p > 0,

    r_k <- r_k - alpha p o.

Which objects are removed is for the caller to say; the published demonstration takes them from the ground truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method, option
from airvlm.runtime.intervention import Context, ForwardPass, Intervention, norm_ratio
from airvlm.runtime.probe import run_probe

__all__ = ["ProjectAway"]

IMAGE_LAYER, TEXT_LAYER = 19 / 32, 21 / 32  # of LLaVA-1.5-7B


@dataclass(frozen=True)
class ProjectAway(Method):
    """Projects named objects out of the visual tokens."""

    name: ClassVar[str] = "project-away"
    paper: ClassVar[str | None] = (
        "Interpreting and editing vision-language representations (ICLR 2025, arXiv 2410.02762)"
    )
    summary: ClassVar[str] = "projects named objects out of the visual tokens in a middle layer"
    site: ClassVar[str] = "hidden states"
    cost: ClassVar[str] = "1 pass, and one short pass per object"
    data: ClassVar[str] = "names of the objects to remove"

    objects: str = option("", "objects that are removed, separated by /, as in dog/fire hydrant")
    alpha: float = option(
        3.5, "how much of an object is removed; 1 is its share; 0 is off", low=0, off=0, search=(0.5, 5.0)
    )
    image_layer: int | None = option(None, "decoder layer whose output is changed; none is 19 of 32, scaled", low=0)
    text_layer: int | None = option(None, "decoder layer that objects are read from; none is 21 of 32, scaled", low=0)

    def find_layer(self, chosen: int | None, published: float, depth: int) -> int:
        """A layer of a decoder of `depth` layers."""
        layer = min(depth - 1, round(published * depth)) if chosen is None else chosen
        if layer >= depth:
            raise ValueError(f"layer {layer}: the decoder has {depth} layers")
        return layer

    def start(self, context: Context) -> Intervention:
        return _Erase(self, context)


class _Erase(Intervention):
    method: ProjectAway

    def __init__(self, method: ProjectAway, context: Context) -> None:
        super().__init__(method, context)
        names = [name.strip() for name in method.objects.split("/") if name.strip()]
        if not names:
            raise ValueError("project-away needs objects to remove: project-away:objects=dog/cat")
        if context.processor is None:
            raise ValueError("project-away reads the objects' names: pass the model's processor")
        depth = len(context.parts.layers)
        self.residual_layers = [method.find_layer(method.image_layer, IMAGE_LAYER, depth)]
        self._names = names
        self._vectors: list[Tensor] | None = None  # (d,) each, read when they are first needed

    def read_objects(self) -> list[Tensor]:
        """The vector of each object."""
        parts = self.context.parts
        layer = self.method.find_layer(self.method.text_layer, TEXT_LAYER, len(parts.layers))
        model = next(parts.model.parameters())
        found = []
        for name in self._names:
            ids = torch.tensor([self.context.processor.tokenizer(name)["input_ids"]], device=model.device)
            states = run_probe(parts, {"input_ids": ids}, sites={"residual": [layer]}).states
            found.append(states["residual", layer][0].float())
        return found

    @torch.no_grad()
    def residual(self, fp: ForwardPass, layer: int, h: Tensor) -> Tensor | None:
        if fp.visual is None:
            return None
        if self._vectors is None:
            self._vectors = self.read_objects()
        new = h.float()
        for o in self._vectors:
            o = o.to(h.device)
            share = (new @ o) / (o @ o)  # (B, L)
            new = new - self.method.alpha * share.clamp_min(0).unsqueeze(-1) * o
        changed = torch.where(fp.visual.to(h.device).unsqueeze(-1), new.to(h.dtype), h)
        self.stats.add(layer, norm_ratio(changed, h), fp.batch_size)
        return changed

    def inactive_reason(self, row: int | None) -> str:
        return "no visual token points towards any of the objects"
