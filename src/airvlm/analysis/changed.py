"""Where a method changed the image's tokens: a pass without it and a pass with it, token by token.

The norm of the difference over the norm of what was there, at the first place of the decoder where they differ: its
input, or the output of a layer. Works for every method, because it only reads what the decoder holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

    from airvlm.methods.base import Method
    from airvlm.vlm import VLM

__all__ = ["TokenChanges", "token_changes"]

INPUT = -1  # the decoder's input, where a layer would stand


@dataclass(frozen=True)
class TokenChanges:
    """The change of every visual token of one prompt."""

    layer: int | None  # the first layer whose output differs; -1 is the decoder's input, None: nothing differs
    ratios: tuple[tuple[float, ...], ...]  # one tuple an image, a value a token, in reading order

    @property
    def place(self) -> str:
        """Where it was measured, in words."""
        if self.layer is None:
            return "no visual token was changed"
        return "the decoder's input" if self.layer == INPUT else f"layer {self.layer}"


@torch.no_grad()
def token_changes(vlm: VLM, images: Sequence[Image.Image], question: str, method: Method) -> TokenChanges:
    """How much the method changes each visual token while the prompt is read."""
    row = vlm.builder.read(list(images), question)
    inputs = vlm.builder.inputs([row], pixels=True)
    visual = inputs["input_ids"][0] == vlm.parts.image_token_id  # (L,)
    before = _states(vlm, inputs, visual)
    with method(vlm.model, vlm.processor, images=[list(images)], parts=vlm.parts):
        after = _states(vlm, inputs, visual)
    for layer in sorted(before):
        old, new = before[layer].float(), after[layer].float()  # (K, d)
        ratio = (new - old).norm(dim=-1) / old.norm(dim=-1).clamp_min(1e-30)
        if bool((ratio > 0).any()):
            return TokenChanges(layer, _by_image(ratio, visual, len(images)))
    return TokenChanges(None, _by_image(torch.zeros(int(visual.sum())), visual, len(images)))


def _states(vlm: VLM, inputs: dict[str, Any], visual: Tensor) -> dict[int, Tensor]:
    """The visual tokens (K, d) at the decoder's input and after each layer, in one pass."""
    held: dict[int, Tensor] = {}

    def keep(layer: int, h: Tensor) -> None:
        held[layer] = h[0, visual.to(h.device)].detach().cpu()

    with ExitStack() as stack:
        hook = vlm.parts.decoder.register_forward_pre_hook(
            lambda _, __, options: keep(INPUT, options["inputs_embeds"]), with_kwargs=True
        )
        stack.callback(hook.remove)
        for number, module in enumerate(vlm.parts.layers):
            hook = module.register_forward_hook(
                lambda _, __, output, number=number: keep(number, output[0] if isinstance(output, tuple) else output)
            )
            stack.callback(hook.remove)
        vlm.model(**inputs, use_cache=False)
    return held


def _by_image(ratio: Tensor, visual: Tensor, images: int) -> tuple[tuple[float, ...], ...]:
    """Values of the tokens of each image: runs of image tokens, or equal shares where images touch."""
    positions = visual.nonzero().flatten().cpu()
    gaps = (positions.diff() != 1).nonzero().flatten() + 1
    if images == 1:
        parts = [ratio]
    elif len(gaps) + 1 == images:
        parts = list(ratio.tensor_split(gaps))
    else:
        parts = list(ratio.tensor_split(images))
    return tuple(tuple(part.tolist()) for part in parts)
