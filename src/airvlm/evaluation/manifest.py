"""run.json: what was asked of which model in a folder, so that its answers can be read again without asking.

A file of another shape, or of a later version, is refused by its name. Knows nothing about answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airvlm.evaluation.plan import Asked, ModelFacts, versions
from airvlm.evaluation.store import Json, StoreError
from airvlm.methods.names import label_of
from airvlm.storage.jsonl import locked

__all__ = ["MANIFEST", "note", "read"]

MANIFEST = "run.json"
FORMAT = 1  # of the file; one that is later than this was written by a later airvlm
_PARTS = {"model": dict, "methods": dict, "tasks": dict}
_OF_A_TASK = ("data", "split", "limit", "generation", "curve")


def read(folder: Path) -> Json:
    """What stands in a folder's run.json."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{folder} holds no run: {MANIFEST} is missing (made by `airvlm evaluate --out`)") from None
    except NotADirectoryError:
        raise StoreError(f"{folder} is no folder: give the one that `airvlm evaluate --out` wrote") from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON ({error}); move it away to begin anew") from None
    trouble = _trouble(content)
    if trouble:
        raise StoreError(f"{path}: {trouble}")
    return _with_labels_of_today(content)


def _with_labels_of_today(content: Json) -> Json:
    """Methods that were renamed since, by the labels that a command of today would write."""
    methods = {label_of(label): method for label, method in content["methods"].items()}
    tasks = {}
    for key, spec in content["tasks"].items():
        tasks[key] = dict(spec)
        if "matched" in spec:
            facts = {label_of(label): fact for label, fact in spec["matched"].items()}
            tasks[key]["matched"] = {label: {**f, "label": label_of(f["label"])} for label, f in facts.items()}
    found = {**content, "methods": methods, "tasks": tasks}
    if "sweeps" in content:
        found["sweeps"] = {
            name: {**sweep, "points": [{**p, "label": label_of(p["label"])} for p in sweep["points"]]}
            for name, sweep in content["sweeps"].items()
        }
    return found


def _trouble(content: Any) -> str | None:
    """Why this is no run.json of ours, if it is none."""
    if not isinstance(content, dict):
        return f"expected an object, found {type(content).__name__}; it was not written by airvlm"
    if isinstance(content.get("format", 1), bool) or not isinstance(content.get("format", 1), int):
        return f"format is {content['format']!r}, expected a number"
    if content.get("format", 1) > FORMAT:
        return f"written in format {content['format']} by a later airvlm; this one reads up to format {FORMAT}"
    for name, kind in _PARTS.items():
        if not isinstance(content.get(name), kind):
            return f"{name!r} is missing or no object; it was not written by airvlm"
    if not all(isinstance(content["model"].get(name), str) for name in ("name", "fingerprint")):
        return "'model' has no name or no fingerprint"
    for label, method in content["methods"].items():
        if not (method is None or isinstance(method, dict)):
            return f"method {label!r} is no object"
    for name, spec in content["tasks"].items():
        lacking = [part for part in _OF_A_TASK if not isinstance(spec, dict) or part not in spec]
        if lacking:
            return f"task {name!r} has no {', '.join(lacking)}"
        if not (isinstance(spec["generation"], dict) and isinstance(spec["curve"], dict)):
            return f"task {name!r}: generation and curve must be objects"
    return None


def note(
    folder: Path,
    model: ModelFacts,
    asked: Sequence[Asked],
    methods: Mapping[str, Json | None],
    curves: Json,
    *,
    command: Json | None = None,  # who asked: command line, date
    sweeps: Json | None = None,  # which methods of which tasks belong to one sweep
    matched: Json | None = None,  # task -> control -> the same control at the strength of what it controls
) -> None:
    """Write down what this command asks, beside what earlier commands on the folder asked."""
    path = folder / MANIFEST
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(path):
            content = _joined(folder, model, asked, methods, curves)
            if sweeps:
                content["sweeps"] = {**content.get("sweeps", {}), **sweeps}
            for key, found in (matched or {}).items():
                content["tasks"][key]["matched"] = {**content["tasks"][key].get("matched", {}), **found}
            if command:
                known = [c for c in content.get("commands", ()) if c.get("command") != command["command"]]
                content["commands"] = [*known, {**command, "versions": versions()}]
            _replace(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    except StoreError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"cannot write {path}: {reason}; choose another folder with --out") from error


def _replace(path: Path, text: str) -> None:
    """The file holds the old text or the new one, never a part of it."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _joined(
    folder: Path, model: ModelFacts, asked: Sequence[Asked], methods: Mapping[str, Json | None], curves: Json
) -> Json:
    fresh: Json = {"format": FORMAT, "model": model.to_json(), "tasks": {}, "methods": {}}
    content = read(folder) if (folder / MANIFEST).exists() else fresh
    held = content["model"]
    if held["fingerprint"] != model.fingerprint:
        raise StoreError(
            f"{folder} holds answers of {held['name']} ({held['fingerprint']}), not of {model.name} "
            f"({model.fingerprint}): choose another folder with --out"
        )
    for one in asked:
        known = content["tasks"].get(one.key, {})
        content["tasks"][one.key] = {
            "task": one.name,
            "split": one.split,
            "limit": one.limit,
            "data": None if one.task.data is None else str(Path(one.task.data).absolute()),
            "generation": one.generation,
            "settings": one.task.settings(),
            "curve": {**known.get("curve", {}), **curves.get(one.key, {})},
            **({"matched": known["matched"]} if "matched" in known else {}),
            **one.spec,
        }
    content["methods"] = {**content["methods"], **methods}
    return content
