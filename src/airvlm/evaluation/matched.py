"""Matched controls: the strength at which a control changes as many answers as the method that it controls.

Any disturbance rights some wrong answers and wrongs some right ones. A control that disturbs less than the method says
little, so each is also asked at the strength that changes as many of vanilla's answers; that strength is found on the
calibration split, and used as it is on the split that is reported. Knows how to search; not how answers are made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import airvlm.methods as registry
from airvlm.evaluation.null_results import is_control
from airvlm.evaluation.plan import Asked, ModelFacts
from airvlm.evaluation.store import Json, Store
from airvlm.evaluation.task_results import VANILLA, TaskResults
from airvlm.methods.composed import Composed
from airvlm.methods.names import parts_of

__all__ = ["Matched", "calibration", "controlled", "match", "strength_of"]

SPLIT = "calibration"
STEPS = 6  # strengths tried at most, for each control
CLOSE = 0.05  # a count of changed answers this near the wanted one is equal
WIDEST = 16.0  # times the control's own strength, up or down

Answer = Callable[[Asked, Mapping[str, Any]], None]  # lets a task be answered under methods, into the store


@dataclass
class Matched:
    """What was found for one task."""

    methods: dict[str, Any] = field(default_factory=dict)  # label -> the control at the matched strength
    facts: dict[str, Json] = field(default_factory=dict)  # control's label -> what it is matched with, and how well

    def to_json(self) -> Json:
        return self.facts


def controlled(label: str) -> str:
    """The method that a control controls: the same fields without what makes it a control."""
    _, colon, fields = label.partition(":")
    return "air" + colon + fields


def strength_of(method: Any) -> str:
    """The field that says how strongly a method acts."""
    return "weight" if getattr(method, "reading", "") == "carry" else "strength"


def first_of(method: Any) -> Any:
    """The control itself, where other methods act beside it: `air-other-image+shorter:bias=-1`."""
    return method.methods[0] if isinstance(method, Composed) else method


def at(method: Any, strength: float) -> Any:
    """The same control at another strength, beside the same methods."""
    first = first_of(method)
    first = replace(first, **{strength_of(first): strength})
    return Composed(first, *method.methods[1:]) if isinstance(method, Composed) else first


def spelled(label: str, name: str, strength: float) -> str:
    """How the control at that strength is spelled."""
    first, *beside = parts_of(label)
    first = re.sub(rf"(?<=[:,]){name}=[^,]*,?", "", first).rstrip(":,")
    return "+".join([f"{first}{',' if ':' in first else ':'}{name}={strength:g}", *beside])


def calibration(asked: Asked) -> Asked:
    """The same task on its calibration split; an error where it has none, or where it is the one asked for."""
    items = asked.task.items(asked.limit, SPLIT)
    # ids may be counted anew in each split, and images may serve several questions: both together tell
    if not items or {(i.id, str(i.image)) for i in items} & {(i.id, str(i.image)) for i in asked.items}:
        raise ValueError(
            f"{asked.key}: --matched needs a calibration split apart from the {asked.split} split, and there is none"
        )
    return replace(asked, items=items, split=SPLIT, label=f"{asked.key}, {SPLIT}")


def match(asked: Asked, methods: Mapping[str, Any], answer: Answer, store: Store, model: ModelFacts) -> Matched:
    """Every control among the methods, at the strength of what it controls."""
    found = Matched()
    controls = [label for label in methods if is_control(label)]
    if not controls:
        return found
    split = calibration(asked)

    def changed(label: str, method: Any) -> int:
        """Answers of the calibration split that the method changes."""
        answer(split, {VANILLA: None, label: method})
        configurations = {VANILLA: None, label: method.to_json()}
        return TaskResults.of(split, configurations, {}, store, model.fingerprint).changed(label)

    wanted: dict[str, int] = {}
    for label in controls:
        to = controlled(label)
        method = methods.get(to) or registry.parse_method(to)
        if to not in wanted:
            wanted[to] = changed(to, method)
        name = strength_of(first_of(methods[label]))
        strength, count = search(
            lambda s, label=label: changed(label, at(methods[label], s)),  # type: ignore[misc]
            float(getattr(first_of(methods[label]), name)),
            wanted[to],
            most=1.0 if name == "weight" else math.inf,  # a weight is a share
        )
        matched = at(methods[label], strength)
        found.methods[spelled(label, name, strength)] = matched
        found.facts[label] = {
            "label": spelled(label, name, strength),
            "method": matched.to_json(),
            "controls": to,
            name: strength,
            "changed": {"wanted": wanted[to], "reached": count, "items": len(split.items), "split": SPLIT},
        }
    return found


def search(count: Callable[[float], int], start: float, wanted: int, most: float = math.inf) -> tuple[float, int]:
    """The strength whose count is nearest to the wanted one: secant steps on a logarithmic scale.

    Counts rise with strength, mostly; each strength is asked once, and the nearest of all that were asked is taken.
    """
    tried = {start: count(start)}
    for _ in range(STEPS - 1):
        best = min(tried, key=lambda s: abs(tried[s] - wanted))
        if abs(tried[best] - wanted) <= CLOSE * max(wanted, 1):
            break
        below = [s for s in tried if tried[s] < wanted]
        above = [s for s in tried if tried[s] > wanted]
        if below and above:
            low, high = max(below), min(above)
            share = (wanted - tried[low]) / (tried[high] - tried[low])
            share = min(0.8, max(0.2, share))  # counts bend: a step to the very edge would not move
            step = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            step = (max(tried) * 2.0) if below else (min(tried) / 2.0)
        step = float(f"{min(max(step, start / WIDEST), start * WIDEST, most):.3g}")
        if step in tried:
            break
        tried[step] = count(step)
    best = min(tried, key=lambda s: abs(tried[s] - wanted))
    return best, tried[best]
