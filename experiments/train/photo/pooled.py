"""Which objects do the visual tokens name? Tokens against the decoder's embeddings of the names, pooled over patches.

The label belongs to the whole photograph, but a patch that shows the object must say so for the pool to say so; and
because the names' embeddings are those the decoder reads and writes, its questions find the patches from the start.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast


class PooledNames(nn.Module):
    members: Tensor

    def __init__(self, names: list[str], words: PreTrainedTokenizerFast, rates: np.ndarray) -> None:
        super().__init__()
        members = torch.zeros(len(names), len(words))
        for row, name in enumerate(names):
            ids = words(f" {name}").input_ids
            members[row, ids] = 1 / len(ids)
        self.register_buffer("members", members, persistent=False)
        self.scale = nn.Parameter(torch.tensor(0.0))
        # the prior of each object, so that the first steps need not learn it
        self.bias = nn.Parameter(torch.logit(torch.from_numpy(rates).float().clamp(1e-4, 0.9)))

    def forward(self, tokens: Tensor, embeddings: Tensor) -> Tensor:
        """tokens (B, N, d), embeddings (vocabulary, d): logits (B, names)."""
        names = F.normalize(self.members @ embeddings, dim=-1) * self.scale.exp()
        patches = tokens @ names.T  # (B, N, names)
        return patches.logsumexp(1) - math.log(tokens.shape[1]) + self.bias


def mean_average_precision(scores: np.ndarray, present: np.ndarray) -> float:
    found = []
    for k in range(present.shape[1]):
        if present[:, k].any():
            hits = present[np.argsort(-scores[:, k]), k]
            found.append((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())
    return float(np.mean(found))
