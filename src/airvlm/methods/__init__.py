"""The methods by name: what the command line and the evaluation spell, and what it makes.

`parse_method("air-paper:keep=3,strength=0.2")` is AIR.paper(keep=3, strength=0.2), and "air+vaf" is both at once. Each
method is one file beside this one; packages bring their own by entry points of the group `airvlm.methods`. This file
knows their names only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from airvlm.hooks.method import Method
from airvlm.hooks.run import NeverFired, Run
from airvlm.methods.air.config import AIR
from airvlm.methods.air.controls import CONTROLS, control
from airvlm.methods.biases import Shorter, YesNo
from airvlm.methods.composed import Composed
from airvlm.methods.memvr import MemVR
from airvlm.methods.vaf import VAF
from airvlm.methods.vcd import VCD
from airvlm.registry import Registry, parse_method

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


METHODS: Registry[MethodInfo] = Registry("airvlm.methods", {info.name: info for info in _LISTED}, _adopt)
