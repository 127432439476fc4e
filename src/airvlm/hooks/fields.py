"""The fields of a method: what each means, which values it may have, and in which reading it acts.

`setting(0.25, "share of ...", low=0, high=1)` is a dataclass field whose metadata hold that; `check` refuses whatever
the type hint or the metadata do not allow. A plain field without metadata is checked by its hint alone. Knows nothing
of any method.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["check", "check_effect", "check_given", "default_of", "problem", "setting", "without_effect"]

T = TypeVar("T")
LARGEST = 1e6  # no real number of a field means anything beyond this; whole ones may be seeds


def setting(
    default: T,
    doc: str,
    *,
    low: float | None = None,  # smallest value
    high: float | None = None,  # largest value
    above: float | None = None,  # all values are larger than this
    readings: tuple[str, ...] = (),  # those in which the field acts; () is all
    span: bool = False,  # (first, one after the last) of the decoder's layers
    off: float | None = None,  # the value at which the method does nothing
    search: tuple[Any, ...]
    | None = None,  # what a calibration tries: (low, high) of numbers, or all of some words
) -> T:
    """A field of a method, with its meaning and the values it may have."""
    facts = {
        "doc": doc,
        "low": low,
        "high": high,
        "above": above,
        "readings": readings,
        "span": span,
        "off": off,
        "search": search,
    }
    given = {
        name: fact for name, fact in facts.items() if fact is not None and fact != () and fact is not False
    }
    made: Any = field(default=default, metadata=given)
    return made  # a dataclass takes the Field for the default that it holds


def default_of(one: Field[Any]) -> Any:
    """A field's default; MISSING where it has none."""
    return one.default_factory() if one.default_factory is not MISSING else one.default


def check(method: Any) -> None:
    """Refuse a value of another kind, out of range, or not finite, with the field's name."""
    kind: Any = type(method)
    hints = _hints(kind)
    for one in fields(method):
        wrong = problem(getattr(method, one.name), hints.get(one.name, Any), one.metadata)
        if wrong:
            raise ValueError(f"{one.name} = {getattr(method, one.name)!r}: {wrong}")


def problem(value: Any, hint: Any, facts: Mapping[str, Any]) -> str | None:
    """What is wrong with a value, in words; None when nothing is."""
    span = "give (first, one after the last), counted from 0"
    if not _fits(value, hint):
        return span if facts.get("span") else _wanted(hint)
    if facts.get("span") and value is not None and not 0 <= value[0] < value[1]:
        return span
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if isinstance(number, float) and not abs(number) <= LARGEST:  # nor is nan
            return f"give a finite number, of at most {LARGEST:g}"
        if isinstance(number, int) and abs(number) >= 2**63:
            return "give a whole number that 64 bits can hold"
        if "above" in facts and not number > facts["above"]:
            return f"it must be above {facts['above']:g}"
        if "low" in facts and "high" in facts and not facts["low"] <= number <= facts["high"]:
            return f"give a value between {facts['low']:g} and {facts['high']:g}"
        if "low" in facts and number < facts["low"]:
            return "it cannot be negative" if facts["low"] == 0 else f"it cannot be below {facts['low']:g}"
        if "high" in facts and number > facts["high"]:
            return f"it cannot be above {facts['high']:g}"
    return None


def check_effect(method: Any) -> None:
    """Refuse a field that was set and has no effect in the method's reading, and say in which it has."""
    changed = [one.name for one in fields(method) if getattr(method, one.name) != default_of(one)]
    check_given(method, changed)


def check_given(method: Any, names: Iterable[str]) -> None:
    """The same of fields that were given by name, whatever their value."""
    for name in without_effect(method, names):
        [one] = [one for one in fields(method) if one.name == name]
        acts = " and ".join(f"{method.name}-{reading}" for reading in one.metadata["readings"])
        raise ValueError(
            f"{name} = {getattr(method, name)!r} has no effect in the {method.reading_name} reading of {method.name}: "
            f"it acts in {acts}"
        )


def without_effect(method: Any, names: Iterable[str]) -> list[str]:
    """Which of these fields do nothing in the method's reading."""
    acts_in = {one.name: one.metadata.get("readings", ()) for one in fields(method)}
    reading = method.reading_name
    return [name for name in names if reading and acts_in.get(name) and reading not in acts_in[name]]


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:  # a hint that only a type checker can resolve: ranges are checked all the same
        return {}


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in inner)
    if hint in (int, float):
        return isinstance(value, (int, float) if hint is float else int) and not isinstance(value, bool)
    if origin is tuple and isinstance(value, tuple):
        if inner[1:] == (...,):
            return all(_fits(each, inner[0]) for each in value)
        return len(value) == len(inner) and all(_fits(*pair) for pair in zip(value, inner, strict=True))
    kind = origin or hint
    return not isinstance(kind, type) or isinstance(value, kind)


def _wanted(hint: Any) -> str:
    """What to give, in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [_wanted(each) for each in inner if each is not type(None)]
        return " or ".join(kinds) + (", or none" if type(None) in inner else "")
    if origin is Literal:
        return f"choose one of {', '.join(map(str, inner))}"
    if origin is tuple:
        return (
            f"give {len(inner)} values in parentheses"
            if inner[1:] != (...,)
            else "give values in parentheses"
        )
    words = {
        int: "give a whole number",
        float: "give a number",
        bool: "give true or false",
        str: "give a word",
    }
    return words.get(hint, f"a value of another kind is needed, {hint}")
