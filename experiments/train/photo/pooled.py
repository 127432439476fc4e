"""Predict objects from visual tokens: products with the decoder's embeddings of the names, pooled over patches.

The label belongs to the whole photograph, but the pool is high only if some patch that shows the object is. Because the
embeddings of the names are those that the decoder reads and writes, its questions match the patches from the start.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast


class PooledNames(nn.Module):
    """Visual tokens -> one logit per object name."""

    members: Tensor

    def __init__(self, names: list[str], words: PreTrainedTokenizerFast, rates: np.ndarray) -> None:
        super().__init__()
        members = torch.zeros(len(names), len(words))
        for row, name in enumerate(names):
            ids = words(f" {name}").input_ids
            members[row, ids] = 1 / len(ids)
        self.register_buffer("members", members, persistent=False)
        self.scale = nn.Parameter(torch.tensor(0.0))
        # Start from the frequency of each object
        self.bias = nn.Parameter(torch.logit(torch.from_numpy(rates).float().clamp(1e-4, 0.9)))

    def forward(self, tokens: Tensor, embeddings: Tensor) -> Tensor:
        """Tokens (B, N, d), embeddings (vocabulary, d) -> logits (B, names)."""
        names = F.normalize(self.members @ embeddings, dim=-1) * self.scale.exp()
        patches = tokens @ names.T  # (B, N, names)
        return patches.logsumexp(1) - math.log(tokens.shape[1]) + self.bias


def mean_average_precision(scores: np.ndarray, present: np.ndarray) -> float:
    """Mean over objects of the average precision; scores and present are (photographs, objects)."""
    found = []
    for k in range(present.shape[1]):
        if present[:, k].any():
            hits = present[np.argsort(-scores[:, k]), k]
            found.append((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())
    return float(np.mean(found))
