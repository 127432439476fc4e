"""Sweeps: one method with one thing varied at a time, on one task, beside vanilla.

What varies is a field of the method, or what lies around it: the token cap, the disturbance of the pictures, the
control that replaces a part of it. The paper's own sweeps have names. Answers go to the same store as evaluations', so
that what is known already is not asked again. Knows nothing about drawing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import airvlm.methods as registry
from airvlm.evaluation import BATCH_SIZE
from airvlm.evaluation.evaluate import answer_all, first_curve
from airvlm.evaluation.plan import Asked, ModelFacts
from airvlm.evaluation.run import VANILLA, TaskRun
from airvlm.evaluation.runner import work
from airvlm.evaluation.store import Json, Store
from airvlm.methods.air.config import AIR
from airvlm.methods.air.controls import CONTROLS, control
from airvlm.reporting.tables import metrics_json

__all__ = ["NAMED", "Setting", "Sweep", "ablate", "parse_sweep"]

RULES = ("tau", "keep", "quantile")  # AIR's ways to select crops


@dataclass(frozen=True)
class Setting:
    """One point of a sweep."""

    value: str  # as it is shown
    method: Any  # the method at this point
    max_new_tokens: int | None = None  # None: as the task has it
    noise: float = 0.0


@dataclass(frozen=True)
class Sweep:
    """What varies, and over what; after `ablate`, also what came of it."""

    name: str
    settings: tuple[Setting, ...]
    found: tuple[TaskRun, ...] = ()  # one a setting; the method's label in it is the setting's value

    def to_json(self) -> Json:
        """{value: {"vanilla" | "method": {metric: {"value", "low", "high", "n"}}}}"""
        return {
            setting.value: {
                VANILLA: metrics_json(task, VANILLA),
                "method": metrics_json(task, setting.value),
            }
            for setting, task in zip(self.settings, self.found)
        }

    @property
    def tables(self) -> list[TaskRun]:
        """What can stand in one table: the points that share a vanilla."""
        together: dict[str, TaskRun] = {}
        for task in self.found:
            key = repr(task.asked.generation)
            held = together.setdefault(key, replace(task, methods={}))
            held.methods |= task.methods
        return list(together.values())

    def problems(self) -> list[str]:
        """As of any run; that a point did not act is a finding, that none acted is a problem."""
        found = [p for task in self.tables for p in task.problems() if "never acted" not in p]
        fired = [task.fired(s.value) for s, task in zip(self.settings, self.found) if s.method is not None]
        if fired and all(count == 0 for count in fired):
            found.append(f"{self.name}: the method never acted, at any value")
        return found


def parse_sweep(text: str, method: str, depth: int) -> Sweep:
    """`field=value,value` or the name of one of the paper's sweeps; `depth` is the decoder's number of layers."""
    name, equals, rest = text.partition("=")
    if not equals:
        if name not in NAMED:
            raise ValueError(f"--sweep {text}: write field=value,value, or one of {', '.join(NAMED)}")
        return Sweep(name, tuple(NAMED[name](method, depth)))
    values = _split(rest)
    if not values:
        raise ValueError(f"--sweep {text}: no values")
    if name == "max_new_tokens":
        return Sweep(name, tuple(_lengths(method, [int(value) for value in values])))
    if name == "noise_on_picture":
        return Sweep(name, tuple(_disturbed(method, values)))
    return Sweep(name, tuple(_fields(method, name, values)))


def ablate(
    vlm: Any,
    ask: Callable[[int | None, float], Asked],  # token cap and noise -> the task's items with them
    sweeps: Sequence[Sweep],
    out: str | Path,
    *,
    batch_size: int = BATCH_SIZE,
    curve: bool = True,
    progress: bool = True,
) -> list[Sweep]:
    """Answer what the sweeps ask and is not yet known in `out`; the sweeps with what was found."""
    model = ModelFacts.of(vlm)
    asked: dict[tuple[int | None, float], Asked] = {}
    for sweep in sweeps:
        for s in sweep.settings:
            if (s.max_new_tokens, s.noise) not in asked:
                asked[s.max_new_tokens, s.noise] = ask(s.max_new_tokens, s.noise)
    controls = {key: first_curve(one) if curve else {} for key, one in asked.items()}
    with Store(out) as store:
        plan = []
        for key, one in asked.items():
            here = [s for sweep in sweeps for s in sweep.settings if (s.max_new_tokens, s.noise) == key]
            methods = {s.value: s.method for s in here}
            plan.append((one, {VANILLA: None, **methods, **controls[key]}))
        answer_all(
            lambda todo, store, done: work(vlm, todo, store, done),
            plan,
            model,
            store,
            batch_size=batch_size,
            progress=progress,
        )
        results = []
        for sweep in sweeps:
            found = []
            for s in sweep.settings:
                key = (s.max_new_tokens, s.noise)
                methods = {VANILLA: None, s.value: None if s.method is None else s.method.to_json()}
                drawn = {label: point.to_json() for label, point in controls[key].items()}
                found.append(TaskRun.of(asked[key], methods, drawn, store, model.fingerprint))
            results.append(replace(sweep, found=tuple(found)))
        return results


# -- the paper's sweeps: method as spelled, depth of the decoder -> settings


def _layers(method: str, depth: int) -> list[Setting]:
    """The paper's spans 16-32, 18-32, ... 30-32, as shares of the depth."""
    firsts = sorted({min(depth - 1, round(depth * k / 32)) for k in range(16, 32, 2)})
    return _fields(method, "layers", [f"({first},{depth})" for first in firsts])


def _lengths(method: str, caps: Sequence[int]) -> list[Setting]:
    chosen = registry.parse_method(method)
    return [Setting(f"max_new_tokens={cap}", chosen, max_new_tokens=cap) for cap in caps]


def _disturbed(method: str, deltas: Sequence[str]) -> list[Setting]:
    chosen = registry.parse_method(method)
    return [Setting(f"noise_on_picture={delta}", chosen, noise=float(Fraction(delta))) for delta in deltas]


def _fields(method: str, field: str, values: Sequence[str]) -> list[Setting]:
    # What varies takes the place of what was set; the rules that keep crops exclude each other.
    taken = "|".join(RULES if field in RULES else (re.escape(field),))
    base = re.sub(rf"([:,]\s*)(?:{taken})\s*=\s*(?:\([^)]*\)|[^,]*)", r"\1", method)
    base += "" if base.endswith((":", ",")) else "," if "=" in base else ":"
    return [Setting(f"{field}={value}", registry.parse_method(f"{base}{field}={value}")) for value in values]


def _controls(method: str, names: Sequence[str]) -> list[Setting]:
    chosen = registry.parse_method(method)
    if not isinstance(chosen, AIR):
        raise ValueError(f"{method} is no reading of AIR: the paper's components and controls are AIR's")
    return [Setting("as it is", chosen), *(Setting(name, control(name, chosen)) for name in names)]


NAMED: dict[str, Callable[[str, int], list[Setting]]] = {
    "layers": _layers,
    "top_q": lambda m, depth: _fields(m, "top_q", ["0.0625", "0.125", "0.25", "0.375", "0.5", "0.75", "1.0"]),
    "tau": lambda m, depth: _fields(m, "tau", ["0.02", "0.04", "0.06", "0.08", "0.1", "0.2", "0.4", "0.8"]),
    "patches": lambda m, depth: _fields(m, "patches", ["2", "4", "8", "12", "16", "24"]),
    "eps": lambda m, depth: _fields(m, "eps", ["0.01", "0.03", "0.05", "0.1", "0.2"]),
    "length": lambda m, depth: _lengths(m, [32, 64, 128, 256]),
    "components": lambda m, depth: _controls(m, ["no-prototypes", "no-selection"]),
    "controls": lambda m, depth: _controls(m, list(CONTROLS)),
    "noise": lambda m, depth: _disturbed(m, ["0", "4/255", "8/255", "16/255"]),
}


def _split(text: str) -> list[str]:
    """At commas outside parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
