"""VisualTokenMethod: changes the visual tokens where the decoder reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import Method
from airvlm.runtime.intervention import INPUT, Context, ForwardPass, Intervention, norm_ratio

__all__ = ["VisualTokenMethod"]


@dataclass(frozen=True)
class VisualTokenMethod(Method):
    """Changes visual tokens at the decoder's input, in prefill."""

    site: ClassVar[str] = "visual tokens"

    def visual_tokens(self, z: Tensor, context: Context) -> Tensor:
        """The new visual tokens (n, d).

        Args:
            z: the visual tokens (n, d) of a prefill, all images of the batch one after another.
            context: the model's parts, its processor and the images.
        """
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        return _VisualTokens(self, context)


class _VisualTokens(Intervention):
    method: VisualTokenMethod

    def embeds(self, fp: ForwardPass, inputs_embeds: Tensor) -> Tensor | None:
        if fp.visual is None:
            return None
        visual = fp.visual_on_cpu.nonzero(as_tuple=True)  # on the CPU: a mask on a device would have to be waited for
        z = inputs_embeds[visual]  # (n, d)
        new = self.method.visual_tokens(z, self.context).to(z)
        ratio = torch.zeros(fp.visual.shape, device=z.device)
        ratio[visual] = norm_ratio(new, z)
        self.stats.add(INPUT, ratio, fp.batch_size)
        out = inputs_embeds.clone()
        out[visual] = new
        return out
