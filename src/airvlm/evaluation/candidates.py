"""Candidates: the settings of methods that a calibration tries, drawn from the ranges that their fields declare.

A field whose metadata holds `search` is varied: (low, high) of numbers, or some words. A method's strength (the field
that can switch it off) differs in every setting; any other field keeps its default in half of them, since most
combinations of many changed fields do harm. The draws are a fixed sequence that fills the space evenly from its first
points on, so that a larger search begins with the smaller one's settings and asks nothing twice. Knows nothing of tasks
or answers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airvlm import Method, parse_method

__all__ = ["READINGS", "Candidate", "candidates", "searched"]

# what `air` stands for in a search; AIR()'s own reading has two turns
READINGS = ("air-transported", "air-paper", "air-lineage", "air-transported")
TRIES = 50  # draws in a row that a method may refuse before its space counts as used up


@dataclass(frozen=True)
class Candidate:
    """One setting of one method."""

    method: Method
    name: str  # of the registry
    fields: tuple[tuple[str, Any], ...]  # what was varied, by field
    companion: str = ""  # a control that is used together with it, as `--method` spells it

    @property
    def label(self) -> str:
        """As `--method` spells it."""
        varied = ",".join(f"{name}={_spelled(value)}" for name, value in self.fields)
        return self.name + (f":{varied}" if varied else "") + (f"+{self.companion}" if self.companion else "")

    @property
    def is_default(self) -> bool:
        """Whether it is the method as it comes, with or without a companion."""
        return not self.fields

    def beside(self, companion: str) -> Candidate:
        """The same setting together with a control."""
        spelled = dataclasses.replace(self, companion=companion)
        method = parse_method(spelled.label)
        assert method is not None, "a setting and a control are a method"
        return dataclasses.replace(spelled, method=method)


def searched(method: Method) -> dict[str, tuple[Any, ...]]:
    """The fields worth searching in this method's reading, with their ranges."""
    return {field.name: tuple(field.metadata["search"]) for field in _searched(method)}


def _searched(method: Method) -> list[dataclasses.Field[Any]]:
    reading = getattr(method, "reading_name", None)
    return [
        field
        for field in dataclasses.fields(method)
        if field.metadata.get("search") and (reading is None or reading in field.metadata.get("readings", (reading,)))
    ]


def candidates(names: Sequence[str], count: int, depth: int) -> list[Candidate]:
    """`count` settings: every method's default, however few are wanted, then the methods in turns.

    Fewer where spaces are small.
    """
    turns = [reading for name in names for reading in (READINGS if name == "air" else (name,))]
    sources = {name: _draws(name, depth) for name in turns}
    chosen: dict[Method, Candidate] = {}
    for source in sources.values():
        default = next(source)
        chosen.setdefault(default.method, default)
    while turns and len(chosen) < count:
        for name in list(turns):
            candidate = next(sources[name], None)
            if candidate is None:
                turns.remove(name)
            elif len(chosen) < count:
                chosen.setdefault(candidate.method, candidate)
    return list(chosen.values())


def _draws(name: str, depth: int) -> Iterator[Candidate]:
    """A method's default, then settings spread over its space."""
    default = parse_method(name)
    if default is None:
        raise ValueError(f"{name}: vanilla has no setting to search; it is always measured beside the others")
    yield Candidate(default, name, ())
    fields = _searched(default)
    seen, refused, i = {default}, 0, 0
    while fields and refused < TRIES:
        i += 1
        values = {}
        for field, t in zip(fields, _point(i, len(fields)), strict=True):
            # a word that is the default already would be no change
            space = tuple(v for v in field.metadata["search"] if not (isinstance(v, str) and v == field.default))
            if "off" in field.metadata:
                values[field.name] = _value(space, t, field.name, depth)
            elif t >= 0.5:
                values[field.name] = _value(space, 2 * t - 1, field.name, depth)
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


def _point(i: int, dimensions: int) -> list[float]:
    """The i-th point of a sequence that fills the unit cube evenly, whatever its length.

    Multiples of powers of a generalised golden ratio: unlike those of van der Corput's sequences in large bases, the
    first dozen values of every coordinate are spread over all of (0, 1).
    """
    ratio = 2.0
    for _ in range(60):  # the root of x^(d + 1) = x + 1
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    return [(0.5 + i / ratio ** (k + 1)) % 1.0 for k in range(dimensions)]


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
    return float(f"{value:.2g}")


def _spelled(value: Any) -> str:
    return f"({','.join(map(str, value))})" if isinstance(value, tuple) else str(value)
