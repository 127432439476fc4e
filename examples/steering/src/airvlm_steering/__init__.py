"""A steering vector on visual tokens: each one is moved toward one word and away from another.

The direction is the difference of the two words' input embeddings. The template `VisualTokenMethod` passes the visual
tokens to the method where the decoder reads them; batch rows, beams, caches, the report, strength 0 and the command
line are handled by airvlm.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from airvlm import Context, VisualTokenMethod, option


@dataclass(frozen=True)
class Steering(VisualTokenMethod):
    """Move visual tokens along the direction from one word to another."""

    name: ClassVar[str] = "steering"
    summary: ClassVar[str] = "moves visual tokens along the direction from one word to another"

    toward: str = option("yes", "the word that visual tokens are moved toward")
    away: str = option("no", "the word that they are moved away from")
    strength: float = option(0.1, "norm of the added vector over the norm of the token", low=0, off=0)

    def visual_tokens(self, z: Tensor, context: Context) -> Tensor:
        v = embed_word(self.toward, context) - embed_word(self.away, context)  # (d,)
        v = v / v.norm().clamp_min(1e-30)
        # A fraction of each token's own norm, so that a strength means the same in every model
        length = z.float().norm(dim=-1, keepdim=True)  # (n, 1)
        return z + (self.strength * length * v.to(z.device)).to(z.dtype)


def embed_word(word: str, context: Context) -> Tensor:
    """The mean input embedding (d,) of a word's tokens."""
    ids = context.processor.tokenizer(word, add_special_tokens=False, return_tensors="pt").input_ids[0]
    table: Any = context.parts.model.get_input_embeddings()
    with torch.no_grad():
        return table(ids.to(table.weight.device)).float().mean(0)
