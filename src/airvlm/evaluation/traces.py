"""Traces: one greedy run of a method that holds its answers under every bias of a control, and at every shorter cap.

A bias on the end token only moves the step at which greedy decoding stops. A run under the most negative bias therefore
holds the answer under every larger one: the first n tokens, where n is the first step whose margin (of the best other
token over the end token) the bias reaches. A bias on yes chooses between few answers, each of which is right for a
range of biases.

Thresholds are exact: the smallest float32 bias at which the control's token wins, computed as the model's own scores
are, rounding and ties included. So derived texts equal those of separate runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CONTROLS",
    "Derived",
    "TraceRequest",
    "bias_ranges",
    "derive_answer",
    "end_trace",
    "join_bias",
    "split_bias",
    "thresholds",
    "trace_covers",
    "yes_trace",
]

Json = dict[str, Any]
CONTROLS = ("eos-bias", "yes-bias")
LARGEST = 3e38  # stands for infinity in JSON


@dataclass(frozen=True)
class TraceRequest:
    """What a trace must hold: a control at biases from the smallest to the largest; 0 is the method itself."""

    control: str
    biases: tuple[float, ...]  # in order


@dataclass(frozen=True)
class Derived:
    """An answer that was read from a trace."""

    text: str
    tokens: int
    finished: bool


# -- which answers a trace can hold


def split_bias(method: Mapping[str, Any] | None) -> tuple[Json | None, str, float]:
    """A method's JSON without a control that acts last: (the rest, the control's name or "", its bias)."""
    if method is None:
        return None, "", 0.0
    parts = list(method["methods"]) if method.get("name") == "composed" else [method]
    last = parts[-1]
    if last.get("name") not in CONTROLS:
        return dict(method), "", 0.0
    rest = parts[:-1]
    base = None if not rest else dict(rest[0]) if len(rest) == 1 else {"name": "composed", "methods": rest}
    return base, str(last["name"]), float(last["bias"])


def join_bias(method: Json | None, control: str, bias: float) -> Json | None:
    """The inverse of `split_bias`."""
    if not bias:
        return method
    last = {"name": control, "bias": float(bias)}
    if method is None:
        return last
    parts = method["methods"] if method.get("name") == "composed" else [method]
    return {"name": "composed", "methods": [*parts, last]}


# -- thresholds


def thresholds(controlled: Any, other: Any, first: Any) -> NDArray[np.float32]:
    """The smallest float32 bias at which a control's token is chosen.

    Args:
        controlled: float32, any shape: the largest score of the control's tokens.
        other: float32, the same shape: the largest score of all other tokens.
        first: whether the control's token comes first in the vocabulary, and so wins a tie.

    Returns:
        float32 of the same shape: chosen if and only if float32(bias) is at least this; infinite if never.
    """
    controlled, other = np.asarray(controlled, np.float32), np.asarray(other, np.float32)
    first = np.asarray(first, bool)
    low = np.full(controlled.shape, _to_order(np.float32(-np.inf)), np.int64)
    high = np.full(controlled.shape, _to_order(np.float32(np.inf)), np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        # bisection over all float32 numbers: after 33 steps low and high are neighbors
        for _ in range(33):
            middle = (low + high) // 2
            biased = controlled + _from_order(middle)
            wins = (biased > other) | (first & (biased == other))
            low, high = np.where(wins, low, middle), np.where(wins, middle, high)
    return _from_order(high)


def _to_order(values: Any) -> Any:
    """float32 -> integers in the same order."""
    bits = np.asarray(values, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _from_order(order: NDArray[np.int64]) -> NDArray[np.float32]:
    bits = np.where(order < 0, -order | 0x80000000, order).astype(np.uint32)
    return bits.view(np.float32)


def _plain(threshold: Any) -> float:
    """A threshold as a short JSON number that reads back as the same float32."""
    return float(str(np.float32(np.clip(threshold, -LARGEST, LARGEST))))


# -- making and reading a trace


def end_trace(low: float, cap: int, texts: Sequence[str], margins: Any) -> Json:
    """The trace of one row under a bias on the end token.

    Args:
        low: the bias of the run.
        cap: its token cap.
        texts: the decoded text of the first 0, 1, 2, ... tokens, up to the end token or the cap.
        margins: the thresholds of the steps, as `thresholds` gives them; one per token, and one more of a row that
            ended.
    """
    ends, least = [], np.float32(np.inf)
    for step, margin in enumerate(margins):
        if margin < least:  # later steps with a larger margin never end an answer
            least = margin
            ends.append([step, _plain(margin)])
    return {"control": "eos-bias", "low": low, "cap": cap, "ends": ends, **_pack(texts)}


def yes_trace(ranges: Sequence[tuple[float, float, Derived]]) -> Json:
    """The trace of one row under a bias on yes.

    Args:
        ranges: answers, each with the smallest bias at which it is given and the one at which another is.
    """
    paths = [[_plain(low), _plain(high), d.text, d.tokens, d.finished] for low, high, d in ranges]
    return {"control": "yes-bias", "paths": sorted(paths, key=lambda path: path[0])}


def bias_ranges(bias: float, margins: Any) -> tuple[float, float]:
    """The biases [low, high) that take the same decision as this one at every step."""
    margins, own = np.asarray(margins, np.float32), np.float32(bias)
    low = np.max(margins[margins <= own], initial=-np.inf)
    high = np.min(margins[margins > own], initial=np.inf)
    return float(low), float(high)


def derive_answer(trace: Mapping[str, Any], control: str, bias: float, cap: int | None) -> Derived | None:
    """The answer under a bias and a token cap; None if the trace does not hold it.

    Args:
        trace: of `end_trace` or `yes_trace`.
        control: whose bias; "" is the method itself.
        bias: the bias.
        cap: the token cap; None is the trace's own.
    """
    if "refused" in trace or (control and control != trace["control"]):
        return None
    own = np.float32(bias)
    if trace["control"] == "yes-bias":
        found = next((p for p in trace["paths"] if np.float32(p[0]) <= own < np.float32(p[1])), None)
        return None if found is None else Derived(found[2], found[3], found[4])
    cap = trace["cap"] if cap is None else cap
    if bias < trace["low"] or cap > trace["cap"]:
        return None
    step = next((n for n, margin in trace["ends"] if np.float32(margin) <= own), None)
    tokens = len(trace["at"] if "at" in trace else trace["texts"]) - 1 if step is None else step
    # the end token needs room too: an answer that fills the cap was cut
    finished = step is not None and tokens < cap
    tokens = min(tokens, cap)
    text = trace["text"][: trace["at"][tokens]] if "at" in trace else trace["texts"][tokens]
    return Derived(text.strip(), tokens, finished)


def trace_covers(trace: Mapping[str, Any] | None, request: TraceRequest, cap: int | None) -> bool:
    """Whether a trace holds everything that is asked of it; a refused one never will, and counts as done."""
    if trace is None:
        return False
    return "refused" in trace or all(derive_answer(trace, request.control, b, cap) for b in request.biases)


def _pack(texts: Sequence[str]) -> Json:
    """The texts of the first 0, 1, 2, ... tokens: one text and where to cut it, if each continues the one before.

    They do not where a character's bytes are spread over several tokens.
    """
    if all(after.startswith(before) for before, after in pairwise(texts)):
        return {"text": texts[-1], "at": [len(text) for text in texts]}
    return {"texts": list(texts)}
