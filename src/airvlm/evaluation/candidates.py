"""Candidates: the settings of methods that a calibration tries, drawn from the ranges that their fields declare.

A field whose metadata holds `search` is varied: (low, high) of numbers, or some words. The draws are a fixed sequence
that fills the space evenly, so that a larger search begins with the smaller one's settings and asks nothing twice.
Knows nothing of tasks or answers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airvlm import Method, parse_method

__all__ = ["READINGS", "Candidate", "candidates", "searched"]

READINGS = ("air-transported", "air-paper", "air-lineage")  # what `air` stands for in a search
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23)
TRIES = 50  # draws in a row that a method may refuse before its space counts as used up


@dataclass(frozen=True)
class Candidate:
    """One setting of one method."""

    method: Method
    name: str  # of the registry
    fields: tuple[tuple[str, Any], ...]  # what was varied, by field

    @property
    def label(self) -> str:
        """As `--method` spells it."""
        if not self.fields:
            return self.name
        return f"{self.name}:" + ",".join(f"{name}={_spelled(value)}" for name, value in self.fields)


def searched(method: Method) -> dict[str, tuple[Any, ...]]:
    """The fields worth searching in this method's reading, with their ranges."""
    reading = getattr(method, "reading_name", None)
    found = {}
    for field in dataclasses.fields(method):
        readings = field.metadata.get("readings", ())
        if field.metadata.get("search") and (not readings or reading is None or reading in readings):
            found[field.name] = tuple(field.metadata["search"])
    return found


def candidates(names: Sequence[str], count: int, depth: int) -> list[Candidate]:
    """`count` settings, the methods in turns, each beginning with its default; fewer where spaces are small."""
    spelled = [reading for name in names for reading in (READINGS if name == "air" else (name,))]
    sources = [_draws(name, depth) for name in dict.fromkeys(spelled)]
    chosen: dict[Method, Candidate] = {}
    while sources and len(chosen) < count:
        for source in list(sources):
            candidate = next(source, None)
            if candidate is None:
                sources.remove(source)
            elif len(chosen) < count:
                chosen.setdefault(candidate.method, candidate)
    return list(chosen.values())


def _draws(name: str, depth: int) -> Iterator[Candidate]:
    """A method's default, then settings spread over its space."""
    default = parse_method(name)
    if default is None:
        raise ValueError(f"{name}: vanilla has no setting to search; it is always measured beside the others")
    yield Candidate(default, name, ())
    ranges = searched(default)
    seen, refused, i = {default}, 0, 0
    while ranges and refused < TRIES:
        i += 1
        values = {
            field: _value(space, _corput(i, prime), field, depth)
            for (field, space), prime in zip(ranges.items(), PRIMES, strict=False)
        }
        try:
            candidate = Candidate(default, name, tuple(values.items()))
            method = parse_method(candidate.label)
        except ValueError:  # fields that exclude each other
            method = None
        if method is None or method in seen:
            refused += 1
            continue
        refused = 0
        seen.add(method)
        yield dataclasses.replace(candidate, method=method)


def _corput(i: int, base: int) -> float:
    """The i-th number of the van der Corput sequence: evenly spread over (0, 1), whatever its length."""
    value, share = 0.0, 1.0
    while i:
        share /= base
        i, digit = divmod(i, base)
        value += digit * share
    return value


def _value(space: tuple[Any, ...], t: float, field: str, depth: int) -> Any:
    """The point t of (0, 1) in a field's range."""
    low, high = space[0], space[-1]
    numbers = len(space) == 2 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in space)
    if not numbers:
        return space[min(int(t * len(space)), len(space) - 1)]
    if field == "layers":  # shares of the decoder's depth: from there to the last layer
        return (min(depth - 1, round((low + t * (high - low)) * depth)), depth)
    if isinstance(low, int) and isinstance(high, int):
        return min(high, low + int(t * (high - low + 1)))
    if low > 0 and high / low >= 8:
        return _rounded(math.exp(math.log(low) + t * (math.log(high) - math.log(low))))
    return _rounded(low + t * (high - low))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _spelled(value: Any) -> str:
    return f"({','.join(map(str, value))})" if isinstance(value, tuple) else str(value)
