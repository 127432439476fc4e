"""The result as people and programs read it: a table for the terminal, Markdown for a README, JSON.

Every figure stands with its interval; a caption task's CHAIR never stands without its distance from the curve at
equal recall. Knows nothing about how the figures come about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from airvlm.evaluation.run import VANILLA, Run, TaskRun
from airvlm.evaluation.statistics import Estimate, mcnemar
from airvlm.evaluation.store import Json
from airvlm.evaluation.trade_off import AtEqual

__all__ = [
    "Column",
    "columns",
    "legend",
    "markdown",
    "problem_table",
    "rich_tables",
    "to_json",
]

GAP = 2  # characters between columns
SHOWN = 6  # metrics of a task that fit beside each other; JSON has all


@dataclass(frozen=True)
class Column:
    """One column of a task's table: its title and a cell for each method."""

    title: str
    cells: dict[str, str]  # by method

    @property
    def width(self) -> int:
        """Characters it needs: no word of the title and no line of a cell is broken."""
        lines = [line for cell in self.cells.values() for line in cell.split("\n")]
        return max(map(len, (*self.title.split(), *lines)))


def columns(task: TaskRun, intervals: bool = True) -> list[Column]:
    """What is shown of a task, in order."""
    labels = list(task.methods)
    names = list(task.scores(VANILLA).definitions)[:SHOWN]
    shown = [
        Column(name, {label: _figure(task.sample(label).estimate(name), intervals) for label in labels})
        for name in names
    ]
    others = [label for label in labels if label != VANILLA]
    for name in names[
        :2
    ]:  # the leading metrics' difference to vanilla, with the test that suits a share of items
        shown.append(Column(f"Δ {name}", {label: _difference(task, label, name) for label in others}))
    trade = task.trade_off
    if trade is not None:
        at = {label: task.at_equal(label) for label in labels}
        for y in trade.ys:
            cells = {label: _at_equal(found[y]) for label, found in at.items() if y in found}
            if cells:
                shown.append(Column(f"Δ {y} at equal {trade.x.replace('_', '-')}", cells))
    shown.append(Column("changed", {label: str(task.changed(label)) for label in others}))
    fired = {label: task.fired(label) for label in others}
    shown.append(Column("acted", {label: str(k) for label, k in fired.items() if k is not None}))
    wrong = {label: _wrong(task, label) for label in labels}
    if any(wrong.values()):
        shown.append(Column("not counted", wrong))
    return shown


def rich_tables(task: TaskRun, width: int) -> list[Table]:
    """A task's table for a terminal of this width: what does not fit beside the rest goes below it."""
    first = max(map(len, ("method", *task.methods)))
    parts: list[list[Column]] = [[]]
    room = width - first
    for column in columns(task):
        if parts[-1] and column.width + GAP > room:
            parts.append([])
            room = width - first
        parts[-1].append(column)
        room -= column.width + GAP
    return [_table(task, part, _title(task) if part is parts[0] else None) for part in parts]


def _table(task: TaskRun, shown: Sequence[Column], title: str | None) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for column in shown:
        table.add_column(column.title, justify="right", overflow="fold", min_width=column.width)
    for label in task.methods:
        table.add_row(label, *(column.cells.get(label, "") for column in shown))
    return table


def markdown(task: TaskRun) -> str:
    """A task's table for a README."""
    shown = columns(task)
    head = ["method", *(column.title for column in shown)]
    lines = [f"**{_title(task)}**", "", "| " + " | ".join(head) + " |", "|---" + "|---:" * len(shown) + "|"]
    for label in task.methods:
        cells = [label, *(column.cells.get(label, "") for column in shown)]
        lines.append("| " + " | ".join(" ".join(cell.split()) for cell in cells) + " |")
    return "\n".join(lines)


def legend(run: Run) -> list[str]:
    """What the columns mean, for those who see them first."""
    lines = [
        "± is a standard error; [ ] a 95 % interval, paired over pictures; p is McNemar's, exact; Δ is to vanilla."
    ]
    trades = [t.trade_off for t in run.tasks.values() if t.curve]
    for control, x in dict.fromkeys((trade.control, trade.x) for trade in trades if trade):
        what = "saying less" if control == "shorter" else "a leaning to yes or no"
        lines.append(
            f"Δ at equal {x.replace('_', '-')}: what is left when {what} is taken out (curve of `{control}`)."
        )
    return [*lines, f"answers: {run.folder}"]


def problem_table(problems: Sequence[str]) -> Table:
    """Why a run ends with a failure."""
    table = Table("these figures cannot be trusted", title_justify="left", box=None, pad_edge=False)
    for problem in problems:
        table.add_row(problem)
    return table


def to_json(run: Run) -> Json:
    """{task: {method: {metric: {"value", "low", "high", "n"}}}}, in the tasks' own units (percent)."""
    return {
        name: {label: task.figures_json(label) for label in task.methods} for name, task in run.tasks.items()
    }


def _title(task: TaskRun) -> str:
    generation = task.asked.generation
    pictures = len(set(task.scores(VANILLA).pictures))
    parts = [
        f"{task.asked.name}, {task.asked.split} split",
        f"{len(task.items)} items on {pictures} pictures",
    ]
    if "max_new_tokens" in generation:
        parts.append(f"at most {generation['max_new_tokens']} tokens, greedy")
    if generation.get("noise"):
        parts.append(f"pictures disturbed by {generation['noise'] * 255:.0f}/255")
    return "; ".join(parts)


def _figure(estimate: Estimate, interval: bool) -> str:
    if not math.isfinite(estimate.value):
        return "–"
    return f"{estimate.value:.1f}" + (f"\n± {estimate.error:.1f}" if interval else "")


def _difference(task: TaskRun, label: str, name: str) -> str:
    estimate = task.sample(label).difference(task.sample(VANILLA), name)
    text = _signed(estimate)
    p = mcnemar(task.scores(label), task.scores(VANILLA), name)
    return text if p is None else f"{text}\np = {p:.2g}"


def _at_equal(at: AtEqual) -> str:
    # beyond the curve's end the comparison is with its end: better than nothing, and marked
    return _signed(at.difference) + ("" if at.inside else "\nbeyond the curve")


def _signed(estimate: Estimate) -> str:
    if not math.isfinite(estimate.value):
        return "–"
    return f"{estimate.value:+.1f}\n[{estimate.low:+.1f}, {estimate.high:+.1f}]".replace("-", "−")


def _wrong(task: TaskRun, label: str) -> str:
    counts = {
        "failed": task.failed(label),
        "unanswered": task.unanswered(label),
        "unparsed": task.scores(label).unparsed,
    }
    return ", ".join(f"{k} {name}" for name, k in counts.items() if k)
