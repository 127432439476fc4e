"""Controls: what a result must be compared with before it means anything.

Variants of AIR's evidence (random, farthest, noised or another picture's crops, no prototypes, no selection), and two
biases on the answer's words: saying less (`Shorter`) and saying yes (`YesNo`). They know nothing of any benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import LogitsProcessor

from airvlm.hooks.fields import setting
from airvlm.hooks.intervention import Call, Intervention, Step
from airvlm.hooks.method import Method
from airvlm.hooks.run import Run
from airvlm.methods.air.config import AIR
from airvlm.report import Report

__all__ = ["CONTROLS", "Shorter", "YesNo", "control"]

# name -> how it differs from the method it controls, and what it would mean if it did as well
CONTROLS: dict[str, tuple[str, Callable[[AIR], AIR]]] = {
    "random-crops": ("as many crops, drawn at random", lambda air: replace(air, order="random")),
    "worst-crops": ("as many crops, the farthest ones", lambda air: replace(air, order="farthest")),
    "noised": ("the kept crops' tokens with Gaussian noise", lambda air: replace(air, noise=1.0)),
    "averaged": ("the mean of all visual features in place of the crops", lambda air: _averaged(air)),
    "no-prototypes": (
        "all visual tokens, not the Q farthest from their mean",
        lambda air: replace(air, top_q=1.0),
    ),
    "no-selection": ("all crops, whatever their distance", lambda air: _all_crops(air)),
    "other-picture": ("another picture's crops", lambda air: replace(air, source="other")),
    "shrunk": ("crops of the picture as the model sees it", lambda air: replace(air, source="shrunk")),
}


def control(name: str, air: AIR) -> AIR:
    """The named control of this method."""
    if name not in CONTROLS:
        raise ValueError(f"unknown control {name!r}; known: {', '.join(CONTROLS)}")
    return CONTROLS[name][1](air)


def _all_crops(air: AIR) -> AIR:
    return replace(air, tau=None, keep=None, quantile=1.0)


def _averaged(air: AIR) -> AIR:
    return replace(air, memory="average")


@dataclass(frozen=True)
class Shorter(Method):
    """A bias on the end token: the trivial way to hallucinate less, by saying less."""

    name: ClassVar[str] = "shorter"
    publication: ClassVar[str] = "control"
    mechanism: ClassVar[str] = "adds a bias to the end token's logit, so that answers get shorter"
    forwards: ClassVar[str] = "1"
    needs_images: ClassVar[bool] = False

    bias: float = setting(1.0, "added to the logit of every end token", off=0)

    def begin(self, run: Run) -> Intervention:
        return _Biasing(run, lambda call: dict.fromkeys(_end_tokens(call), self.bias))


@dataclass(frozen=True)
class YesNo(Method):
    """A bias towards yes: the trivial way to trade precision for recall on yes/no questions."""

    name: ClassVar[str] = "yesno"
    publication: ClassVar[str] = "control"
    mechanism: ClassVar[str] = "adds a bias to the logits of yes, so that more questions are affirmed"
    forwards: ClassVar[str] = "1"
    needs_images: ClassVar[bool] = False

    bias: float = setting(
        1.0, "added to the logit of every token that spells yes; negative favours no", off=0
    )

    def begin(self, run: Run) -> Intervention:
        tokens = spellings(run.processor, ("yes", "Yes", "YES"))
        return _Biasing(run, lambda call: dict.fromkeys(tokens, self.bias))


def spellings(processor: Any, words: Iterable[str]) -> list[int]:
    """The single tokens that spell one of the words at the start of an answer, with or without a space before it."""
    tokenizer = getattr(processor, "tokenizer", processor)
    if tokenizer is None:
        raise ValueError(
            "yesno needs the model's processor to find the tokens of yes: pass it as second argument"
        )
    found = {}
    for word in words:
        for text in (word, " " + word):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) == 1 and ids[0] != getattr(tokenizer, "unk_token_id", None):
                found[ids[0]] = text
    if not found:
        raise ValueError("the tokenizer has no single token for yes: yesno cannot bias it")
    return sorted(found)


def _end_tokens(call: Call) -> list[int]:
    ends = call.option("eos_token_id")
    if ends is None:
        raise ValueError("shorter needs an end token: set eos_token_id in the generation config")
    return [int(end) for end in torch.as_tensor(ends).flatten().tolist()]


class _Bias(LogitsProcessor):
    def __init__(self, biases: dict[int, float]) -> None:
        self.tokens = torch.tensor(list(biases))
        self.values = torch.tensor(list(biases.values()))
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        values = self.values.to(scores.device, scores.dtype).expand(scores.shape[0], -1)
        return scores.index_add(1, self.tokens.to(scores.device), values)


class _Biasing(Intervention):
    """Adds constants to the logits of some tokens, at every step of every row."""

    def __init__(self, run: Run, biases: Callable[[Call], dict[int, float]]) -> None:
        super().__init__(run)
        self.biases = biases
        self.rows = 1
        self.bias: _Bias | None = None

    def begin(self, step: Step) -> None:
        self.rows = step.rows

    def processors(self, call: Call) -> list[LogitsProcessor]:
        biases = {token: bias for token, bias in self.biases(call).items() if bias}
        self.bias = _Bias(biases) if biases else None
        return [] if self.bias is None else [self.bias]

    def report(self) -> Report:
        acted = self.bias is not None and self.bias.calls > 0
        off = self.bias is None and self.run.calls > 0
        reason = "its bias is 0" if off else "it acts on the logits of generate, which was not called"
        one = Report(
            method=self.run.method.to_json(),
            fired=acted,
            reason=None if acted else reason,
            passes=self.bias.calls if self.bias is not None else 0,
            silent=off,
        )
        return replace(one, rows=(one,) * self.rows)
