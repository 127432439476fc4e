"""Runs in the paper's own layout, with its figures beside ours.

Knows which of our tasks belongs to which table of the paper; nothing about how a table is written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airvlm.evaluation.null_results import is_control
from airvlm.evaluation.results import Results
from airvlm.evaluation.task_results import VANILLA, TaskResults
from airvlm.reporting.paper import CITATION, LLAVA, METHODS, MODELS, REMARKS, Printed, printed
from airvlm.reporting.sheets import Cell, Column, Sheet
from airvlm.reporting.task_sheet import ARROWS, figure_cells

__all__ = ["labels_of", "paper_method", "paper_model", "paper_sheets"]

SETTINGS = ("random", "popular", "adversarial")


def paper_method(label: str) -> str | None:
    """The row of the paper that a method of ours is a reading of; a control is a reading of none."""
    if is_control(label):
        return None
    name = label.split(":")[0].split("-")[0]
    return name if name in METHODS else None


def paper_model(name: str) -> str | None:
    """The paper's name for a checkpoint, if it is one of the paper's."""
    return next((model for model, parts in MODELS.items() if any(part in name.lower() for part in parts)), None)


def labels_of(tasks: Sequence[TaskResults]) -> list[str]:
    """The methods of several tasks, vanilla first, each once."""
    return list(dict.fromkeys(label for task in tasks for label in (VANILLA, *task.methods)))


@dataclass(frozen=True)
class _Part:
    """One task of one run in a sheet of the paper's layout."""

    group: str
    task: TaskResults
    beside: Printed | None
    model: str | None  # the paper's model whose figures stand beside; None: not one of the paper's
    suffix: str = ""  # what our metrics' names end in, where one task holds several of the paper's tables


def paper_sheets(runs: Sequence[Results]) -> list[Sheet]:
    """One sheet for each of the paper's tables that a run has figures for."""
    families: dict[str, list[_Part]] = {}
    for run in runs:
        model = paper_model(str(run.model["name"]))
        for name, task in run.tasks.items():
            cap = task.asked.generation.get("max_new_tokens")
            known = task.scores(VANILLA).definitions
            together = [s for s in SETTINGS if f"accuracy-{s}" in known]  # POPE's three settings as one task
            for setting in together or [""]:
                whole = "-".join(part for part in (name, setting) if part)
                family, group = _place(whole, run, cap, several=len(runs) > 1)
                suffix = f"-{setting}" if setting else ""
                part = _Part(group, task, printed(whole, cap), model, suffix)
                families.setdefault(family, []).append(part)
    return [_paper_sheet(family, parts) for family, parts in families.items()]


def _place(name: str, run: Results, cap: int | None, several: bool) -> tuple[str, str]:
    """The sheet a task belongs in, and its group of columns there."""
    model = str(run.model["name"]).rstrip("/").rsplit("/", 1)[-1]
    base, _, setting = name.rpartition("-")
    if setting in SETTINGS and "pope" in base:
        return f"{base} ({model})" if several else base, setting
    return name, f"{model}, at most {cap} tokens" if "chair" in name and cap else model


def _paper_sheet(family: str, parts: Sequence[_Part]) -> Sheet:
    labels = labels_of([part.task for part in parts])
    columns: list[Column] = []
    cells: dict[str, list[Cell]] = {label: [] for label in labels}
    for part in parts:
        metrics = _metrics(part)
        for metric in metrics:
            better = part.task.scores(VANILLA).definitions[metric + part.suffix].better
            columns.append(Column(metric + ARROWS[better], part.group))
            found = figure_cells(part.task, metric + part.suffix, labels)
            for label in labels:
                cells[label].append(found.get(label, Cell()))
        if part.beside is None:
            continue
        model = part.model or LLAVA
        for metric in [m for m in part.beside.metrics if m in metrics]:
            values = {label: part.beside.value(model, paper_method(label) or "", metric) for label in labels}
            if any(value is not None for value in values.values()):
                columns.append(Column(metric, f"the paper: {model}", paper=True))
                for label, value in values.items():
                    cells[label].append(Cell("" if value is None else _as_printed(value)))
    return Sheet(
        _title(family, parts),
        tuple(columns),
        tuple((label, tuple(row)) for label, row in cells.items()),
        tuple(_notes(family, parts)),
    )


def _as_printed(value: float) -> str:
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"


def _metrics(part: _Part) -> list[str]:
    """The paper's metrics of the task that we have, recall always among a description's; else its first few."""
    known = part.task.scores(VANILLA).definitions
    if part.beside is None:
        return ["accuracy", "f1"] if part.suffix else list(known)[:4]
    wanted = [m for m in part.beside.metrics if m + part.suffix in known]
    return wanted + [m for m in ("recall",) if "CHAIR_S" in wanted and m in known and m not in wanted]


def _title(family: str, parts: Sequence[_Part]) -> str:
    where = dict.fromkeys(part.beside.where for part in parts if part.beside)
    return f"{family}, laid out as the paper's {' and '.join(where)}" if where else family


def _notes(family: str, parts: Sequence[_Part]) -> list[str]:
    notes = [
        "In brackets: 95 % intervals, bootstrap over images. Bold: better than every other of our figures in "
        "the column by more than the interval of the difference; none where a bias on one token buys it, there the "
        "columns at equal recall or yes-ratio decide."
    ]
    if any(part.beside for part in parts):
        notes.append(f"Columns headed 'the paper' are the paper's own figures, not measured here: {CITATION}.")
        if any(part.model is None for part in parts):
            notes.append(
                "The model here is none of the paper's, nor are the images: its figures can be "
                "compared in direction only."
            )
        remark = next((text for key, text in REMARKS.items() if key in family), None)
        notes += [f"About the paper's figures: {remark}."] if remark else []
    return notes
