"""PAI: pay attention to image (ECCV 2024). Raises attention to the image, and subtracts what the text alone says.

(a) s + alpha |s| on the image's keys, for the last query, in all layers but the first two.
(b) log p* = gamma log p - (gamma - 1) log p_u where log p >= max log p + log beta; p_u is the prompt without the image,
    in which (a) does not act.

`faithful=True` does not reorder the second stream with the beams, as the published code does not: its cache then mixes
hypotheses. Two of its defaults differ between README (gamma = 1.1, used here) and argument parser (2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from airvlm.methods.base import option
from airvlm.methods.composed import CombinedIntervention
from airvlm.methods.templates.attention import AttentionIntervention
from airvlm.methods.templates.contrastive import ContrastiveIntervention, ContrastiveMethod
from airvlm.methods.templates.layers import layer_span
from airvlm.runtime.attention import AttentionChange
from airvlm.runtime.intervention import Context, ForwardPass, Intervention
from airvlm.runtime.streams import Stream, remove_images

__all__ = ["PAI"]


@dataclass(frozen=True)
class PAI(ContrastiveMethod):
    """Pay attention to image."""

    name: ClassVar[str] = "pai"
    paper: ClassVar[str | None] = "Paying more attention to image (ECCV 2024, arXiv 2407.21771)"
    summary: ClassVar[str] = "raises attention to the image, and subtracts what the text alone makes likely"
    site: ClassVar[str] = "attention"
    cost: ClassVar[str] = "2 passes, the second without visual tokens; 1 with gamma = 1"

    alpha: float = option(
        0.2, "how much attention scores of the image's keys are raised", low=0, off=0, search=(0.1, 1.0)
    )
    gamma: float = option(1.1, "weight of the model against the text alone; 1 is off", low=1, off=1, search=(1.0, 2.0))
    beta: float = option(0.1, "tokens less likely than beta times the likeliest are never said", low=0, high=1)
    layers: tuple[int, int] | None = option(
        None, "decoder layers whose attention is raised; none is all from the third on", span=True
    )
    faithful: bool = option(False, "as the published code: the second stream does not follow the beams")

    def streams(self, context: Context) -> Sequence[Stream]:
        kind = _Unordered if self.faithful else Stream
        return [kind(self.name, context.parts, edit_ids=remove_images(context.parts, context.processor))]

    def weights(self, l: Tensor, others: Sequence[Tensor], fp: ForwardPass) -> Sequence[float]:
        return self.gamma, 1 - self.gamma

    def start(self, context: Context) -> Intervention:
        halves: list[Intervention] = [_Amplify(self, context)] if self.alpha else []
        if self.gamma > 1:
            halves.append(ContrastiveIntervention(self, context))
        return halves[0] if len(halves) == 1 else CombinedIntervention(self, context, halves)


class _Unordered(Stream):
    """A stream whose cache stays as it is when beams change places."""

    def _reorder(self, beam_idx: Tensor) -> None:
        pass


class _Amplify(AttentionIntervention):
    method: PAI

    def __init__(self, method: PAI, context: Context) -> None:
        super().__init__(method, context)
        depth = len(context.parts.layers)
        self.span = range(min(2, depth - 1), depth) if method.layers is None else layer_span(method.layers, depth)

    def on_pass(self, fp: ForwardPass) -> None:
        super().on_pass(fp)
        self.count_queries(fp)

    def attention_of(self, layer: int) -> AttentionChange | None:
        assert self.visual_keys is not None
        return self.change(weight=self.method.alpha * self.visual_keys.float(), mode="abs")
