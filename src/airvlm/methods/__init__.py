"""The methods by name: what the command line and the evaluation spell, and what it makes.

`parse_method("air-paper:keep=3,strength=0.2")` is AIR.paper(keep=3, strength=0.2), and "air+vaf" is both at once. Each
method is one file beside this one; this file knows their names only.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from airvlm.hooks.method import Method
from airvlm.hooks.run import NeverFired, Run
from airvlm.methods.air.config import AIR
from airvlm.methods.air.controls import CONTROLS, Shorter, YesNo, control
from airvlm.methods.composed import Composed
from airvlm.methods.memvr import MemVR
from airvlm.methods.vaf import VAF
from airvlm.methods.vcd import VCD

__all__ = [
    "AIR",
    "METHODS",
    "VAF",
    "VCD",
    "Composed",
    "MemVR",
    "Method",
    "MethodInfo",
    "NeverFired",
    "Run",
    "Shorter",
    "YesNo",
    "parse_method",
]


@dataclass(frozen=True)
class MethodInfo:
    """One name of the registry."""

    name: str
    make: Callable[..., Method] | None  # fields by keyword -> method; None for the model as it is
    mechanism: str  # what it does, in one line
    publication: str = ""  # where it was published
    forwards: str = "1"  # what it costs, in forward passes

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
        "carries crop tokens to the visual tokens they match, in prefill",
    ),
    _info("air-paper", AIR.paper, AIR, "the printed equation, on the retained visual rows, in prefill"),
    _info(
        "air-lineage",
        AIR.lineage,
        AIR,
        "a memory of prototypes and crops, at all rows, where a layer is unsure",
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
METHODS: dict[str, MethodInfo] = {info.name: info for info in _LISTED}


def parse_method(text: str) -> Method | None:
    """`name` or `name:field=value,field=value` -> the method; None for the model as it is ("vanilla", "none").

    Several joined by + act together, in that order.
    """
    # A value may hold a + too, so that only one before a method's name joins.
    parts = re.split(rf"\+(?=(?:{'|'.join(map(re.escape, METHODS))})(?:[:+]|$))", text.strip())
    if len(parts) > 1:
        return Composed(*[method for part in parts if (method := parse_method(part)) is not None])
    name, _, rest = text.strip().partition(":")
    name = "vanilla" if name == "none" else name
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(METHODS)}")
    fields = dict(_field(part, text) for part in _parts(rest))
    make = METHODS[name].make
    if make is None:
        if fields:
            raise ValueError(f"{text!r}: the model as it is has no fields to set")
        return None
    known = [f.name for f in dataclasses.fields(make())]
    for field in fields:
        if field not in known:
            raise ValueError(f"{name} has no field {field!r}; it has {', '.join(known) or 'none'}")
    return make(**fields)


def _parts(rest: str) -> list[str]:
    """Split at commas outside parentheses: `layers=(2,4),keep=3` has two parts."""
    parts, depth, part = [], 0, ""
    for letter in rest:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    return [part for part in (*parts, part) if part.strip()]


def _field(part: str, text: str) -> tuple[str, Any]:
    name, equals, value = (piece.strip() for piece in part.partition("="))
    if not equals:
        raise ValueError(f"{text!r}: write fields as name=value, not {part.strip()!r}")
    return name, _value(value)


def _value(text: str) -> Any:
    """A number, a tuple, true, false or none; "2-4" and "2:4" are spans; anything else is a word."""
    words = {"none": None, "null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        first, _, last = text.replace(":", "-").partition("-")
        return (int(first), int(last)) if first.isdigit() and last.isdigit() else text
    return tuple(value) if isinstance(value, list) else value
