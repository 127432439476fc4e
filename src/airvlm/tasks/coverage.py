"""How answers meet items: the one rule of all tasks about missing, doubled, unknown and unreadable answers.

Knows nothing about benchmarks. Answers are matched to items by id. An id that stands twice, or that no item has, is an
error; `lenient` takes the last of each and leaves the unknown out. Items without an answer are counted, never guessed:
a score on fewer than all items says so wherever it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

__all__ = ["Coverage", "Given", "known_images", "match"]

T = TypeVar("T")
DATABASE = 10  # ground truth of this many times more images than are described is a collection, not the task's list


@dataclass(frozen=True)
class Given(Generic[T]):
    """One answer of a file."""

    key: str
    value: T
    line: int = 0  # 0: unknown


@dataclass(frozen=True)
class Coverage:
    """What a file of answers covers."""

    expected: int  # items of the task
    given: int  # answers in the file
    matched: int  # items that have an answer
    duplicate: int = 0  # answers whose id another answer has too
    unknown: int = 0  # answers to no item
    unreadable: int = 0  # matched answers that say nothing the benchmark understands

    @property
    def missing(self) -> int:
        """Items without an answer."""
        return self.expected - self.matched

    @property
    def complete(self) -> bool:
        return self.missing == 0

    @classmethod
    def whole(cls, given: int) -> Coverage:
        """Where the file itself is the list of items."""
        return cls(given, given, given)

    def read(self, unreadable: int) -> Coverage:
        return replace(self, unreadable=unreadable)

    def to_json(self) -> dict[str, int]:
        counts = asdict(self)
        return {"expected": counts.pop("expected"), "given": counts.pop("given"),
                "matched": counts.pop("matched"), "missing": self.missing, **counts}  # fmt: skip

    def __str__(self) -> str:
        return " · ".join(f"{name} {count}" for name, count in self.to_json().items())


def match(
    keys: Sequence[str], given: Sequence[Given[T]], path: Path, *, lenient: bool = False
) -> tuple[list[T | None], Coverage]:
    """The answer to each key, None where there is none, and what the file covers."""
    if not given:
        raise ValueError(f"{path} holds no answers")
    expected = set(keys)
    unknown = [one for one in given if one.key not in expected]
    if len(unknown) == len(given):
        theirs, ours = ", ".join(one.key for one in given[:3]), ", ".join(list(keys)[:2])
        raise ValueError(f"{path}: no answer has the id of an item (the file's ids: {theirs}; ours: {ours}, …)")
    doubled = _doubled(given)
    if not lenient:
        refuse(doubled, path, "has an id that stood there before", "the last of each counts with --lenient")
        refuse(unknown, path, "has an id that no item has", "they are left out with --lenient")
    found = {one.key: one.value for one in given}
    values = [found.get(key) for key in keys]
    matched = sum(key in found for key in keys)
    return values, Coverage(len(keys), len(given), matched, len(doubled), len(unknown))


def refuse(wrong: Sequence[Given[T]], path: Path, what: str, way_out: str) -> None:
    """One line about answers that cannot be matched, naming the first."""
    if wrong:
        first = wrong[0]
        where = f", line {first.line}" if first.line else ""
        others = f" (and {len(wrong) - 1} others)" if len(wrong) > 1 else ""
        raise ValueError(f"{path}{where}: answer {first.key!r}{others} {what}; {way_out}")


def _doubled(given: Sequence[Given[T]]) -> list[Given[T]]:
    seen: set[str] = set()
    doubled = []
    for one in given:
        if one.key in seen:
            doubled.append(one)
        seen.add(one.key)
    return doubled


def doubles(given: Sequence[Given[T]]) -> tuple[list[Given[T]], int]:
    """Answers that repeat an earlier one word for word, and how many keys have several different answers."""
    seen: set[tuple[str, T]] = set()
    repeated = []
    for one in given:
        if (one.key, one.value) in seen:
            repeated.append(one)
        seen.add((one.key, one.value))
    several = sum(count > 1 for count in Counter(key for key, _ in seen).values())
    return repeated, several


def known_images(truth: Iterable[str], described: Iterable[str]) -> set[str]:
    """The images that should be described: those of the truth, unless it is a collection of far more of them."""
    known, named = set(truth), set(described)
    return known if len(known) <= DATABASE * max(1, len(named)) else named
