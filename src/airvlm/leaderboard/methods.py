"""Which methods a leaderboard runs, and the artifacts that some of them need."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airvlm.evaluation.artifacts import make_artifact
from airvlm.evaluation.matched import calibration_spec, is_control
from airvlm.evaluation.plan import TaskSpec, choose_items
from airvlm.methods.artifacts import ArtifactMethod
from airvlm.methods.base import Method
from airvlm.methods.biases import EOSBias, YesBias
from airvlm.methods.composed import Composed
from airvlm.methods.controls import Wrapper
from airvlm.methods.names import METHODS, get_method
from airvlm.vlm import VLM

__all__ = ["CONTROLS", "MATCHED", "can_match", "choose_methods", "label_setting", "make_artifacts"]

# Controls beside the methods: crops that should not help. (A cut-off alone is a method of the registry.)
CONTROLS = ("mean-token(crop-blend)", "other-image(crop-blend)")
PAIRS = 64  # images that an artifact is made of
MATCHED = 128  # calibration images on which a control's strength is found


def choose_methods(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Spellings of the methods to run, and why others are not.

    Args:
        names: spellings; "all" stands for every method of the registry with its default options, "faithful" for the
            published code of every method whose code differs from its paper.
    """
    chosen, skipped = list[str](), dict[str, str]()
    for name in names:
        if name == "faithful":
            chosen += [f"{known}:faithful=true" for known, kind in METHODS.items() if hasattr(kind, "faithful")]
            continue
        if name != "all":
            get_method(name)  # raises before anything runs
            chosen.append(name)
            continue
        for known in METHODS:
            kind = METHODS[known]
            if issubclass(kind, Wrapper) or kind in (EOSBias, YesBias):  # around others; and what draws the curve
                continue
            if issubclass(kind, ArtifactMethod) or not kind.data:
                chosen.append(known)
            else:
                skipped[known] = f"needs {kind.data}"
        chosen += CONTROLS
    return list(dict.fromkeys(chosen)), skipped


def make_artifacts(vlm: VLM, names: Iterable[str], specs: Sequence[TaskSpec], folder: Path) -> dict[str, Method]:
    """Methods by label; those that need an artifact get one, made of unlabeled images of the calibration split.

    Args:
        vlm: the model.
        names: spellings of methods.
        specs: the tasks; the first one's calibration images are used.
        folder: where artifacts are kept. An existing one is used again.
    """

    def complete(method: Method) -> Method:
        if isinstance(method, Composed):
            return Composed(*(complete(part) for part in method.methods))
        if not isinstance(method, ArtifactMethod) or method.artifact:
            return method
        path = folder / f"{method.name}.safetensors"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            make_artifact(vlm, type(method), _calibration_images(specs[0]), progress=True).save(path)
        return replace(method, artifact=str(path))

    given = {name: get_method(name) for name in names}
    return {name: complete(method) for name, method in given.items() if method is not None}


def can_match(specs: Sequence[TaskSpec], methods: Mapping[str, Method]) -> bool:
    """Whether there are controls, and calibration images of every task to find their strength on."""
    if not any(is_control(method) for method in methods.values()):
        return False
    try:
        for spec in specs:
            calibration_spec(spec)
    except ValueError as error:
        warnings.warn(f"controls run at their own strength only: {error}", stacklevel=2)
        return False
    return True


def label_setting(method: Method) -> str:
    """The spelling of a method without the paths of its artifacts, which belong to one machine."""
    if isinstance(method, Composed):
        return "+".join(label_setting(part) for part in method.methods)
    return replace(method, artifact="").label if isinstance(method, ArtifactMethod) else method.label


def _calibration_images(spec: TaskSpec) -> list[Any]:
    items, _ = choose_items(spec.task, PAIRS, "calibration")
    shown = {str(item.image) for item in spec.items}
    images = {str(item.image): item.image for item in items if str(item.image) not in shown}
    if not images:
        raise ValueError(f"{spec.name} has no calibration images apart from its {spec.split} split: bring artifacts")
    return list(images.values())
