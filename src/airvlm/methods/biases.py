"""Changes of the logits alone: shorter answers (EOSBias), more yes (YesBias, NearTie), the plausibility cut-off
(CutOff) and the temperature (Temperature) that contrastive decoding brings with it.

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

__all__ = ["CutOff", "EOSBias", "NearTie", "Temperature", "YesBias", "find_end_tokens", "find_spellings"]


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


@dataclass(frozen=True)
class Temperature(Method):
    """A temperature on the scores: what weights of sum s do besides their contrast, at a temperature of 1 / s.

    Changes sampling and beams; greedy decoding takes the same token at any temperature.
    """

    name: ClassVar[str] = "temperature"
    summary: ClassVar[str] = "control: a temperature, as that of logits whose weights do not sum to 1"
    site: ClassVar[str] = "control"
    needs_images: ClassVar[bool] = False

    temperature: float = option(
        0.25, "scores are divided by this; 0.25 is that of weights 1 and 3, and 1 is off", above=0, off=1
    )

    def start(self, context: Context) -> Intervention:
        return _Temperature(self, context)


@dataclass(frozen=True)
class NearTie(Method):
    """Says yes wherever yes and no are nearly as likely, and changes nothing else.

    At a step where P(yes) + P(no) > `mass` and |P(yes) - P(no)| < `margin`, the likeliest spelling of yes is said.
    """

    name: ClassVar[str] = "near-tie"
    summary: ClassVar[str] = "control: says yes where yes and no are nearly as likely"
    site: ClassVar[str] = "control"
    needs_images: ClassVar[bool] = False

    margin: float = option(0.5, "smaller differences between P(yes) and P(no) are a tie", low=0, high=1, off=0)
    mass: float = option(0.2, "what yes and no must have together, so that other text is left alone", low=0, high=1)

    def start(self, context: Context) -> Intervention:
        return _NearTie(self, context)


def find_spellings(processor: Any, words: Iterable[str], who: str = "yes-bias") -> list[int]:
    """The single tokens that spell one of the words at the start of an answer, with or without a space before it."""
    words = list(words)
    tokenizer = getattr(processor, "tokenizer", processor)
    if tokenizer is None:
        raise ValueError(
            f"{who} needs the model's processor to find the tokens of {words[0]}: pass it as second argument"
        )
    found = set()
    for text in (space + word for word in words for space in ("", " ")):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) == 1 and ids[0] != getattr(tokenizer, "unk_token_id", None):
            found.add(ids[0])
    if not found:
        raise ValueError(f"{who}: the tokenizer has no single token for {words[0]}")
    return sorted(found)


class _OnScores(Intervention):
    """Changes the scores of every step of generate."""

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        return [_Processor(self)]

    def change(self, scores: Tensor) -> Tensor:
        """The scores (B, V) of one step -> the new ones."""
        raise NotImplementedError

    def count(self, scores: Tensor) -> None:
        """Record the rows (B, V) of one step as changed."""
        rows = max(1, self.batch_size)
        self.stats.count(torch.full((rows,), scores.shape[0] // rows))

    def inactive_reason(self, row: int | None) -> str:
        return "it acts on the scores of generate, which was not called"


class _Processor(LogitsProcessor):
    def __init__(self, intervention: _OnScores) -> None:
        self.intervention = intervention

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.intervention.count(scores)
        return self.intervention.change(scores)


class _Bias(_OnScores):
    """Adds a constant to the scores of some tokens; None: the end tokens of the call."""

    def __init__(self, method: Method, context: Context, bias: float, tokens: list[int] | None) -> None:
        super().__init__(method, context)
        self.bias, self.tokens = bias, tokens

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        tokens = find_end_tokens(call) if self.tokens is None else self.tokens
        self._ids = torch.tensor(tokens, device=call.input_ids.device)
        return super().processors(call)

    def change(self, scores: Tensor) -> Tensor:
        values = scores.new_full((scores.shape[0], len(self._ids)), self.bias)
        return scores.index_add(1, self._ids, values)


class _Cut(_OnScores):
    method: CutOff

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        return [] if _is_greedy(call) else super().processors(call)

    def change(self, scores: Tensor) -> Tensor:
        limit = scores.amax(-1, keepdim=True) + math.log(self.method.beta)
        # The lowest value and not -inf: beam search adds scores, and must not meet inf - inf.
        return scores.masked_fill(scores < limit, torch.finfo(scores.dtype).min)

    def inactive_reason(self, row: int | None) -> str:
        return "greedy decoding takes the likeliest token, which the cut-off never removes"


class _Temperature(_OnScores):
    method: Temperature

    def processors(self, call: GenerateCall) -> list[LogitsProcessor]:
        return [] if _is_greedy(call) else super().processors(call)

    def change(self, scores: Tensor) -> Tensor:
        # normalized: beam search has taken the logarithm of probabilities before, and adds them up
        return (scores.float() / self.method.temperature).log_softmax(-1).to(scores.dtype)

    def inactive_reason(self, row: int | None) -> str:
        return "greedy decoding takes the likeliest token, whatever the temperature"


class _NearTie(_OnScores):
    method: NearTie

    def __init__(self, method: NearTie, context: Context) -> None:
        super().__init__(method, context)
        yes, no = (
            find_spellings(context.processor, (word, word.title(), word.upper()), method.name) for word in ("yes", "no")
        )
        self._yes, self._no = torch.tensor(yes), torch.tensor(no)
        self._nearest: Tensor | None = None  # (batch_size,) smallest difference where yes and no have the mass

    def on_call(self, call: GenerateCall) -> None:
        self._nearest = None

    def count(self, scores: Tensor) -> None:
        pass  # only ties are: see `change`

    def change(self, scores: Tensor) -> Tensor:
        yes, no = self._yes, self._no = self._yes.to(scores.device), self._no.to(scores.device)
        p = scores.float().softmax(-1)
        p_yes, p_no = p[:, yes].sum(-1), p[:, no].sum(-1)  # (B,)
        difference = torch.where(p_yes + p_no > self.method.mass, (p_yes - p_no).abs(), torch.inf)
        tie = difference < self.method.margin
        rows = max(1, self.batch_size)
        self.stats.count(tie.view(rows, -1).sum(-1))
        nearest = difference.view(rows, -1).amin(-1)
        known = self._nearest
        same = known is not None and known.shape == nearest.shape
        self._nearest = torch.minimum(known, nearest) if known is not None and same else nearest
        said = yes[scores[:, yes].argmax(-1)]  # (B,) the likeliest spelling
        others = torch.ones_like(scores, dtype=torch.bool).scatter(-1, said[:, None], False)
        return scores.masked_fill(others & tie[:, None], torch.finfo(scores.dtype).min)

    def measures(self) -> dict[str, Tensor]:
        return {} if self._nearest is None else {"nearest": self._nearest}

    def inactive_reason(self, row: int | None) -> str:
        nearest = self.measured.get("nearest", [])
        if not nearest:
            return super().inactive_reason(row)
        least = min(nearest) if row is None or row >= len(nearest) else nearest[row]
        if math.isinf(least):
            return f"yes and no never had {self.method.mass:g} of the probability together"
        return f"no step was a near tie: the smallest difference was {least:.3f}, and margin is {self.method.margin:g}"


def _is_greedy(call: GenerateCall) -> bool:
    return not call.option("do_sample", False) and call.option("num_beams", 1) == 1


def find_end_tokens(call: GenerateCall) -> list[int]:
    """The tokens that end an answer in this call."""
    ends = call.option("eos_token_id")
    if ends is None:
        raise ValueError("eos-bias needs an end token: set eos_token_id in the generation config")
    return list(dict.fromkeys(int(end) for end in torch.as_tensor(ends).flatten().tolist()))
