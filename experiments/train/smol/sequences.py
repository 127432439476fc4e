"""Packed training sequences: many questions about one photograph share its visual tokens.

A sequence is the prompt's beginning and the visual tokens (the prefix), then one branch per question and answer. A
branch attends to the prefix and to itself, and its positions start where the prefix ends, so the model computes for
each branch what it would compute for a single conversation.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

TEXT_WEIGHT = 0.12  # of a token of a text; a yes/no question has 1
USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>"


@dataclass(frozen=True)
class Exchange:
    question: str
    answer: str
    kind: str  # "yesno", "text" or "talk"
    with_end: bool = True  # the end token is learnt, too


@dataclass(frozen=True)
class Packed:
    """One prefix and its branches, without the visual tokens' values."""

    ids: Tensor  # (L,) token ids; 0 in place of visual tokens
    visual: Tensor  # (V,) indices of the visual tokens
    positions: Tensor  # (L,)
    mask: Tensor  # (L, L) True where a token is attended to
    places: Tensor  # (S,) where something is predicted
    targets: Tensor  # (S,) what
    weights: Tensor  # (S,) of the loss
    is_yesno: Tensor  # (S,)


class Packer:
    """Exchanges -> sequences."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, patches: int = 100) -> None:
        self.tokenizer, self.patches = tokenizer, patches
        self.start = self.encode(USER)
        self.yes, self.no = (self.encode(word)[0] for word in ("Yes", "No"))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def pack(self, exchanges: Sequence[Exchange], kept: Sequence[int] | None) -> Packed:
        """Pack questions about one photograph.

        Args:
            exchanges: questions and answers.
            kept: which patches are shown, in order; None for a conversation without an image.
        """
        visual = list(kept) if kept is not None else []
        first = len(self.start)
        after = first + (self.patches if kept is not None else 0)
        ids = self.start + [0] * len(visual)
        positions = [*range(first), *(first + patch for patch in visual)]
        branch = [0] * len(ids)
        places: list[int] = []
        targets: list[int] = []
        weights: list[float] = []
        yesno: list[bool] = []
        for number, own in enumerate(exchanges, start=1):
            lead = self.encode(("\n" if kept is not None else "") + own.question + ASSISTANT)
            said = self.encode(own.answer) + (self.encode(END) if own.with_end else [])
            begin = len(ids) + len(lead) - 1
            ids += lead + said[:-1]
            length = len(lead) + len(said) - 1
            positions += range(after, after + length)
            branch += [number] * length
            places += range(begin, begin + len(said))
            targets += said
            # the word Yes or No counts fully, the end after it little: it is the same in all of them
            one = own.kind == "yesno"
            weights += [1.0] + [0.1] * (len(said) - 1) if one else [TEXT_WEIGHT] * len(said)
            yesno += [one] + [False] * (len(said) - 1)
        of = torch.tensor(branch)
        mask = ((of[:, None] == of[None]) | (of[None] == 0)).tril()
        return Packed(
            torch.tensor(ids),
            torch.arange(first, first + len(visual)),
            torch.tensor(positions),
            mask,
            torch.tensor(places),
            torch.tensor(targets),
            torch.tensor(weights),
            torch.tensor(yesno),
        )


def choose_patches(weights: Tensor, count: int, draw: random.Random) -> list[int]:
    """Patches to show, in their order: the best one of each object, then those that show most, and random ones.

    Args:
        weights: (P, C) how much each patch shows of each object.
        count: how many to keep; a quarter of them are random.
        draw: source of randomness.
    """
    if count >= len(weights):
        return list(range(len(weights)))
    peaks, best = weights.max(0)
    strength = weights.sum(-1).argsort(descending=True).tolist()
    order = [int(best[k]) for k in peaks.argsort(descending=True).tolist() if peaks[k] > 0.05] + strength
    kept = list(dict.fromkeys(order))[: 3 * count // 4]
    others = sorted(set(range(len(weights))).difference(kept))
    return sorted(kept + draw.sample(others, count - len(kept)))
