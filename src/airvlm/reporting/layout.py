"""Runs laid out as tables: the paper's own layout with its figures beside ours, and every task in full.

Knows which of our tasks belongs to which table of the paper; nothing about how a table is written down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from airvlm.evaluation.run import VANILLA, Run, TaskRun
from airvlm.evaluation.statistics import Estimate, mcnemar
from airvlm.methods.air.controls import CONTROLS
from airvlm.reporting.paper import CITATION, LLAVA, METHODS, MODELS, REMARKS, Printed, printed
from airvlm.reporting.sheets import Cell, Column, Sheet

__all__ = ["full_sheet", "labels_of", "number", "paper_method", "paper_sheets"]

LEADING, SHOWN = 4, 10  # metrics at the front of a task's table, and in all of it; the CSV has all
ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
SETTINGS = ("random", "popular", "adversarial")


def number(value: float, digits: int = 1) -> str:
    return "–" if not math.isfinite(value) else f"{value:.{digits}f}".replace("-", "−")


def _interval(estimate: Estimate) -> str:
    return "" if not math.isfinite(estimate.low) else f"[{number(estimate.low)}, {number(estimate.high)}]"


def paper_method(label: str) -> str | None:
    """The row of the paper that a method of ours is a reading of; a control is a reading of none."""
    name = label.split(":")[0]
    if name.removeprefix("air-") in CONTROLS:
        return None
    name = name.split("-")[0]
    return name if name in METHODS else None


def paper_model(name: str) -> str | None:
    """The paper's name for a checkpoint, if it is one of the paper's."""
    return next(
        (model for model, parts in MODELS.items() if any(part in name.lower() for part in parts)), None
    )


def labels_of(tasks: Sequence[TaskRun]) -> list[str]:
    """The methods of several tasks, vanilla first, each once."""
    return list(dict.fromkeys(label for task in tasks for label in (VANILLA, *task.methods)))


@dataclass(frozen=True)
class _Part:
    """One task of one run in a sheet of the paper's layout."""

    group: str
    task: TaskRun
    beside: Printed | None
    model: str | None  # the paper's model whose figures stand beside; None: not one of the paper's
    suffix: str = ""  # what our metrics' names end in, where one task holds several of the paper's tables


def paper_sheets(runs: Sequence[Run]) -> list[Sheet]:
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


def _place(name: str, run: Run, cap: int | None, several: bool) -> tuple[str, str]:
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
            for label, cell in _ours(part.task, metric + part.suffix, labels).items():
                cells[label].append(cell)
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


def _ours(task: TaskRun, metric: str, labels: Sequence[str]) -> dict[str, Cell]:
    found = {label: task.sample(label).estimate(metric) for label in labels if label in task.methods}
    better = task.scores(VANILLA).definitions[metric].better
    values = [e.value for e in found.values() if math.isfinite(e.value)]
    # A figure that a bias on one token buys has no best: the lowest CHAIR belongs to whoever says least.
    bought = task.trade_off is not None and metric in task.trade_off.ys
    level = better == "neither" or len(set(values)) < 2
    best = None if level or bought else (max if better == "higher" else min)(values)
    return {
        label: Cell(number(e.value), _interval(e), best=e.value == best)
        if (e := found.get(label))
        else Cell()
        for label in labels
    }


def _title(family: str, parts: Sequence[_Part]) -> str:
    where = dict.fromkeys(part.beside.where for part in parts if part.beside)
    return f"{family}, laid out as the paper's {' and '.join(where)}" if where else family


def _notes(family: str, parts: Sequence[_Part]) -> list[str]:
    notes = [
        "In brackets: 95 % intervals, bootstrap over pictures. Bold: the best of our figures in a column; none "
        "where a bias on one token buys it, there the columns at equal recall or yes-ratio decide."
    ]
    if any(part.beside for part in parts):
        notes.append(
            f"Columns headed 'the paper' are the paper's own figures, not measured here: {CITATION}."
        )
        if any(part.model is None for part in parts):
            notes.append(
                "The model here is none of the paper's, nor are the pictures: its figures can be "
                "compared in direction only."
            )
        remark = next((text for key, text in REMARKS.items() if key in family), None)
        notes += [f"About the paper's figures: {remark}."] if remark else []
    return notes


def full_sheet(name: str, task: TaskRun) -> Sheet:
    """Everything that decides about a task: figures, differences, the distance from the control's curve."""
    labels = labels_of([task])
    definitions = task.scores(VANILLA).definitions
    columns: list[Column] = []
    cells: dict[str, list[Cell]] = {label: [] for label in labels}

    def add(column: Column, found: dict[str, Cell]) -> None:
        columns.append(column)
        for label in labels:
            cells[label].append(found.get(label, Cell()))

    def figures(metrics: Sequence[str]) -> None:
        for metric in metrics:
            add(Column(metric + ARROWS[definitions[metric].better], "figures"), _ours(task, metric, labels))

    others = [label for label in labels if label != VANILLA]
    figures(list(definitions)[:LEADING])
    trade = task.trade_off
    if trade is not None:  # next to the figures themselves: on a narrow screen, what is far right is not seen
        at = {label: task.at_equal(label) for label in others}
        for y in trade.ys:
            found = {
                label: _signed(
                    here[y].difference, definitions[y].better, "" if here[y].inside else "beyond the curve"
                )
                for label, here in at.items()
                if y in here
            }
            if found:
                add(Column(f"Δ {y}", f"at equal {trade.x.replace('_', '-')}"), found)
    for metric in list(definitions)[:2]:
        found = {label: _difference(task, label, metric) for label in others}
        add(Column(f"Δ {metric}", "difference to vanilla"), found)
    n = len(task.items)
    add(Column("changed", f"of {n} answers"), {label: Cell(str(task.changed(label))) for label in others})
    acted = {label: task.fired(label) for label in others}
    add(
        Column("acted", f"of {n} answers"),
        {label: Cell(str(k)) for label, k in acted.items() if k is not None},
    )
    failed = {label: task.failed(label) + task.unanswered(label) for label in labels}
    add(Column("failed", f"of {n} answers"), {label: Cell(str(k)) for label, k in failed.items()})
    unparsed = {label: Cell(str(task.scores(label).unparsed)) for label in labels}
    add(Column("unparsed", f"of {n} answers"), unparsed)
    figures(list(definitions)[LEADING:SHOWN])
    pictures = len(set(task.scores(VANILLA).pictures))
    notes = [
        f"{n} items on {pictures} pictures, {task.asked.split} split. Brackets: 95 % intervals, "
        f"paired over pictures."
    ]
    if trade is not None:
        notes.append(
            f"At equal {trade.x.replace('_', '-')}: the method minus what a bias on one token alone "
            f"(`{trade.control}`) reaches at the method's "
            f"own {trade.x.replace('_', '-')}. This is the column that decides."
        )
    rows = tuple((label, tuple(row)) for label, row in cells.items())
    return Sheet(name, tuple(columns), rows, (*notes, *task.scores(VANILLA).notes))


def _difference(task: TaskRun, label: str, metric: str) -> Cell:
    p = mcnemar(task.scores(label), task.scores(VANILLA), metric)
    better = task.scores(VANILLA).definitions[metric].better
    return _signed(
        task.sample(label).difference(task.sample(VANILLA), metric), better, "" if p is None else f"p={p:.2g}"
    )


def _signed(estimate: Estimate, better: str, more: str = "") -> Cell:
    if not math.isfinite(estimate.value):
        return Cell("–")
    text = f"{estimate.value:+.1f}".replace("-", "−")
    under = " ".join(part for part in (_interval(estimate), more) if part)
    gains = (estimate.value > 0) == (better == "higher")
    sure = estimate.significant and better != "neither"
    return Cell(text, under, mood=("good" if gains else "bad") if sure else "")
