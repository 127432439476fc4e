"""A steering vector on visual tokens: every one is moved towards one word and away from another.

The direction is the difference of the two words' embeddings in the decoder's own vocabulary. A template says where
a method acts; this one is shown the visual tokens where the decoder reads them, and says what becomes of them. Batch
rows, beams, caches, the report, "off" and the command line come from airvlm.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from airvlm.methods.base import option
from airvlm.runtime.intervention import Context, norm
from airvlm.methods.templates import VisualTokenMethod


@dataclass(frozen=True)
class Steering(VisualTokenMethod):
    """moves visual tokens along the direction from one word to another"""

    towards: str = option("yes", "the word whose embedding visual tokens are moved towards")
    away: str = option("no", "the word that they are moved away from")
    strength: float = option(0.1, "norm of what is added over the norm of the token", low=0.0, off=0.0)

    name: ClassVar[str] = "steering"

    def visual_tokens(self, z: Tensor, context: Context) -> Tensor:
        v = self.embedding(self.towards, context) - self.embedding(self.away, context)  # (d,)
        v = v / v.norm().clamp_min(1e-30)
        # a share of each token's own norm, so that a setting means the same on every model
        return z + (self.strength * norm(z) * v.to(z.device)).to(z.dtype)

    def embedding(self, word: str, context: Context) -> Tensor:
        """The mean input embedding (d,) of a word's tokens."""
        ids = context.processor.tokenizer(word, add_special_tokens=False, return_tensors="pt").input_ids[0]
        table: Any = context.parts.model.get_input_embeddings()
        with torch.no_grad():
            return table(ids.to(table.weight.device)).float().mean(0)
