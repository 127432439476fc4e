"""What an evaluation left in a folder: one model's answers, task by task and method by method.

    results = Results.load("runs/tiny")
    results.tasks["tiny-chair"].scores("air").metrics      # {"CHAIR_S": 16.5, ...}; see task_results.py

`from airvlm.evaluation import Results`. The folder holds answers.jsonl (store.py) and run.json (manifest.py), which
says what was asked: model, tasks, methods, and the controls that draw each task's curve. Needs no model; knows nothing
about how answers are made or shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airvlm.evaluation.manifest import MANIFEST, read
from airvlm.evaluation.null_results import stands_beside
from airvlm.evaluation.plan import Asked
from airvlm.evaluation.store import Json, Store, StoreError, digest
from airvlm.evaluation.task_results import VANILLA, TaskResults
from airvlm.tasks import load_task

__all__ = ["Results"]


@dataclass
class Results:
    """All tasks of a folder."""

    folder: Path
    model: Json
    methods: dict[str, Json | None]
    tasks: dict[str, TaskResults]
    commands: list[Json] = field(default_factory=list)  # that wrote it: command line, date, versions
    sweeps: dict[str, Json] = field(default_factory=dict)  # what `airvlm ablate` varied, see sweeps.py

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        data: str | Path | None = None,  # replaces the benchmarks' folder that the run was made with
        store: Store | None = None,  # already open; else it is read
        asked: Iterable[Asked] | None = None,  # only these tasks, as given: they may be known nowhere else
    ) -> Results:
        """Read a folder."""
        folder = Path(folder)
        content = read(folder)
        given = None if asked is None else {one.key: one for one in asked}
        records = store if store is not None else Store(folder, readonly=True)
        labels = sorted(content["methods"], key=lambda label: label != VANILLA)  # vanilla first, else as asked
        methods = {label: content["methods"][label] for label in labels}
        tasks = {}
        for key, spec in content["tasks"].items():
            if given is not None and key not in given:
                continue
            one = given[key] if given is not None else _asked(folder, key, spec, data)
            found = TaskResults.of(one, methods, spec["curve"], records, content["model"]["fingerprint"])
            found.matched = spec.get("matched", {})
            seen = {key for key, _ in found.answers} | {digest(None)}
            found.methods = {label: method for label, method in methods.items() if digest(method) in seen}
            tasks[key] = found
        more = content.get("commands", []), content.get("sweeps", {})
        return cls(folder, content["model"], methods, tasks, *more)

    def problems(self, *, acting: bool = False) -> list[str]:
        """Why the run should not be trusted; acting: also that a control or baseline never acted."""
        found = [problem for task in self.tasks.values() for problem in task.problems()]
        idle = self._idle()
        return found + [line for line, beside in idle if acting or not beside]

    def notes(self) -> list[str]:
        """Null results: controls and baselines that never acted in a task."""
        return [line for line, beside in self._idle() if beside]

    def _idle(self) -> list[tuple[str, bool]]:
        """Methods that never acted in a task, and whether that is a result like any other."""
        found = []
        for label in dict.fromkeys(name for task in self.tasks.values() for name in task.methods):
            tasks = {key: task for key, task in self.tasks.items() if label in task.methods}
            beside = stands_beside(label, {key: task.fired(label) for key, task in tasks.items()})
            for key, task in tasks.items():
                reason = task.idle(label)
                if reason is not None:
                    found.append((f"{key}, {label}: the method never acted ({reason})", beside))
        return found

    def only(self, tasks: Sequence[str], methods: Sequence[str]) -> Results:
        """The part of the run that one command asked for."""
        kept = {label: self.methods[label] for label in self.methods if label in methods}
        parts = {
            name: TaskResults(t.asked, _of(t, kept), t.curve, t.answers, t.matched)
            for name, t in self.tasks.items()
            if name in tasks
        }
        return Results(self.folder, self.model, kept, parts, self.commands, self.sweeps)


def _of(task: TaskResults, kept: dict[str, Json | None]) -> dict[str, Json | None]:
    """The methods that the command asked of this task."""
    own = task.asked.methods
    return kept if own is None else {label: m for label, m in kept.items() if label == VANILLA or label in own}


def _asked(folder: Path, key: str, spec: Json, data: str | Path | None) -> Asked:
    """A task of run.json, loaded again."""
    name = spec.get("task", key)
    where = data if data is not None else spec["data"]
    try:
        task = load_task(name, where, variant=spec.get("variant"), **spec.get("options", {}))
        items = task.items(spec["limit"], spec["split"])
    except (ValueError, TypeError) as error:
        raise StoreError(f"{folder / MANIFEST}: task {key!r} cannot be loaded again: {error}") from error
    return Asked(name, task, items, spec["split"], spec["limit"], spec["generation"], label=key)
