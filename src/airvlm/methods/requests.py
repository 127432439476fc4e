"""Methods that came over a network: built from JSON against the registry, within limits.

A request can neither import a module nor open a file: method names are looked up in the registry, a word is accepted
only where the option's type lists it, and the spelling of the command line is never parsed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from airvlm.methods.base import Method
from airvlm.methods.composed import Composed
from airvlm.methods.controls import OtherImage
from airvlm.methods.direction_controls import OtherDirections
from airvlm.methods.names import METHODS, build_method

__all__ = ["MethodLimits", "method_from_names", "method_from_request"]

VANILLA = "vanilla"
LONGEST = 64  # characters of a name, an option or a word; values of a list
COSTLY = {"tokens": 512, "candidates": 16}  # options that multiply the work of a request, and their largest values


@dataclass(frozen=True)
class MethodLimits:
    """What a request may ask of a method. A method that the server's operator chose is not limited.

    Args:
        crops: largest `num_crops`.
        parts: methods that may act at once, wrappers included.
        depth: how deep wrappers and compositions may be nested.
    """

    crops: int = 64
    parts: int = 4
    depth: int = 3


def method_from_request(
    setting: Any, default: Method | None = None, limits: MethodLimits = MethodLimits()
) -> Method | None:
    """The method that a request asks for; None is the model as it is. Raises ValueError for anything else.

    Args:
        setting: the request's JSON value: null or true (the default), false (vanilla), or an object with the one key
            "method": a name of the registry, an object with a "name" and options, an object of options that change the
            default, or null (vanilla).
        default: the method of requests that choose none.
        limits: what a request may ask for.
    """
    if setting is None or setting is True:
        return default
    if setting is False:
        return None
    if not isinstance(setting, Mapping) or set(setting) != {"method"}:
        raise ValueError('give false, or {"method": {"name": "crop-blend", "weight": 0.4}}')
    chosen = setting["method"]
    if chosen is None:
        return None
    if isinstance(chosen, str):
        return method_from_names([chosen], limits)
    if not isinstance(chosen, Mapping):
        raise ValueError('method: give a name, or an object as {"name": "crop-blend", "weight": 0.4}')
    if chosen.get("name") == VANILLA:
        if len(chosen) > 1:
            raise ValueError("method: vanilla is the model as it is and has no options")
        return None
    builder = _Builder(limits)
    if "name" in chosen:
        return builder.build(chosen)
    if default is None:
        raise ValueError("method: it has no name, and there is no default method whose options it could change")
    own = {field.name: getattr(default, field.name) for field in fields(default)}
    return _build(default.name, own | builder.options(type(default), default.name, chosen, 1))


def method_from_names(names: Sequence[str], limits: MethodLimits = MethodLimits()) -> Method | None:
    """Methods of the registry with their defaults, composed if there are several; ["vanilla"] is None."""
    if list(names) == [VANILLA]:
        return None
    builder = _Builder(limits)
    parts = [builder.build({"name": name}, 1 if len(names) == 1 else 2) for name in names]
    return parts[0] if len(parts) == 1 else Composed(*parts)


class _Builder:
    """Builds the methods of one request and counts them."""

    def __init__(self, limits: MethodLimits) -> None:
        self.limits = limits
        self.parts = 0

    def build(self, data: Mapping[str, Any], depth: int = 1) -> Method:
        name = data["name"]
        if not isinstance(name, str) or len(name) > LONGEST:
            raise ValueError("a method's name is a short string")
        kind = Composed if name == Composed.name else METHODS.get(name)
        if kind is None:
            raise ValueError(f"unknown method {_shorten(name)}; there are {', '.join(METHODS)}")
        if kind in (OtherImage, OtherDirections):
            raise ValueError(f"{name} uses another image of the batch, which may belong to another client")
        if kind is not Composed:
            self.parts += 1
        if self.parts > self.limits.parts:
            raise ValueError(f"more than {self.limits.parts} methods at once; this server allows no more")
        if depth > self.limits.depth:
            raise ValueError(f"methods nested deeper than {self.limits.depth}; this server allows no more")
        options = {key: value for key, value in data.items() if key != "name"}
        method = _build(name, self.options(kind, name, options, depth))
        for field in fields(method):
            if field.metadata.get("file") and not getattr(method, field.name):
                raise ValueError(f"{name} needs its {field.name}, a file that only the server's operator can name")
        return method

    def options(self, kind: type[Method], who: str, given: Mapping[str, Any], depth: int) -> dict[str, Any]:
        hints = get_type_hints(kind)
        files = [field.name for field in fields(kind) if field.metadata.get("file")]
        known = [field.name for field in fields(kind) if field.name not in files]
        for key in given:
            if key in files:
                raise ValueError(f"{who}.{key} names a file, which a request cannot do")
            if key not in known:
                raise ValueError(f"{who} has no option {_shorten(key)}; it has {', '.join(known) or 'none'}")
        values = {key: self._value(f"{who}.{key}", value, hints.get(key), depth) for key, value in given.items()}
        for key, most in {"num_crops": self.limits.crops, **COSTLY}.items():
            if not isinstance(number := values.get(key, 0), int) or number > most:
                raise ValueError(f"{who}.{key}: give an integer of at most {most}")
        return values

    def _value(self, where: str, value: Any, hint: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            if "name" not in value:
                raise ValueError(f"{where}: a method needs a name")
            return self.build(value, depth + 1)
        if isinstance(value, list):
            if len(value) > LONGEST:
                raise ValueError(f"{where}: more than {LONGEST} values")
            if any(isinstance(each, list) and any(isinstance(x, list | Mapping) for x in each) for each in value):
                raise ValueError(f"{where}: the lists of a list hold plain values only")
            return tuple(self._value(where, each, hint, depth) for each in value)
        if isinstance(value, str) and value not in _words(hint):
            # also where the type is any string: it could be a path
            words = ", ".join(sorted(_words(hint)))
            raise ValueError(f"{where}: " + (f"choose one of {words}" if words else "a request cannot give a string"))
        return value


def _build(name: str, options: Mapping[str, Any]) -> Method:
    try:
        return build_method(name, options)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def _words(hint: Any) -> set[str]:
    """The words that a type lists: those of its Literals."""
    origin = get_origin(hint)
    if origin is Literal:
        return {word for word in get_args(hint) if isinstance(word, str)}
    if origin in (Union, UnionType, tuple):
        return set().union(*(_words(part) for part in get_args(hint)))
    return set()


def _shorten(text: Any) -> str:
    text = str(text)
    return repr(text if len(text) <= LONGEST else text[:LONGEST] + "...")
