"""MemVR as its published code computes it, flaws included (`MemVR(faithful=True)`):

* |.| is one mean over the whole batch, so that batch rows and padding influence one another;
* one decision a pass from the batch's summed entropy, and without a cache one decision for all positions;
* every row is given the last image of the last row;
* Qwen and GLM read the lens without the final norm, use SiLU, and scale Z by mean |W_up| / mean |Z|;
* layers from 31 on keep a mixing ratio of 0, so that injection into the last layer does nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from airvlm.hooks.intervention import Context, Step
from airvlm.hooks.logit_lens import EntropyLens, Trigger
from airvlm.methods.air.reinforced import identity, literal_term
from airvlm.methods.memvr import MemVR, Retracing

__all__ = ["Published"]

DEAD_LAYERS = 31  # the published code sets its ratio in range(31)


class Published(Retracing):
    """One run of the published code."""

    def __init__(self, method: MemVR, context: Context) -> None:
        super().__init__(method, context)
        self.phi = silu if (method.phi or self.published.phi) == "silu" else identity
        trigger = Trigger(method.threshold, normed=self.published.normed, pooled=True)
        self.lens = EntropyLens(context.anatomy, trigger)

    def ffn(self, step: Step, layer: int, x: Tensor, y: Tensor) -> Tensor | None:
        if layer >= DEAD_LAYERS:
            self._fires = None
            return None
        return super().ffn(step, layer, x, y)

    def remembered(self, embeds: Tensor, visual: Tensor) -> tuple[Tensor, Tensor]:
        """The last run of visual tokens of the last row that has any, for all rows alike."""
        row = int(visual.any(-1).nonzero()[-1])
        positions = visual[row].nonzero().flatten()
        breaks = (positions.diff() != 1).nonzero().flatten()
        start = int(breaks[-1]) + 1 if len(breaks) else 0
        Z = embeds[row, positions[start:].to(embeds.device)]  # (S, d)
        B = embeds.shape[0]
        return Z.expand(B, -1, -1), torch.ones(B, len(Z), dtype=torch.bool, device=embeds.device)

    def parts(self, length: int) -> list[slice]:
        """All positions at once, in float32: the magnitudes are means over the whole batch."""
        return [slice(0, length)]

    def retraced(
        self, layer: int, x: Tensor, y: Tensor, Z: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """a (B, L, d) float32, and the mean magnitudes |ffn| and |a| of the whole batch."""
        a = literal_term(x, Z * self._scale(layer, Z, mask), self.phi, mask)
        return a, y.float().abs().mean(), a.abs().mean()

    def _scale(self, layer: int, Z: Tensor, mask: Tensor) -> Tensor:
        """mean |W_up| / mean |Z|. With phi = identity it cancels, and no weight is read."""
        if self.phi is identity:
            return Z.new_ones(())
        weight = _up_projection(self.context.anatomy.ffns[layer])
        real = mask.sum() * Z.shape[-1]
        return (weight.float().abs().mean() / (Z.float().abs().sum() / real)).to(Z)


def _up_projection(ffn: nn.Module) -> Tensor:
    """W_up of a feed-forward, which the published code reads to scale its memory."""
    for name in ("up_proj", "gate_up_proj", "dense_h_to_4h", "w1"):
        weight = getattr(getattr(ffn, name, None), "weight", None)
        if isinstance(weight, Tensor) and weight.is_floating_point() and not weight.is_meta:
            return weight.chunk(2)[1] if name == "gate_up_proj" else weight
    raise ValueError(
        f"{type(ffn).__name__} has no readable up projection, which faithful=True with phi='silu' scales by; "
        "use phi='identity', where the scale cancels, or faithful=False"
    )
