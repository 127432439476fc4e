"""run.json: what was asked of which model in a folder, so that its answers can be read again without asking.

Knows nothing about answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from airvlm.evaluation.plan import Asked, ModelFacts
from airvlm.evaluation.store import Json, StoreError

__all__ = ["MANIFEST", "note"]

MANIFEST = "run.json"


def note(
    folder: Path, model: ModelFacts, asked: Sequence[Asked], methods: Mapping[str, Json | None], curves: Json
) -> None:
    """Write down what this command asks, beside what earlier commands on the folder asked."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "run.lock").open("w") as lock:
        with contextlib.suppress(OSError):  # without locks the last one to write wins, and all write the same
            fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / MANIFEST
        content: Json = json.loads(path.read_text()) if path.exists() else {"tasks": {}, "methods": {}}
        held = content.setdefault("model", model.to_json())
        if held["fingerprint"] != model.fingerprint:
            raise StoreError(
                f"{folder} holds answers of {held['name']} ({held['fingerprint']}), not of {model.name} "
                f"({model.fingerprint}): choose another folder with --out"
            )
        for one in asked:
            known = content["tasks"].get(one.name, {})
            content["tasks"][one.name] = {
                "split": one.split,
                "limit": one.limit,
                "data": None if one.task.data is None else str(Path(one.task.data).absolute()),
                "generation": one.generation,
                "settings": one.task.settings(),
                "curve": {**known.get("curve", {}), **curves.get(one.name, {})},
                **one.spec,
            }
        content["methods"] |= methods
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        temporary.replace(path)
