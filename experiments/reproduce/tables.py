"""Measure a table of the paper again, and print ours beside the paper's."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import airvlm
from airvlm.evaluation.plan import TaskSpec
from airvlm.evaluation.results import VANILLA, Results, TaskResults
from airvlm.evaluation.statistics import Estimate
from airvlm.reporting.tables import Cell, Column, Table, format_signed, number, task_title
from airvlm.tasks.judges.judge import NoJudge
from experiments.reproduce.paper import PaperPart, PaperRow, PublishedTable, paper_facts, rows_of

__all__ = ["Compared", "PlannedPart", "compare", "comparison_table", "estimate_hours", "measure", "plan_parts"]

OUTSIDE, INSIDE = "≠", "≈"
TINY = {"chair": "tiny-chair"} | {f"pope-coco-{s}": f"tiny-pope-{s}" for s in ("random", "popular", "adversarial")}
TRIAL = 4  # items per method for an estimate of the time


# -- what a table needs


@dataclass(frozen=True)
class PlannedPart:
    """A part of a table: what is asked, or why it cannot be."""

    part: PaperPart
    rows: tuple[PaperRow, ...]
    spec: TaskSpec | None
    data: str  # where the data were found, or what is missing and where it comes from

    @property
    def methods(self) -> dict[str, Any]:
        return {row.label: row.method for row in self.rows}

    @property
    def answers(self) -> int:
        return 0 if self.spec is None else len(self.spec.items) * len(self.methods)

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.part.task,
            "key": self.part.key,
            "answers": self.answers,
            "data": self.data,
            "rows": [{"paper": row.name, "method": row.label} for row in self.rows],
        }


def plan_parts(
    table: PublishedTable,
    *,
    model: str,
    data: Path | None,
    limit: int | None = None,
    air: list[str] | None = None,
    depth: int = 32,
) -> list[PlannedPart]:
    """The parts of a table, each with its data or what is missing.

    Args:
        table: of the paper.
        model: "tiny" asks the emoji world's tasks in place of COCO's.
        data: the folder of all benchmarks.
        limit: items per task.
        air: the methods in rows that the paper calls AIR.
        depth: decoder layers of the model.
    """
    found = []
    for part in table.parts:
        spec, where = _find_task(part, model, data, limit)
        rows = tuple(rows_of(part, air, depth))
        if spec is not None:
            spec = replace(spec, methods={row.label: row.method for row in rows if row.method is not None})
        found.append(PlannedPart(part, rows, spec, where))
    return found


def _find_task(part: PaperPart, model: str, data: Path | None, limit: int | None) -> tuple[TaskSpec | None, str]:
    how: dict[str, Any] = {"limit": limit, "max_new_tokens": part.max_new_tokens, "noise": part.noise}
    if model == "tiny":
        if part.task not in TINY:
            return None, f"{part.task} has no counterpart in the emoji world"
        name = TINY[part.task]
        return TaskSpec.of(name, label=part.key.replace(part.task, name, 1), **how), "scenes of the package"
    facts = paper_facts()["data"].get(part.task.split("-")[0], {})
    folders = [] if data is None else [*(data / name for name in facts.get("folders", [part.task])), data]
    problem = "" if folders else f"{part.task} needs --data FOLDER"
    for folder in folders:
        if folder != data and not folder.is_dir():
            continue
        try:
            return TaskSpec.of(part.task, data=folder, label=part.key, **how), f"found in {folder}"
        except (ValueError, OSError, NotImplementedError) as error:
            problem = problem or str(error)
    searched = f"; searched in {', '.join(map(str, folders))}" if folders else ""
    return None, f"{problem}{searched}; source: {facts.get('source') or airvlm.load_task(part.task).source}"


def estimate_hours(model: Any, parts: Sequence[PlannedPart]) -> float:
    """Hours of the whole in one process, from a few answers of each method."""
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            if part.spec is None:
                continue
            few = replace(part.spec, items=part.spec.items[:TRIAL])
            found = airvlm.evaluate(
                model, [few], [], out=folder, curve=False, progress=False, workers=1, batch_size=TRIAL
            )
            [task] = found.tasks.values()
            means = {row["method"]: row["seconds"] or 0.0 for row in task.rows()}
            seconds += sum(means.values()) * len(part.spec.items)
    return seconds / 3600


# -- ours beside the paper's


@dataclass(frozen=True)
class Compared:
    """One cell of the paper and ours."""

    part: str
    row: str  # the paper's
    label: str  # our method
    metric: str
    paper: float | None
    ours: Estimate
    paper_change: float | None  # against vanilla
    change: Estimate | None
    same_model: bool

    @property
    def differs(self) -> bool | None:
        """Whether the paper's figure is outside our interval; None if unknown, or if it is of another model."""
        return self._outside(self.paper, self.ours)

    @property
    def change_differs(self) -> bool | None:
        return None if self.change is None else self._outside(self.paper_change, self.change)

    def _outside(self, paper: float | None, ours: Estimate) -> bool | None:
        if not self.same_model or paper is None or not ours.trusted:
            return None
        return not ours.low <= paper <= ours.high

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "row": self.row,
            "method": self.label,
            "metric": self.metric,
            "paper": self.paper,
            "ours": self.ours.to_json(),
            "differs": self.differs,
            "paper_change": self.paper_change,
            "change": None if self.change is None else self.change.to_json(),
            "change_differs": self.change_differs,
        }


def measure(
    parts: Sequence[PlannedPart], model: Any, theirs: str, same: bool, **spread: Any
) -> tuple[Results, dict[str, list[Compared]], list[str]]:
    """Ask what is missing, and compare: the results, cells by part, and notes on parts without any."""
    specs = [part.spec for part in parts if part.spec is not None]
    results = airvlm.evaluate(model, specs, [], curve=False, **spread)
    cells, notes = dict[str, list[Compared]](), list[str]()
    for part in parts:
        if part.spec is None:
            notes.append(f"{part.part.key}: not run: {part.data}")
            continue
        task = results.tasks[part.spec.key]
        try:
            cells[part.spec.key] = compare(part.part, task, part.rows, theirs, same)
        except NoJudge as error:
            notes.append(f"{part.part.key}: answered, not scored: {error}")
            continue
        if not cells[part.spec.key]:
            notes.append(
                f"{part.part.key}: answered, not scored: airvlm score {part.spec.name} {results.folder} "
                f"--data {part.spec.task.data} --set method=NAME compares two methods"
            )
    return results, cells, notes


def compare(part: PaperPart, task: TaskResults, rows: Sequence[PaperRow], model: str, same: bool) -> list[Compared]:
    """Every cell of a part that we have a figure of.

    Args:
        part: of the paper's table.
        task: our results.
        rows: which of our methods fills which row.
        model: the paper's model.
        same: whether ours is the same model.
    """
    known = task.scores(VANILLA).definitions
    metrics = [m for m in part.metrics if m in known]
    metrics += [m for m in ("recall",) if "CHAIR_S" in metrics and m in known and m not in metrics]
    found = []
    for row in rows:
        for metric in metrics:
            paper, base = part.value(model, row.name, metric), part.value(model, VANILLA, metric)
            vanilla = row.label == VANILLA
            change = None if vanilla else task.difference(row.label, metric)
            moved = None if vanilla or paper is None or base is None else paper - base
            ours = task.sample(row.label).estimate(metric)
            found.append(Compared(part.key, row.name, row.label, metric, paper, ours, moved, change, same))
    return found


def comparison_table(task: TaskResults, cells: Sequence[Compared], model: str, same: bool) -> Table:
    """The cells of one part, one line each: figures, then differences to vanilla."""
    titles = (
        "metric",
        "paper",
        "ours",
        "95 % interval",
        "",
        "paper's difference",
        "our difference",
        "its interval",
        " ",
    )

    def bounds(estimate: Estimate | None, show: Any) -> str:
        if estimate is None:
            return ""
        return f"[{show(estimate.low)}, {show(estimate.high)}]" if estimate.trusted else "[?]"

    def mark(differs: bool | None) -> str:
        return "" if differs is None else OUTSIDE if differs else INSIDE

    lines = []
    for one in cells:
        texts = (
            one.metric,
            "" if one.paper is None else f"{one.paper:g}",
            number(one.ours.value),
            bounds(one.ours, number),
            mark(one.differs),
            "" if one.paper_change is None else format_signed(one.paper_change),
            "" if one.change is None else format_signed(one.change.value),
            bounds(one.change, format_signed),
            mark(one.change_differs),
        )
        label = one.row if one.row == one.label else f"{one.row}: {one.label}"
        lines.append((label, tuple(map(Cell, texts))))
    note = f"{OUTSIDE}: the paper's figure is outside our interval, {INSIDE}: inside. Differences are to vanilla."
    if not same:
        note = f"The paper's figures are of {model}, another model than ours: they are shown, not compared."
    title = task_title(task)
    return Table(title, tuple(map(Column, titles)), tuple(lines), (note,), corner="the paper's row: our method")


def draw_changes(path: Path, cells: Sequence[Compared]) -> bool:
    """Draw the leading metric's difference to vanilla of every row, ours and the paper's; False without any."""
    from airvlm.reporting.plots import LINE, Point, draw_intervals, figure, style_of

    leads = {cell.part: cell.metric for cell in reversed(cells)}  # the first metric of each part
    shown = [(c, c.change) for c in cells if c.change is not None and c.metric == leads[c.part]]
    if not shown:
        return False
    (color, marker), (other, _) = style_of(1), style_of(2)
    with figure(1.1 + LINE * len(shown), width=7.0) as drawn:
        axes = drawn.subplots()
        for y, (cell, change) in enumerate(shown):
            draw_intervals(axes, [Point(change.value, y, change.low, change.high)], color, across=True)
            axes.plot(change.value, y, color=color, marker=marker, linestyle="none", label="ours" if not y else None)
            if cell.paper_change is not None:
                axes.plot(cell.paper_change, y, color=other, marker="x", linestyle="none")
        axes.plot([], [], color=other, marker="x", linestyle="none", label="paper")
        axes.axvline(0.0, color="#333333", linewidth=1.0)
        names = [f"{c.part}: {c.label}" if len(leads) > 1 else c.label for c, _ in shown]
        axes.set_yticks(range(len(shown)), names)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel(f"{' / '.join(dict.fromkeys(leads.values()))}, difference to vanilla (95 % interval)")
        drawn.legend(loc="outside lower left", ncols=2, frameon=False)
        drawn.savefig(path, dpi=120)
    return True
