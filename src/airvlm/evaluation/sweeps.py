"""Sweeps: one method with one thing varied at a time, on one task, beside vanilla.

What varies is a field of the method, or what lies around it: the token cap, the disturbance of the images, the control
that replaces a part of it. The paper's own sweeps have names. A sweep is an evaluation: its answers and its run.json
are those of `evaluate`, so that what is known already is not asked again, and `airvlm report` reads it. Knows nothing
about drawing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import airvlm.methods as registry
from airvlm.evaluation.plan import Asked
from airvlm.evaluation.results import Results
from airvlm.evaluation.store import Json
from airvlm.evaluation.task_results import VANILLA, TaskResults
from airvlm.methods.air import AIR
from airvlm.methods.controls import CONTROLS, control
from airvlm.registry import split_commas

__all__ = [
    "NAMED",
    "Setting",
    "Sweep",
    "asked_by",
    "controls_of",
    "found_in",
    "noted",
    "parse_sweep",
    "varied",
]

RULES = ("tau", "keep", "quantile")  # AIR's ways to select crops
Ask = Callable[[int | None, float, str], Asked]  # token cap, noise and what to add to its name -> the task so asked


@dataclass(frozen=True)
class Setting:
    """One point of a sweep."""

    value: str  # as it is shown
    label: str  # the method as `--method` spells it
    method: Any = None  # the method at this point; None where it is read back
    max_new_tokens: int | None = None  # None: as the task has it
    noise: float = 0.0

    @property
    def around(self) -> str:
        """What it adds to the task's name in a run."""
        if self.max_new_tokens is not None:
            return f", at most {self.max_new_tokens} tokens"
        return f", noise {self.noise * 255:.0f}/255" if self.noise else ""


@dataclass(frozen=True)
class Sweep:
    """What varies, and over what; after an evaluation, also what came of it."""

    name: str
    settings: tuple[Setting, ...]
    found: tuple[TaskResults, ...] = ()  # one a setting

    def to_json(self) -> Json:
        """{value: {"vanilla" | "method": {metric: {"value", "low", "high", "n"}}}}"""
        return {
            setting.value: {
                VANILLA: task.figures_json(VANILLA),
                "method": task.figures_json(setting.label),
            }
            for setting, task in zip(self.settings, self.found)
        }

    @property
    def tables(self) -> list[TaskResults]:
        """What can stand in one table: the points that share a vanilla."""
        together: dict[str, TaskResults] = {}
        for setting, task in zip(self.settings, self.found):
            held = together.setdefault(task.asked.key, replace(task, methods={VANILLA: None}))
            held.methods[setting.label] = task.methods[setting.label]
        return list(together.values())

    def problems(self) -> list[str]:
        """As of any run; that a point did not act is a finding, that none acted is a problem."""
        found = [problem for task in self.tables for problem in task.problems()]
        fired = [task.fired(s.label) for s, task in zip(self.settings, self.found)]
        if fired and all(count == 0 for count in fired):
            found.append(f"{self.name}: the method never acted, at any value")
        return found


def parse_sweep(text: str, method: str, depth: int) -> Sweep:
    """`field=value,value` or the name of one of the paper's sweeps; `depth` is the decoder's number of layers."""
    name, equals, rest = text.partition("=")
    if not equals:
        if name not in NAMED:
            raise ValueError(f"--sweep {text}: write field=value,value, or one of {', '.join(NAMED)}")
        return _checked(text, Sweep(name, tuple(NAMED[name](method, depth))))
    values = split_commas(rest)
    if not values:
        raise ValueError(f"--sweep {text}: no values")
    if len(set(values)) < len(values):
        raise ValueError(f"--sweep {text}: the same value is given twice")
    if name == "max_new_tokens":
        return Sweep(name, tuple(_lengths(method, [_count(value, text) for value in values])))
    if name in ("noise_on_image", "noise_on_picture"):  # the second is how it was spelled before
        return Sweep(name, tuple(_disturbed(method, values, text)))
    return _checked(text, Sweep(name, tuple(_fields(method, name, values))))


def _checked(text: str, sweep: Sweep) -> Sweep:
    """A sweep in which something varies."""
    kinds = {(s.method, s.max_new_tokens, s.noise) for s in sweep.settings}
    if len(kinds) == 1 < len(sweep.settings):
        raise ValueError(f"--sweep {text}: all its values are one and the same setting of the method")
    return sweep


def _count(value: str, text: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"--sweep {text}: {value} is no number of tokens; give whole numbers from 1")
    return int(value)


def asked_by(sweeps: Sequence[Sweep], ask: Ask) -> list[Asked]:
    """The tasks that the sweeps ask, each with the methods that answer it."""
    found: dict[str, Asked] = {}
    for sweep in sweeps:
        for s in sweep.settings:
            if s.around not in found:
                found[s.around] = replace(ask(s.max_new_tokens, s.noise, s.around), methods={})
            one = found[s.around]
            found[s.around] = replace(one, methods={**(one.methods or {}), s.label: s.method})
    return list(found.values())


def noted(sweeps: Sequence[Sweep], asked: Sequence[Asked], method: str, key: str) -> Json:
    """What run.json says about the sweeps; `key` is the task's name in the run, without what lies around."""
    keys = {one.key for one in asked}
    return {
        f"{key}, {method}: {sweep.name}": {
            "varies": sweep.name,
            "points": [
                {"value": s.value, "label": s.label, "task": key + s.around}
                for s in sweep.settings
                if key + s.around in keys
            ],
        }
        for sweep in sweeps
    }


def found_in(run: Results) -> dict[str, Sweep]:
    """The sweeps of a run, by the names that run.json has for them; those whose answers are there."""
    found = {}
    for name, noted_ in run.sweeps.items():
        points = [p for p in noted_["points"] if p["task"] in run.tasks]
        points = [p for p in points if p["label"] in run.tasks[p["task"]].methods]
        if points:
            settings = tuple(Setting(p["value"], p["label"]) for p in points)
            found[name] = Sweep(noted_["varies"], settings, tuple(run.tasks[p["task"]] for p in points))
    return found


# -- the paper's sweeps: method as spelled, depth of the decoder -> settings


def _layers(method: str, depth: int) -> list[Setting]:
    """The paper's spans 16-32, 18-32, ... 30-32, as shares of the depth."""
    firsts = sorted({min(depth - 1, round(depth * k / 32)) for k in range(16, 32, 2)})
    return _fields(method, "layers", [f"({first},{depth})" for first in firsts])


def _lengths(method: str, caps: Sequence[int]) -> list[Setting]:
    chosen = registry.parse_method(method)
    return [Setting(f"max_new_tokens={cap}", method, chosen, max_new_tokens=cap) for cap in caps]


def _disturbed(method: str, deltas: Sequence[str], text: str = "noise") -> list[Setting]:
    chosen, found = registry.parse_method(method), []
    for delta in deltas:
        try:
            noise = float(Fraction(delta))
        except (ValueError, ZeroDivisionError):
            noise = -1.0
        if not 0 <= noise <= 1:
            raise ValueError(f"--sweep {text}: {delta} is no share of the full scale, as 4/255 is")
        found.append(Setting(f"noise_on_image={delta}", method, chosen, noise=noise))
    return found


def varied(method: str, field: str, value: str) -> Setting:
    """The method with one field set to this value, whatever it had before."""
    return _fields(method, field, [value])[0]


def _fields(method: str, field: str, values: Sequence[str]) -> list[Setting]:
    # What varies takes the place of what was set; the rules that keep crops exclude each other.
    taken = "|".join(RULES if field in RULES else (re.escape(field),))
    base = re.sub(rf"([:,]\s*)(?:{taken})\s*=\s*(?:\([^)]*\)|[^,]*)", r"\1", method)
    base += "" if base.endswith((":", ",")) else "," if "=" in base else ":"
    spelled = {value: f"{base}{field}={value}" for value in values}
    return [Setting(f"{field}={value}", label, registry.parse_method(label)) for value, label in spelled.items()]


def controls_of(method: str, names: Sequence[str]) -> list[Setting]:
    """A reading of AIR as it is, then its controls of these names."""
    chosen = registry.parse_method(method)
    if not isinstance(chosen, AIR):
        raise ValueError(f"{method} is no reading of AIR: the paper's components and controls are AIR's")
    name, colon, fields = method.partition(":")
    # a control of air has a name of its own; one of another reading is named after both
    labels = {n: f"air-{n}{colon}{fields}" if name == "air" else f"{method} ({n})" for n in names}
    return [
        Setting("as it is", method, chosen),
        *(Setting(n, label, control(n, chosen)) for n, label in labels.items()),
    ]


NAMED: dict[str, Callable[[str, int], list[Setting]]] = {
    "layers": _layers,
    "top_q": lambda m, depth: _fields(m, "top_q", ["0.0625", "0.125", "0.25", "0.375", "0.5", "0.75", "1.0"]),
    "tau": lambda m, depth: _fields(m, "tau", ["0.02", "0.04", "0.06", "0.08", "0.1", "0.2", "0.4", "0.8"]),
    "patches": lambda m, depth: _fields(m, "patches", ["2", "4", "8", "12", "16", "24"]),
    "eps": lambda m, depth: _fields(m, "eps", ["0.01", "0.03", "0.05", "0.1", "0.2"]),
    "length": lambda m, depth: _lengths(m, [32, 64, 128, 256]),
    "components": lambda m, depth: controls_of(m, ["no-prototypes", "no-selection"]),
    "controls": lambda m, depth: controls_of(m, list(CONTROLS)),
    "noise": lambda m, depth: _disturbed(m, ["0", "4/255", "8/255", "16/255"]),
}
