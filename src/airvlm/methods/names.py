"""The methods by name: what the command line and the evaluation spell, and what it makes.

`parse_method("air-paper:keep=3,strength=0.2")` is AIR.paper(keep=3, strength=0.2), and "air+vaf" is both at once. Each
method is one file beside this one; packages bring their own by entry points of the group `airvlm.methods`. This file
knows their names only.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from airvlm.hooks.fields import check_given
from airvlm.hooks.method import Method
from airvlm.methods.air.config import AIR
from airvlm.methods.air.controls import CONTROLS, RENAMED, control
from airvlm.methods.biases import Shorter, YesNo
from airvlm.methods.composed import Composed
from airvlm.methods.memvr import MemVR
from airvlm.methods.vaf import VAF
from airvlm.methods.vcd import VCD
from airvlm.registry import Registry, imported, split_commas

__all__ = ["METHODS", "MethodInfo", "label_of", "parse_fields", "parse_method"]


@dataclass(frozen=True)
class MethodInfo:
    """One name of the registry."""

    name: str
    make: Callable[..., Method] | None  # fields by keyword -> method; None for the model as it is
    mechanism: str  # what it does, in one line
    publication: str = ""  # where it was published
    forwards: str = "1"  # what it costs, in forward passes
    package: str = "airvlm"  # the distribution that brings it

    @property
    def default(self) -> Method | None:
        return None if self.make is None else self.make()


def _info(name: str, make: Callable[..., Method], kind: type[Method], mechanism: str = "") -> MethodInfo:
    return MethodInfo(name, make, mechanism or kind.mechanism, kind.publication, kind.forwards)


def _controlled(name: str, **fields: Any) -> Method:
    return control(name, AIR(**fields))


_LISTED = [
    MethodInfo("vanilla", None, "the model as it is"),
    _info("air", AIR, AIR, "the reading of AIR that measures best here: transported"),
    _info(
        "air-transported",
        AIR.transported,
        AIR,
        "projects crop tokens onto the visual tokens they match, in prefill",
    ),
    _info("air-paper", AIR.paper, AIR, "the printed equation, on the retained visual tokens, in prefill"),
    _info(
        "air-lineage",
        AIR.lineage,
        AIR,
        "a memory of prototypes and crops, at all token positions, where a layer is unsure",
    ),
    _info("memvr", MemVR, MemVR),
    _info("vaf", VAF, VAF),
    _info("vcd", VCD, VCD),
    _info("shorter", Shorter, Shorter),
    _info("yesno", YesNo, YesNo),
    *[
        _info(f"air-{name}", partial(_controlled, name), AIR, f"control of air: {meaning}")
        for name, (meaning, _) in CONTROLS.items()
    ],
]


def _adopt(name: str, thing: Any, package: str) -> MethodInfo:
    """What a name from outside stands for: a Method class, a preset of one (Class.preset), or one ready-made."""
    kind: Any = thing if isinstance(thing, type) else getattr(thing, "__self__", None)
    make: Callable[..., Method] = thing
    if isinstance(thing, Method):
        kind, make = type(thing), partial(dataclasses.replace, thing)
    if not (isinstance(kind, type) and issubclass(kind, Method) and dataclasses.is_dataclass(kind)):
        raise TypeError(f"{thing!r} is not a Method: a frozen dataclass that derives from airvlm.Method")
    if not kind.name:
        raise TypeError(f"{kind.__qualname__} has no name: give it `name: ClassVar[str] = ...`")
    info = MethodInfo(
        name, make, kind.mechanism or _first_line(kind), kind.publication, kind.forwards, package
    )
    if not isinstance(info.default, Method):
        raise TypeError(f"{thing!r} makes no Method")
    return info


def _first_line(kind: type[Any]) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]


METHODS: Registry[MethodInfo] = Registry(
    "airvlm.methods",
    {info.name: info for info in _LISTED},
    _adopt,
    renamed={f"air-{old}": f"air-{new}" for old, new in RENAMED.items()},
)


# -- methods as the command line spells them

_PATH = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"  # package.module:Class


def parse_method(text: str, *, local: bool = True) -> Method | None:
    """The method that a text spells; None for the model as it is ("vanilla", "none").

    `air`, `air-paper:keep=3,strength=0.2`  a name of the registry, fields after a colon
    `package.module:Class:field=value`      a Method of anybody's, imported
    `@calibration.json`                     what Method.load reads
    `air+vaf`                               several at once, in that order

    local=False: the text comes over a network, so that no module is imported and no file read for it.
    """
    text = text.strip()
    parts = parts_of(text)
    if len(parts) > 1:
        found = [parse_method(part, local=local) for part in parts]
        return Composed(*[method for method in found if method is not None])
    if text.startswith("@"):
        if not local:
            raise ValueError(f"{text}: files are not read here; give the method's fields")
        return _from_file(text)
    name, _, rest = text.partition(":")
    name = "vanilla" if name == "none" else name
    if name in METHODS:
        make = METHODS[name].make
    elif re.match(rf"{_PATH}(?::|$)", text) and local:
        name, _, rest = _target(text)
        make = METHODS.adopt(name, imported(name), name.split(".")[0]).make
    else:
        raise ValueError(METHODS.unknown("method", name))
    fields = parse_fields(rest, text)
    if make is None:
        if fields:
            raise ValueError(f"{text!r}: the model as it is has no fields to set")
        return None
    return _made(make, fields, name)


def parts_of(text: str) -> list[str]:
    """The methods of a composition, each as it is spelled; a single one is its own part."""
    # A value may hold a + too, so that only one before a method joins.
    names = "|".join(map(re.escape, METHODS.names))
    return re.split(rf"\+(?=(?:{names})(?:[:+]|$)|{_PATH}(?:[:+]|$)|@)", text)


def label_of(text: str) -> str:
    """A method's text with today's names: what tables and folders call it."""
    for old, new in RENAMED.items():
        text = text if text.startswith("@") else re.sub(rf"\b{re.escape(old)}\b", new, text)
    return text


def _target(text: str) -> tuple[str, str, str]:
    """`package.module:Class:fields` -> `package.module:Class`, ":", fields."""
    match = re.match(_PATH, text)
    assert match is not None, "the caller has matched it"
    return match[0], ":", text[match.end() + 1 :]


def _made(make: Callable[..., Method], values: dict[str, Any], name: str) -> Method:
    make().check_names(values, name)
    method = make(**values)
    check_given(method, values)
    return method


def _from_file(text: str) -> Method:
    path, _, rest = text[1:].rpartition(":") if re.search(r":[^:/\\]*=", text) else (text[1:], "", "")
    method, values = Method.load(path), parse_fields(rest, text)
    method.check_names(values, path)
    changed = dataclasses.replace(method, **values)
    check_given(changed, values)
    return changed


def parse_fields(rest: str, text: str) -> dict[str, Any]:
    """`keep=3,layers=(2,4)` -> values by name."""
    values: dict[str, Any] = {}
    for written in split_commas(rest):
        name, equals, value = (piece.strip() for piece in written.partition("="))
        if not equals:
            raise ValueError(f"{text!r}: write fields as name=value, not {written!r}")
        if not value:
            raise ValueError(f"{text!r}: {name}= has no value; write {name}=none to leave it unset")
        if name in values:
            raise ValueError(f"{text!r}: {name} is given twice")
        values[name] = _value(value)
    return values


def _value(text: str) -> Any:
    """A number, a tuple, true, false or none; "2-4" and "2:4" are spans; anything else is a word."""
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
