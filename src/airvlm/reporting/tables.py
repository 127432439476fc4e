"""The result as people and programs read it at a terminal: tables, Markdown for a README, JSON.

Knows nothing about how the figures come about: the table of a task is task_sheet.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from airvlm.evaluation.results import Results
from airvlm.evaluation.store import Json
from airvlm.evaluation.task_results import TaskResults
from airvlm.reporting.sheets import to_markdown, to_rich
from airvlm.reporting.task_sheet import UNKNOWN, task_sheet, title_of

__all__ = ["legend", "markdown", "problem_table", "rich_tables", "to_json"]


def rich_tables(task: TaskResults, width: int) -> list[Table]:
    """A task's table for a terminal of this width."""
    return to_rich(task_sheet(title_of(task), task, brief=True), width)


def markdown(task: TaskResults) -> str:
    """A task's table for a README."""
    return to_markdown(task_sheet(title_of(task), task, brief=True)).rstrip()


def legend(run: Results) -> list[str]:
    """What the columns mean, for those who see them first."""
    lines = [
        "± is a standard error; [ ] a 95 % interval, paired over images; p is McNemar's, exact; Δ is to vanilla; "
        f"{UNKNOWN} where there are too few images, or no two that differ, to tell."
    ]
    trades = [t.trade_off for t in run.tasks.values() if t.curve]
    for control, x in dict.fromkeys((trade.control, trade.x) for trade in trades if trade):
        what = "saying less" if control == "shorter" else "a leaning to yes or no"
        lines.append(f"Δ at equal {x.replace('_', '-')}: what is left when {what} is taken out (curve of `{control}`).")
    return [*lines, f"answers: {run.folder}"]


def problem_table(problems: Sequence[str]) -> Table:
    """Why a run ends with a failure."""
    table = Table("these figures cannot be trusted", title_justify="left", box=None, pad_edge=False)
    for problem in problems:
        table.add_row(Text(problem))
    return table


def to_json(run: Results) -> Json:
    """{task: {method: {metric: {"value", "low", "high", "n"}}}}, in the tasks' own units (percent)."""
    return {name: {label: task.figures_json(label) for label in task.methods} for name, task in run.tasks.items()}
