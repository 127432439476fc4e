"""Biases on the answer's words: saying less (the EOS bias, `Shorter`) and saying yes (`YesNo`).

The trivial ways to hallucinate less or to find more, which a result must be compared with before it means anything.
They know nothing of images or of any benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import LogitsProcessor

from airvlm.hooks.fields import setting
from airvlm.hooks.intervention import Call, Context, Intervention
from airvlm.hooks.method import Method

__all__ = ["Shorter", "YesNo", "spellings"]


@dataclass(frozen=True)
class Shorter(Method):
    """The EOS bias, on the logit of the end token: hallucinate less by saying less."""

    name: ClassVar[str] = "shorter"
    publication: ClassVar[str] = "control"
    mechanism: ClassVar[str] = "adds a bias to the end token's logit (EOS bias), so that answers get shorter"
    needs_images: ClassVar[bool] = False

    bias: float = setting(1.0, "added to the logit of every end token", off=0)

    def start(self, context: Context) -> Intervention:
        return _Biased(self, context, self.bias, _end_tokens)


@dataclass(frozen=True)
class YesNo(Method):
    """A bias towards yes: trade precision for recall on yes/no questions."""

    name: ClassVar[str] = "yesno"
    publication: ClassVar[str] = "control"
    mechanism: ClassVar[str] = "adds a bias to the logits of yes, so that more questions are affirmed"
    needs_images: ClassVar[bool] = False

    bias: float = setting(
        1.0, "added to the logit of every token that spells yes; negative favours no", off=0
    )

    def start(self, context: Context) -> Intervention:
        tokens = spellings(context.processor, ("yes", "Yes", "YES"))
        return _Biased(self, context, self.bias, lambda call: tokens)


def spellings(processor: Any, words: Iterable[str]) -> list[int]:
    """The single tokens that spell one of the words at the start of an answer, with or without a space before it."""
    tokenizer = getattr(processor, "tokenizer", processor)
    if tokenizer is None:
        raise ValueError(
            "yesno needs the model's processor to find the tokens of yes: pass it as second argument"
        )
    found = set()
    for text in (space + word for word in words for space in ("", " ")):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) == 1 and ids[0] != getattr(tokenizer, "unk_token_id", None):
            found.add(ids[0])
    if not found:
        raise ValueError("the tokenizer has no single token for yes: yesno cannot bias it")
    return sorted(found)


def _end_tokens(call: Call) -> list[int]:
    ends = call.option("eos_token_id")
    if ends is None:
        raise ValueError("shorter needs an end token: set eos_token_id in the generation config")
    return [int(end) for end in torch.as_tensor(ends).flatten().tolist()]


class _Biased(Intervention):
    """Adds a constant to the logits of some tokens, at every step of every batch row."""

    def __init__(
        self, method: Method, context: Context, bias: float, tokens: Callable[[Call], list[int]]
    ) -> None:
        super().__init__(method, context)
        self.bias, self.tokens = bias, tokens

    def processors(self, call: Call) -> list[LogitsProcessor]:
        return [_Bias(self, list(dict.fromkeys(self.tokens(call))))]

    def reason(self, row: int | None) -> str:
        return "it acts on the logits of generate, which was not called"


class _Bias(LogitsProcessor):
    def __init__(self, biased: _Biased, tokens: list[int]) -> None:
        self.biased = biased
        self.tokens = torch.tensor(tokens)
        self.values = torch.full((len(tokens),), biased.bias)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        copies = scores.shape[0] // max(1, self.biased.rows)
        self.biased.changes.count(torch.full((self.biased.rows,), copies))
        values = self.values.to(scores.device, scores.dtype).expand(scores.shape[0], -1)
        return scores.index_add(1, self.tokens.to(scores.device), values)
