"""The options of a method: what each means and which values it accepts.

`option(0.25, "share of ...", low=0, high=1)` is a dataclass field that carries this in its metadata; `check_options`
refuses whatever the type hint or the metadata do not allow. A plain field is checked by its type hint alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import field, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["check_options", "option", "value_problem"]

T = TypeVar("T")
LARGEST = 1e6  # no real-valued option is meaningful beyond this; integers may be seeds
SPAN = "give (first, one after the last), counted from 0"


def option(
    default: T,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    span: bool = False,
    off: float | None = None,
    search: tuple[Any, ...] | None = None,
    file: bool = False,
) -> T:
    """An option of a method.

    Args:
        default: its default value.
        help: what it means, in one line.
        low: smallest value.
        high: largest value.
        above: all values are larger than this.
        span: it is (first, one after the last) of the decoder's layers.
        off: the value at which the method does nothing.
        search: what a calibration tries: (low, high) of a number, or all of some words.
        file: it names a file, which a request over a network may not do.
    """
    facts = {
        "help": help,
        "low": low,
        "high": high,
        "above": above,
        "span": span,
        "off": off,
        "search": search,
        "file": file,
    }
    given = {name: fact for name, fact in facts.items() if fact is not None and fact is not False}
    made: Any = field(default=default, metadata=given)
    return made  # typed as its default, which is what a dataclass makes of it


def check_options(method: Any) -> None:
    """Refuse a value of the wrong type, out of range, or not finite, naming the option."""
    kind: Any = type(method)
    hints = _type_hints(kind)
    for one in fields(method):
        value = getattr(method, one.name)
        problem = value_problem(value, hints.get(one.name, Any), one.metadata)
        if problem:
            raise ValueError(f"{one.name} = {value!r}: {problem}")


def value_problem(value: Any, hint: Any, facts: Mapping[str, Any]) -> str | None:
    """What is wrong with a value, or None."""
    if not _has_type(value, hint):
        return SPAN if facts.get("span") else _expected(hint)
    if facts.get("span") and value is not None and not 0 <= value[0] < value[1]:
        return SPAN
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if isinstance(number, float) and not abs(number) <= LARGEST:  # excludes nan as well
            return f"give a finite number of at most {LARGEST:g}"
        if isinstance(number, int) and abs(number) >= 2**63:
            return "give an integer that fits into 64 bits"
        if "above" in facts and not number > facts["above"]:
            return f"it must be above {facts['above']:g}"
        if "low" in facts and "high" in facts and not facts["low"] <= number <= facts["high"]:
            return f"give a value between {facts['low']:g} and {facts['high']:g}"
        if "low" in facts and number < facts["low"]:
            return "it cannot be negative" if facts["low"] == 0 else f"it cannot be below {facts['low']:g}"
        if "high" in facts and number > facts["high"]:
            return f"it cannot be above {facts['high']:g}"
    return None


@cache
def _type_hints(kind: Hashable) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:  # a hint that only a type checker can resolve: ranges are checked all the same
        return {}


def _has_type(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_has_type(value, each) for each in inner)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in inner)
    if hint in (int, float):
        return isinstance(value, (int, float) if hint is float else int) and not isinstance(value, bool)
    if origin is tuple and isinstance(value, tuple):
        if inner[1:] == (...,):
            return all(_has_type(each, inner[0]) for each in value)
        return len(value) == len(inner) and all(_has_type(*pair) for pair in zip(value, inner, strict=True))
    kind = origin or hint
    return not isinstance(kind, type) or isinstance(value, kind)


def _expected(hint: Any) -> str:
    """What to give instead, in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [_expected(each) for each in inner if each is not type(None)]
        return " or ".join(kinds) + (", or none" if type(None) in inner else "")
    if origin is Literal:
        return f"choose one of {', '.join(map(str, inner))}"
    if origin is tuple:
        return "give values in parentheses" if inner[1:] == (...,) else f"give {len(inner)} values in parentheses"
    words = {int: "give an integer", float: "give a number", bool: "give true or false", str: "give a string"}
    return words.get(hint, f"expected {hint}")
