"""Matched controls: a control at the strength at which it changes as many answers as the method that it controls.

Any perturbation fixes some answers and breaks others, so a control that perturbs less than the method says little. The
strength is found on the calibration split and used as it is on the split that is reported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from airvlm.evaluation.plan import ModelInfo, TaskSpec, choose_items, methods_to_json
from airvlm.evaluation.results import VANILLA, TaskResults
from airvlm.evaluation.store import Json, Store
from airvlm.methods.base import Method
from airvlm.methods.composed import Composed
from airvlm.methods.controls import Wrapper

__all__ = ["at_strength", "calibration_spec", "is_control", "match_controls", "remove_control", "search_strength"]

SPLIT = "calibration"
STEPS = 6  # strengths tried at most, per control
CLOSE = 0.05  # a count of changed answers within this share of the goal is close enough
WIDEST = 16.0  # times the control's own strength, up or down

Ask = Callable[[TaskSpec, Mapping[str, Any]], None]  # answers a task under methods, into the store


def is_control(method: Method | None) -> bool:
    """Whether a method is a control around another one, alone or first in a composition."""
    return isinstance(_first(method), Wrapper)


def _first(method: Method | None) -> Method | None:
    return method.methods[0] if isinstance(method, Composed) else method


def _with_first(method: Method, first: Method) -> Method:
    return Composed(first, *method.methods[1:]) if isinstance(method, Composed) else first


def remove_control(control: Method) -> Method:
    """The method that a control controls, beside the same other methods."""
    first = _first(control)
    assert isinstance(first, Wrapper)
    return _with_first(control, first.method)


def strength_option(control: Method) -> dataclasses.Field[Any]:
    """The option that says how strongly the controlled method acts."""
    first = _first(control)
    assert isinstance(first, Wrapper)
    inner = first.method
    found = next((f for f in dataclasses.fields(inner) if "off" in f.metadata and getattr(inner, f.name)), None)
    if found is None:
        raise ValueError(f"{control.label} cannot be matched: {inner.name} has no strength that can be varied")
    return found


def at_strength(control: Method, strength: float) -> Method:
    """The same control at another strength."""
    first = _first(control)
    assert isinstance(first, Wrapper)
    inner = replace(first.method, **{strength_option(control).name: strength})
    return _with_first(control, replace(first, method=inner))


def calibration_spec(spec: TaskSpec, limit: int | None = None) -> TaskSpec:
    """The same task on its calibration split; an error if it has none apart from the split that is asked for.

    Args:
        spec: the task.
        limit: so many images at most; the task's own limit counts as well.
    """
    images_at_most = min((n for n in (spec.limit, limit) if n is not None), default=None)
    items, images = choose_items(spec.task, images_at_most, SPLIT)
    # splits may number their items alike, and one image may have several questions: both together identify an item
    if not items or {(i.id, str(i.image)) for i in items} & {(i.id, str(i.image)) for i in spec.items}:
        raise ValueError(f"{spec.name} has no calibration split apart from its {spec.split} split: --matched needs one")
    return replace(spec, items=items, split=SPLIT, label=f"{spec.name}, {SPLIT}", images=images)


def match_controls(
    spec: TaskSpec, methods: Mapping[str, Any], ask: Ask, store: Store, model: ModelInfo, limit: int | None = None
) -> tuple[dict[str, Method], dict[str, Json]]:
    """Every control among the methods at the strength of what it controls.

    Args:
        spec: the task.
        methods: by label.
        ask: answers the task under methods.
        store: where the answers are.
        model: the model.
        limit: images of the calibration split at most, see `calibration_spec`.

    Returns:
        The matched controls by label; and by the control's own label, what it was matched with and how closely.
    """
    controls = {label: method for label, method in methods.items() if is_control(method)}
    split = calibration_spec(spec, limit) if controls else spec

    def count(method: Method) -> int:
        """Answers of the calibration split that a method changes."""
        ask(split, {VANILLA: None, "method": method})
        configurations = methods_to_json({VANILLA: None, "method": method})
        return TaskResults.of(split, configurations, {}, store, model.fingerprint).count_changed("method")

    goals: dict[Method, int] = {}
    matched, facts = dict[str, Method](), dict[str, Json]()
    for label, control in controls.items():
        method, option = remove_control(control), strength_option(control)
        if method not in goals:
            goals[method] = count(method)
        inner = _first(method)
        strength, reached = search_strength(
            lambda s, control=control: count(at_strength(control, s)),  # type: ignore[misc]
            float(getattr(inner, option.name)),
            goals[method],
            most=option.metadata.get("high", math.inf),
        )
        found = at_strength(control, strength)
        matched[found.label] = found
        facts[label] = {
            "label": found.label,
            "method": found.to_json(),
            "controls": next((other for other, m in methods.items() if m == method), method.label),
            "strength": f"{option.name}={strength:g}",
            "changed": {"goal": goals[method], "reached": reached, "items": len(split.items), "split": SPLIT},
        }
    return matched, facts


def search_strength(
    count: Callable[[float], int], start: float, goal: int, most: float = math.inf
) -> tuple[float, int]:
    """The strength whose count is nearest to the goal: secant steps on a logarithmic scale.

    Counts mostly rise with strength. Each strength is tried once, and the nearest of all is taken.

    Args:
        count: of a strength.
        start: the first strength.
        goal: the wanted count.
        most: the largest strength.
    """
    tried = {start: count(start)}
    for _ in range(STEPS - 1):
        best = min(tried, key=lambda s: abs(tried[s] - goal))
        if abs(tried[best] - goal) <= CLOSE * max(goal, 1):
            break
        below = [s for s in tried if tried[s] < goal]
        above = [s for s in tried if tried[s] > goal]
        if below and above:
            low, high = max(below), min(above)
            share = (goal - tried[low]) / (tried[high] - tried[low])
            share = min(0.8, max(0.2, share))  # counts are not linear: a step to the very edge would not move
            step = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            step = (max(tried) * 2.0) if below else (min(tried) / 2.0)
        step = float(f"{min(max(step, start / WIDEST), start * WIDEST, most):.3g}")
        if step in tried:
            break
        tried[step] = count(step)
    best = min(tried, key=lambda s: abs(tried[s] - goal))
    return best, tried[best]
