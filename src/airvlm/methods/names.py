"""The methods by name: what the command line and the evaluation spell, and the method that it means.

`get_method("crop-blend:keep=3,weight=0.2")` is CropBlend(keep=3, weight=0.2), and "crop-blend+vaf" is both at once.
Packages add their own methods by entry points of the group `airvlm.methods`.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from airvlm.methods.base import Method
from airvlm.methods.composed import Composed
from airvlm.methods.controls import Wrapper
from airvlm.registry import Registry, import_object

__all__ = ["METHODS", "build_method", "get_method", "list_methods", "parse_method"]

# Modules of this package that define methods, by where these act; a module's methods are the classes of its `__all__`.
MODULES = (
    *("air", "crop_blend"),  # visual tokens and crops
    *("vaf", "pai", "mlihe", "spin", "adhh", "var"),  # attention
    *("memvr", "rudder", "vista", "vti", "damo", "project_away"),  # hidden states
    *(
        "vcd",
        "m3id",
        "sid",
        "deco",
        "dola",
        "icd",
        "avisc",
        "marine",
        "crg",
        "ritual",
        "code",
        "crops",
        "opera",
        "hulluedit",
    ),  # logits
    *("nullu",),  # weights
    *("vicrop",),  # input
    *("direction_controls", "view_controls"),  # controls of directions and views
    *("biases", "controls"),
)
VANILLA = "vanilla"  # the model as it is


def _check_class(thing: Any) -> type[Method]:
    """What an entry point or a path names, which must be a Method class."""
    if not (isinstance(thing, type) and issubclass(thing, Method) and dataclasses.is_dataclass(thing)):
        raise TypeError(f"{thing!r} is not a method: a frozen dataclass that derives from airvlm.Method")
    if not thing.name:
        raise TypeError(f"{thing.__qualname__} has no name: give it `name: ClassVar[str] = ...`")
    thing()  # its defaults must be valid
    return thing


def _adopt(name: str, thing: Any, package: str) -> type[Method]:
    kind = _check_class(thing)
    if kind.name != name:
        raise TypeError(f"its name is {kind.name!r}, and the entry point's name must be the same")
    return kind


def _find_built_in() -> dict[str, type[Method]]:
    found: dict[str, type[Method]] = {}
    for name in MODULES:
        module = import_module(f"airvlm.methods.{name}")
        kinds = [getattr(module, public) for public in module.__all__]
        found |= {k.name: k for k in kinds if isinstance(k, type) and issubclass(k, Method) and k.name}
    return found


METHODS: Registry[type[Method]] = Registry("airvlm.methods", _find_built_in, _adopt)


def list_methods() -> list[str]:
    """The names of all methods, those of installed packages included."""
    return list(METHODS)


def get_method(method: Method | str | None) -> Method | None:
    """A method from an object or from its spelling; None (or "vanilla") is the model as it is.

    Args:
        method: a method, a string as the command line takes it (see `parse_method`), or None.
    """
    if method is None or isinstance(method, Method):
        return method
    if isinstance(method, str):
        return parse_method(method)
    if isinstance(method, type) and issubclass(method, Method):
        raise TypeError(f"{method.__name__} is a class; pass an object: {method.__name__}()")
    raise TypeError(f"a method is an object, a string or None, not {type(method).__name__}")


def build_method(name: str, options: Mapping[str, Any]) -> Method:
    """A method of the registry with these options. Nothing is imported by name and no file is opened.

    Args:
        name: as in the registry, or "composed".
        options: values by name.
    """
    kind: type[Method] | None = Composed if name == "composed" else METHODS.get(name)
    if kind is None:
        raise ValueError(METHODS.unknown("method", name))
    _check_names(kind, options, name)
    return kind(**options)


def _check_names(kind: type[Method], given: Iterable[str], who: str) -> None:
    known = [f.name for f in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
            raise ValueError(f"{who} has no option {name!r}; {hint}")


# -- methods as the command line spells them

_PATH = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"  # package.module:Class
_CLOSING = {"(": ")", "[": "]"}


def parse_method(text: str) -> Method | None:
    """The method that a text spells; None for the model as it is.

    For text that the user of this machine wrote: it may import a module or read a file. A request over a network is
    built by `Method.from_json` instead.

    Args:
        text: one of
            `crop-blend`, `air:keep=3,strength=0.2`  a name of the registry, options after a colon
            `random-crops(crop-blend:keep=6)`        a control around a method
            `crop-blend+vaf`                         several at once, in that order
            `package.module:Class:option=value`      a method of yours, imported
            `@calibration.json`                      what `Method.load` reads
    """
    text = text.strip()
    parts = split_top_level(text, "+")
    if len(parts) > 1:
        found = [method for part in parts if (method := parse_method(part)) is not None]
        if len(found) < len(parts):
            raise ValueError(f"{text!r}: vanilla is the model as it is and cannot be combined with a method")
        return Composed(*found)
    if text.startswith("@"):
        return _from_file(text)
    wrapper = re.match(r"([\w-]+)\((.*)\)(?::(.*))?$", text, re.DOTALL)
    if wrapper:
        return _wrap(text, *wrapper.groups())
    name, _, rest = text.partition(":")
    if name == VANILLA:
        if rest:
            raise ValueError(f"{text!r}: vanilla is the model as it is and has no options")
        return None
    path = re.match(rf"({_PATH})(?::(.*))?$", text, re.DOTALL)
    # A module may have the name of a method: `pai:PAI` is a class of it, `pai:alpha=0.5` an option of the method
    if path and (name not in METHODS or find_spec(name)):
        kind = _check_class(import_object(path[1]))
        if METHODS.setdefault(kind.name, kind) is not kind:
            raise ValueError(f"{path[1]}: its name {kind.name!r} is that of another method; give it a name of its own")
        options = parse_options(path[2] or "", text)
        _check_names(kind, options, path[1])
        return kind(**options)
    return build_method(name, parse_options(rest, text))


def _wrap(text: str, name: str, inner: str, rest: str | None) -> Method:
    kind = METHODS.get(name)
    if kind is None:
        raise ValueError(METHODS.unknown("method", name))
    if not issubclass(kind, Wrapper):
        raise ValueError(f"{text!r}: {name} does not take another method; write its options as {name}:option=value")
    method = parse_method(inner)
    if method is None:
        raise ValueError(f"{text!r}: {name} needs a method to control, not vanilla")
    return build_method(name, {"method": method, **parse_options(rest or "", text)})


def _from_file(text: str) -> Method:
    path, _, rest = text[1:].rpartition(":") if re.search(r":[^:/\\]*=", text) else (text[1:], "", "")
    method, options = Method.load(path), parse_options(rest, text)
    _check_names(type(method), options, path)
    return dataclasses.replace(method, **options)


def parse_options(rest: str, text: str) -> dict[str, Any]:
    """`keep=3,layers=(2,4)` -> values by name. `text` is the whole spelling, for errors."""
    values: dict[str, Any] = {}
    for written in split_top_level(rest, ","):
        name, equals, value = (piece.strip() for piece in written.partition("="))
        if not equals:
            raise ValueError(f"{text!r}: write options as name=value, not {written!r}")
        if not value:
            raise ValueError(f"{text!r}: {name}= has no value; write {name}=none to leave it unset")
        if name in values:
            raise ValueError(f"{text!r}: {name} is given twice")
        values[name] = _parse_value(value)
    return values


def _parse_value(text: str) -> Any:
    """A number, a tuple, true, false or none; "2-4" and "2:4" are spans; anything else is a string."""
    words = {"none": None, "null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        first, _, last = text.replace(":", "-").partition("-")
        if first.isdigit() and last.isdigit():
            return int(first), int(last)
        return float(text) if text.lower() in ("nan", "inf", "-inf", "infinity", "-infinity") else text
    return tuple(value) if isinstance(value, list) else value


def split_top_level(text: str, separator: str) -> list[str]:
    """The parts between separators outside brackets. A + inside a number (`1e+5`, `=+3`) separates nothing."""
    parts, start, closing = [], 0, ""
    for i, character in enumerate(text):
        if character in _CLOSING:
            closing += _CLOSING[character]
        elif closing and character == closing[-1]:
            closing = closing[:-1]
        elif character == separator and not closing and not (separator == "+" and _is_sign(text, i)):
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return parts if separator == "+" else [part for part in parts if part]


def _is_sign(text: str, i: int) -> bool:
    """Whether the + at position i is the sign of a number."""
    return text[i + 1 : i + 2].isdigit() and text[i - 1 : i].lower() in ("=", "e")
