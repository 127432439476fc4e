"""A law, and how a list of them is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["OK", "Law", "check_laws", "run_law"]

OK = "ok"

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Law(Generic[Subject]):
    """What must hold for every subject."""

    name: str  # as a sentence
    check: Callable[[Subject], None]  # raises AssertionError where it does not hold
    applies: Callable[[Subject], bool] = lambda _: True  # whether it says anything about a subject

    def __str__(self) -> str:
        return self.name


def check_laws(who: str, laws: Iterable[Law[Subject]], subject: Subject, *, verbose: bool = False) -> list[str]:
    """Check each law that applies; the names of those that hold.

    Args:
        who: the subject's name, for errors.
        laws: in the order in which they are checked.
        subject: what is checked.
        verbose: print a line per law.

    Raises:
        AssertionError: with the subject and the first law that does not hold; whatever else a check raises counts too.
    """
    held = []
    for law in laws:
        if not law.applies(subject):
            continue
        try:
            law.check(subject)
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            raise AssertionError(f"{who} breaks the law {law.name!r}: {kind}{error}") from error
        held.append(law.name)
        if verbose:
            print(f"{who}: {law.name}")
    return held


def run_law(law: Law[Subject], subject: Subject) -> str:
    """OK, or what is wrong."""
    try:
        law.check(subject)
    except Exception as error:  # whatever the subject raises breaks the law
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        return kind + (" ".join(str(error).split()) or "it does not hold")
    return OK
