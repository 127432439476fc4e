"""run.json: what was asked of which model in a folder, so that its answers can be read without the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from airvlm.evaluation.plan import ModelInfo, TaskSpec, versions
from airvlm.evaluation.store import Json, StoreError
from airvlm.storage.atomic import write_atomically
from airvlm.storage.jsonl import lock_file

__all__ = ["MANIFEST", "read_manifest", "update_manifest"]

MANIFEST = "run.json"
FORMAT = 2  # a file with a later format was written by a later airvlm; in format 1 a limit counted items


class _Strict(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Model(_Strict):
    name: str
    fingerprint: str


class _Task(_Strict):
    task: str
    data: str | None
    split: str
    limit: int | None
    generation: dict[str, Any]
    curve: dict[str, dict[str, Any]]  # the control that draws the curve, by label
    matched: dict[str, dict[str, Any]] = {}  # control -> itself at the strength of what it controls


class _Manifest(_Strict):
    format: int = 1
    model: _Model
    methods: dict[str, dict[str, Any] | None]  # by label
    tasks: dict[str, _Task]
    commands: list[dict[str, Any]] = []
    sweeps: dict[str, dict[str, Any]] = {}


def read_manifest(folder: Path) -> Json:
    """The content of a folder's run.json; StoreError names the file if it is missing or not one of airvlm's."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{folder} has no results: {MANIFEST} is missing (written by airvlm evaluate)") from None
    except NotADirectoryError:
        raise StoreError(f"{folder} is not a folder: give the one that airvlm evaluate wrote (--output)") from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON ({error}); move it away to start over") from None
    written = content.get("format", FORMAT) if isinstance(content, dict) else FORMAT
    if isinstance(written, int) and written > FORMAT:
        raise StoreError(f"{path}: format {written} of a later airvlm; this one reads up to format {FORMAT}")
    try:
        found = _Manifest.model_validate(content).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise StoreError(f"{path}: {where}: {first['msg']}; it was not written by airvlm") from None
    if found["format"] == 1 and any(task["limit"] is not None for task in found["tasks"].values()):
        raise StoreError(f"{path}: its limit counts items, not images; evaluate again in another folder (--output)")
    return found


def update_manifest(
    folder: Path,
    model: ModelInfo,
    specs: Sequence[TaskSpec],
    methods: Mapping[str, Json | None],
    *,
    curves: Mapping[str, Mapping[str, Json]] | None = None,
    matched: Mapping[str, Json] | None = None,
    sweeps: Mapping[str, Json] | None = None,
    command: Json | None = None,
) -> None:
    """Add what an evaluation asks to what earlier ones on the folder asked.

    Args:
        folder: of the results.
        model: must be the one that the folder has answers of.
        specs: the tasks.
        methods: their JSON by label.
        curves: per task, the controls that draw its curve, by label.
        matched: per task, each control at the strength of what it controls.
        sweeps: which methods of which tasks belong to one sweep.
        command: who asked: command line and date.
    """
    path = folder / MANIFEST
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_file(path):
            fresh: Json = {"format": FORMAT, "model": model.to_json(), "methods": {}, "tasks": {}}
            fresh |= {"commands": [], "sweeps": {}}
            content = {**read_manifest(folder), "format": FORMAT} if path.exists() else fresh
            held = content["model"]
            if held["fingerprint"] != model.fingerprint:
                raise StoreError(
                    f"{folder} has answers of {held['name']} ({held['fingerprint']}), not of {model.name} "
                    f"({model.fingerprint}): choose another folder (--output)"
                )
            content["model"] = {**model.to_json(), **held}
            content["methods"] |= methods
            content["sweeps"] |= sweeps or {}
            for spec in specs:
                known = content["tasks"].get(spec.key, {})
                content["tasks"][spec.key] = _describe_task(spec) | {
                    "curve": {**known.get("curve", {}), **(curves or {}).get(spec.key, {})},
                    "matched": {**known.get("matched", {}), **(matched or {}).get(spec.key, {})},
                }
            if command:
                others = [c for c in content["commands"] if c.get("command") != command["command"]]
                content["commands"] = [*others, {**command, "versions": versions()}]
            write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; choose another folder (--output)") from error


def _describe_task(spec: TaskSpec) -> Json:
    return {
        "task": spec.name,
        "split": spec.split,
        "limit": spec.limit,
        "data": None if spec.task.data is None else str(Path(spec.task.data).absolute()),
        "generation": spec.generation,
        "settings": spec.task.settings(),
        **spec.options,
    }
