"""Sweeps: one method with one thing varied, beside vanilla.

What varies is an option of the method, or what surrounds it: the token cap, noise on the images, a control around it.
The paper's own sweeps have names. A sweep is an evaluation like any other: its answers are stored and reused, and
run.json says which methods belong together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from airvlm.evaluation.plan import TaskSpec
from airvlm.evaluation.results import Results, TaskResults
from airvlm.evaluation.store import Json
from airvlm.methods.base import Method
from airvlm.methods.composed import Composed
from airvlm.methods.controls import (
    CropControlMethod,
    FarthestCrops,
    MeanToken,
    NoisyCrops,
    OtherImage,
    RandomCrops,
    ShrunkCrops,
    Wrapper,
)
from airvlm.methods.evidence.base import CropMethod
from airvlm.methods.names import parse_options, split_top_level

__all__ = ["NAMED", "Sweep", "SweepPoint", "SweepResults", "list_sweeps", "parse_sweep", "sweep_specs"]

EXCLUSIVE = ("tau", "keep", "quantile")  # options of which one may be given
CONTROLS: tuple[type[CropControlMethod], ...] = (
    RandomCrops,
    FarthestCrops,
    NoisyCrops,
    MeanToken,
    OtherImage,
    ShrunkCrops,
)


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep."""

    value: str  # as it is shown
    method: Method
    max_new_tokens: int | None = None  # None: the task's own
    noise: float = 0.0

    @property
    def suffix(self) -> str:
        """What it adds to the task's name."""
        if self.max_new_tokens is not None:
            return f", at most {self.max_new_tokens} tokens"
        return f", noise {self.noise * 255:.0f}/255" if self.noise else ""


@dataclass(frozen=True)
class Sweep:
    """What varies, and its points."""

    name: str
    points: tuple[SweepPoint, ...]


def parse_sweep(text: str, method: Method, depth: int) -> Sweep:
    """A sweep of a method.

    Args:
        text: `option=value,value,...` (also max_new_tokens and noise_on_image), or the name of a sweep of the paper.
        method: what is varied.
        depth: the number of the decoder's layers.
    """
    name, equals, rest = text.partition("=")
    if not equals:
        if name not in NAMED:
            raise ValueError(f"--sweep {text}: write option=value,value, or one of {', '.join(NAMED)}")
        points = NAMED[name](method, depth)
    else:
        values = split_top_level(rest, ",")
        if not values:
            raise ValueError(f"--sweep {text}: no values")
        if len(set(values)) < len(values):
            raise ValueError(f"--sweep {text}: a value is given twice")
        if name == "max_new_tokens":
            points = _lengths(method, values)
        elif name == "noise_on_image":
            points = _noise(method, values)
        else:
            points = _options(method, name, values)
    if len({replace(point, value="") for point in points}) < 2 <= len(points):
        raise ValueError(f"--sweep {text}: all its points are the same setting of {method.label}")
    return Sweep(name, tuple(points))


def _options(method: Method, name: str, values: Sequence[str]) -> list[SweepPoint]:
    parsed = [parse_options(f"{name}={value}", f"--sweep {name}={value}")[name] for value in values]
    return [SweepPoint(f"{name}={text}", _set_option(method, name, value)) for text, value in zip(values, parsed)]


def _set_option(method: Method, name: str, value: Any) -> Method:
    """The method with another value of an option, its own, of the method it wraps, or of one it is composed of."""
    known = [f.name for f in dataclasses.fields(method)]
    if name in known:
        reset = {f.name: f.default for f in dataclasses.fields(method) if f.name in EXCLUSIVE and name in EXCLUSIVE}
        return replace(method, **{**reset, name: value})
    if isinstance(method, Wrapper):
        return replace(method, method=_set_option(method.method, name, value))
    if isinstance(method, Composed):
        for i, part in enumerate(method.methods):
            if name in [f.name for f in dataclasses.fields(part)] or isinstance(part, Wrapper):
                return Composed(*method.methods[:i], _set_option(part, name, value), *method.methods[i + 1 :])
    raise ValueError(f"--sweep {name}: {method.label} has no option {name!r}; it has {', '.join(known) or 'none'}")


def _layers(method: Method, depth: int) -> list[SweepPoint]:
    """The paper's spans 16-32, 18-32, ... 30-32, as shares of the depth."""
    firsts = sorted({min(depth - 1, round(depth * k / 32)) for k in range(16, 32, 2)})
    return _options(method, "layers", [f"({first},{depth})" for first in firsts])


def _lengths(method: Method, caps: Sequence[str]) -> list[SweepPoint]:
    for cap in caps:
        if not cap.isdecimal() or int(cap) < 1:
            raise ValueError(f"--sweep max_new_tokens={cap}: give integers from 1")
    return [SweepPoint(f"max_new_tokens={cap}", method, max_new_tokens=int(cap)) for cap in caps]


def _noise(method: Method, deltas: Sequence[str]) -> list[SweepPoint]:
    points = []
    for delta in deltas:
        try:
            noise = float(Fraction(delta))
        except (ValueError, ZeroDivisionError):
            noise = -1.0
        if not 0 <= noise <= 1:
            raise ValueError(f"--sweep noise_on_image={delta}: give a share of the full scale, as in 4/255")
        points.append(SweepPoint(f"noise_on_image={delta}", method, noise=noise))
    return points


def _components(method: Method, depth: int) -> list[SweepPoint]:
    """Without the reduction to prototypes, without the selection of crops, and without both."""
    if not isinstance(method, CropMethod):
        raise ValueError(f"--sweep components: {method.label} has neither prototypes nor crops")
    without = {"no prototypes": ("num_prototypes", None), "no selection": ("keep", method.num_crops)}
    if getattr(method, "num_prototypes", None) is None:
        del without["no prototypes"]
    if method.keeps_all_crops:
        del without["no selection"]
    if not without:
        raise ValueError(f"--sweep components: {method.label} uses all visual tokens and all crops already")
    points = {"unchanged": method} | {value: _set_option(method, *option) for value, option in without.items()}
    if len(without) == 2:
        points["neither"] = _set_option(points["no prototypes"], *without["no selection"])
    return [SweepPoint(value, m) for value, m in points.items()]


def _controls(method: Method, depth: int) -> list[SweepPoint]:
    """The method and every control that would change something."""
    points, problems = [SweepPoint("unchanged", method)], []
    for kind in CONTROLS:
        try:
            points.append(SweepPoint(kind.name, kind(method)))
        except ValueError as error:
            problems.append(str(error))
    if len(points) == 1:
        raise ValueError(f"--sweep controls: {problems[0]}")
    return points


NAMED: dict[str, Callable[[Method, int], list[SweepPoint]]] = {
    "layers": _layers,
    "num_prototypes": lambda m, _: _options(m, "num_prototypes", "8 16 32 64 100 200 none".split()),
    "tau": lambda m, _: _options(m, "tau", "0.02 0.04 0.06 0.08 0.1 0.2 0.4 0.8".split()),
    "num_crops": lambda m, _: _options(m, "num_crops", "2 4 8 12 16 24".split()),
    "eps": lambda m, _: _options(m, "eps", "0.01 0.03 0.05 0.1 0.2".split()),
    "length": lambda m, _: _lengths(m, "32 64 128 256".split()),
    "components": _components,
    "controls": _controls,
    "noise": lambda m, _: _noise(m, "0 4/255 8/255 16/255".split()),
}


def sweep_specs(spec: TaskSpec, sweeps: Sequence[tuple[str, Sweep]]) -> tuple[list[TaskSpec], Json]:
    """The tasks that sweeps ask, each with the methods that answer it; and what run.json says about them.

    Args:
        spec: the task as it is.
        sweeps: each with the label of the method that it varies.
    """
    specs: dict[str, TaskSpec] = {}
    noted: Json = {}
    for label, sweep in sweeps:
        points = []
        for point in sweep.points:
            key = spec.key + point.suffix
            if key not in specs:
                around = {"max_new_tokens": point.max_new_tokens, "noise": round(point.noise, 6)}
                generation = spec.generation | {name: value for name, value in around.items() if value}
                specs[key] = replace(spec, label=key, generation=generation, methods={})
            own = specs[key]
            specs[key] = replace(own, methods={**(own.methods or {}), point.method.label: point.method})
            points.append({"value": point.value, "label": point.method.label, "task": key})
        noted[f"{spec.key}, {label}: {sweep.name}"] = {"varies": sweep.name, "method": label, "points": points}
    return list(specs.values()), noted


@dataclass(frozen=True)
class SweepResults:
    """What a sweep found: per point its value, the method's label, and the task's results."""

    title: str
    varies: str
    points: tuple[tuple[str, str, TaskResults], ...]

    def problems(self) -> list[str]:
        """That one point did not act is a finding; that none did is a problem."""
        fired = [task.count_fired(label) for _, label, task in self.points]
        return [f"{self.title}: the method never acted, at any value"] if fired and not any(fired) else []

    def to_json(self) -> Json:
        """{value: {"vanilla" | "method": {metric: {"value", "low", "high", "n"}}}}"""
        return {
            value: {"vanilla": task.figures("vanilla"), "method": task.figures(label)}
            for value, label, task in self.points
        }


def list_sweeps(results: Results) -> dict[str, SweepResults]:
    """The sweeps of a results folder, by their titles in run.json, with the points that were answered."""
    found = {}
    for title, facts in results.sweeps.items():
        points = tuple(
            (p["value"], p["label"], results.tasks[p["task"]])
            for p in facts["points"]
            if p["task"] in results.tasks and p["label"] in results.tasks[p["task"]].methods
        )
        if points:
            found[title] = SweepResults(title, facts["varies"], points)
    return found
