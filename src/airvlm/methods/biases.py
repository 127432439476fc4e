"""Biases on the answer's tokens: shorter answers (EOSBias), more yes (YesBias), and the plausibility cut-off alone.

The trivial ways to hallucinate less or to find more. A result means something only in comparison with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import LogitsProcessor

from airvlm.methods.base import Method, option
from airvlm.runtime.intervention import Context, GenerateCall, Intervention

__all__ = ["CutOff", "EOSBias", "YesBias", "find_end_tokens", "find_spellings"]


@dataclass(frozen=True)
class EOSBias(Method):
    """A bias on the logit of the end token: positive values make answers shorter."""

    name: ClassVar[str] = "eos-bias"
    summary: ClassVar[str] = "control: a bias on the end token, so that answers get shorter"
    site: ClassVar[str] = "control"
    needs_images: ClassVar[bool] = False

    bias: float = option(1.0, "added to the logit of every end token; negative makes answers longer", off=0)

    def start(self, context: Context) -> Intervention:
        return _Bias(self, context, self.bias, None)


@dataclass(frozen=True)
class YesBias(Method):
    """A bias on the logits of yes: trades precision for recall on yes/no questions."""

    name: ClassVar[str] = "yes-bias"
    summary: ClassVar[str] = "control: a bias on the tokens of yes, so that more questions are affirmed"
    site: ClassVar[str] = "control"
    needs_images: ClassVar[bool] = False

    bias: float = option(1.0, "added to the logit of every token that spells yes; negative favors no", off=0)

    def start(self, context: Context) -> Intervention:
        return _Bias(self, context, self.bias, find_spellings(context.processor, ("yes", "Yes", "YES")))


@dataclass(frozen=True)
class CutOff(Method):
    """The plausibility cut-off of contrastive decoding without the contrast: changes sampling and beams, not greedy."""

    name: ClassVar[str] = "cut-off"
    summary: ClassVar[str] = "control: the plausibility cut-off of contrastive decoding, without the contrast"
    site: ClassVar[str] = "control"
    needs_images: ClassVar[bool] = False

    beta: float = option(
        0.1, "tokens less likely than beta times the likeliest are never said; 0 is off", low=0, high=1, off=0
    )

    def start(self, context: Context) -> Intervention:
        return _Cut(self, context)


def find_spellings(processor: Any, words: Iterable[str]) -> list[int]:
    """The single tokens that spell one of the words at the start of an answer, with or without a space before it."""
    tokenizer = getattr(processor, "tokenizer", processor)
    if tokenizer is None:
        raise ValueError("yes-bias needs the model's processor to find the tokens of yes: pass it as second argument")
    found = set()
    for text in (space + word for word in words for space in ("", " ")):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) == 1 and ids[0] != getattr(tokenizer, "unk_token_id", None):
            found.add(ids[0])
    if not found:
        raise ValueError("yes-bias: the tokenizer has no single token for yes")
    return sorted(found)


class _OnScores(Intervention):
    """Changes the scores of every step of generate."""

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        return [_Processor(self)]

    def change(self, scores: Tensor) -> Tensor:
        """The scores (B, V) of one step -> the new ones."""
        raise NotImplementedError

    def inactive_reason(self, row: int | None) -> str:
        return "it acts on the scores of generate, which was not called"


class _Processor(LogitsProcessor):
    def __init__(self, intervention: _OnScores) -> None:
        self.intervention = intervention

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = max(1, self.intervention.batch_size)
        self.intervention.stats.count(torch.full((rows,), scores.shape[0] // rows))
        return self.intervention.change(scores)


class _Bias(_OnScores):
    """Adds a constant to the scores of some tokens; None: the end tokens of the call."""

    def __init__(self, method: Method, context: Context, bias: float, tokens: list[int] | None) -> None:
        super().__init__(method, context)
        self.bias, self.tokens = bias, tokens

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        self._ids = torch.tensor(find_end_tokens(call) if self.tokens is None else self.tokens)
        return super().processors(call)

    def change(self, scores: Tensor) -> Tensor:
        values = scores.new_full((scores.shape[0], len(self._ids)), self.bias)
        return scores.index_add(1, self._ids.to(scores.device), values)


class _Cut(_OnScores):
    method: CutOff

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        greedy = not call.option("do_sample", False) and call.option("num_beams", 1) == 1
        return [] if greedy else super().processors(call)

    def change(self, scores: Tensor) -> Tensor:
        limit = scores.amax(-1, keepdim=True) + math.log(self.method.beta)
        # The lowest value and not -inf: beam search adds scores, and must not meet inf - inf.
        return scores.masked_fill(scores < limit, torch.finfo(scores.dtype).min)

    def inactive_reason(self, row: int | None) -> str:
        return "greedy decoding takes the likeliest token, which the cut-off never removes"


def find_end_tokens(call: GenerateCall) -> list[int]:
    """The tokens that end an answer in this call."""
    ends = call.option("eos_token_id")
    if ends is None:
        raise ValueError("eos-bias needs an end token: set eos_token_id in the generation config")
    return list(dict.fromkeys(int(end) for end in torch.as_tensor(ends).flatten().tolist()))
