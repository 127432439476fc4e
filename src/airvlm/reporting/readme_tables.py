"""Result tables of a README, between markers that say where their figures come from:

    <!-- results: tiny-chair of airvlm evaluate tiny-chair tiny-pope --out runs/tiny --method air -->
    | method | CHAIR_S | ...
    <!-- end -->

What stands after `of` is the command that fills the store, or the folder that one has filled. Knows the text and the
form of the tables; running the command is others' work.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from airvlm.evaluation.task_results import VANILLA, TaskResults
from airvlm.reporting.sheets import Cell, Column, Sheet, markdown_table
from airvlm.reporting.task_sheet import (
    at_equal_columns,
    change_cell,
    count_columns,
    figure_columns,
    matched_columns,
)

__all__ = ["Block", "blocks", "readme_table", "replaced"]

BEGIN, END = "<!-- results:", "<!-- end -->"
_BLOCK = re.compile(r"<!-- results:(?P<head>.*?)-->\n(?P<table>.*?)<!-- end -->", re.DOTALL)
METRICS = {"recall": ("CHAIR_S", "CHAIR_I", "recall"), "yes_ratio": ("accuracy", "f1", "yes_ratio")}


@dataclass(frozen=True)
class Block:
    """A table of the README and what it is made of."""

    task: str
    source: str  # a command, or a folder
    table: str

    @property
    def command(self) -> list[str] | None:
        """The words after `airvlm`; None where the source is a folder."""
        words = shlex.split(self.source)
        return words[1:] if words[0] == "airvlm" else None

    @property
    def folder(self) -> str:
        """Where the answers are."""
        words = self.command
        return self.source if words is None else words[words.index("--out") + 1]

    @property
    def data(self) -> str | None:
        """The folder of images that the command needs; none where it names none."""
        words = self.command or []
        return next((b for a, b in pairwise(words) if a == "--data"), None)

    @property
    def methods(self) -> list[str]:
        """That the command names, vanilla first; none where the source is a folder."""
        words = self.command or []
        return [VANILLA, *(b for a, b in pairwise(words) if a == "--method")] if words else []


def blocks(text: str) -> list[Block]:
    """The marked tables of a text, in order; a marker that cannot be read is an error."""
    found = []
    for match in _BLOCK.finditer(text):
        task, of, source = " ".join(match["head"].split()).partition(" of ")
        block = Block(task.strip(), source, match["table"])
        if not (of and task and source) or BEGIN in match["table"]:
            raise ValueError(f"a marker reads '{BEGIN} TASK of COMMAND -->' and ends with '{END}', not {task!r}")
        words = block.command
        if words is not None and (words[:1] != ["evaluate"] or "--out" not in words[:-1]):
            raise ValueError(f"results of {task}: the command must be airvlm evaluate ... --out FOLDER ...")
        found.append(block)
    if len(found) != text.count(BEGIN):
        raise ValueError(f"a marker '{BEGIN} ... -->' has no '{END}' after it")
    return found


def replaced(text: str, tables: Sequence[str]) -> str:
    """The text with these tables between its markers, one for each."""
    waiting = iter(tables)

    def fill(match: re.Match[str]) -> str:
        return f"{BEGIN}{match['head']}-->\n{next(waiting).strip()}\n{END}"

    return _BLOCK.sub(fill, text)


def readme_table(task: TaskResults) -> str:
    """A task's methods beside vanilla, in the README's form."""
    labels = list(dict.fromkeys((VANILLA, *task.methods)))
    others = [label for label in labels if label != VANILLA]
    trade = task.trade_off
    known = list(task.scores(VANILLA).definitions)
    metrics = list(METRICS.get(trade.x, known[:3]) if trade else known[:3])
    lead = metrics[0]
    columns = figure_columns(task, labels, metrics, True)
    columns.append((Column(f"Δ {lead}"), {label: change_cell(task, label, lead) for label in others}))
    columns += at_equal_columns(task, others, trade)[:1]
    columns += matched_columns(task, others, trade)
    columns += [(Column(column.title), cells) for column, cells in count_columns(task, labels, others)]
    rows = tuple((label, tuple(cells.get(label, Cell()) for _, cells in columns)) for label in labels)
    return markdown_table(Sheet("", tuple(column for column, _ in columns), rows))
