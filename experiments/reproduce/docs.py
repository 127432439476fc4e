"""Tables of the documentation, between markers that say which command makes them.

    <!-- results: tiny-chair of airvlm evaluate tiny-chair --output runs/tiny --method crop-blend -->
    | method | CHAIR_S | ...
    <!-- end -->

    <!-- output: airvlm info methods --markdown -->
    ...
    <!-- end -->

After `of` comes the command that fills a results folder, or the folder itself.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from airvlm.cli import run as run_command
from airvlm.evaluation.results import VANILLA, Results, TaskResults
from airvlm.reporting.tables import (
    Table,
    count_columns,
    difference_columns,
    equal_columns,
    figure_columns,
    matched_columns,
)
from airvlm.storage.atomic import write_atomically

__all__ = ["Block", "docs_table", "find_blocks", "replace_blocks", "update"]

_BLOCK = re.compile(r"<!-- (?P<kind>results|output):(?P<head>.*?)-->\n(?P<table>.*?)<!-- end -->", re.DOTALL)
_BEGIN = re.compile(r"<!-- (results|output):")
METRICS = {"recall": ("CHAIR_S", "CHAIR_I", "recall"), "yes_ratio": ("accuracy", "f1", "yes_ratio")}


@dataclass(frozen=True)
class Block:
    """A marked table of a page."""

    task: str  # "" for the output of a command
    source: str  # a command, or a folder
    table: str

    @property
    def command(self) -> list[str] | None:
        """The words after `airvlm`; None if the source is a folder."""
        words = shlex.split(self.source)
        return words[1:] if words[0] == "airvlm" else None

    def option(self, *names: str) -> str | None:
        """The value of an option of the command."""
        return next((b for a, b in pairwise(self.command or []) if a in names), None)

    @property
    def folder(self) -> str:
        """Where the answers are."""
        return self.source if self.command is None else self.option("--output", "-o") or ""

    @property
    def methods(self) -> list[str]:
        """That the command names, vanilla first; none if the source is a folder."""
        words = self.command or []
        return [VANILLA, *(b for a, b in pairwise(words) if a == "--method")] if words else []


def find_blocks(text: str) -> list[Block]:
    """The marked tables of a page, in order; ValueError at a marker that cannot be read."""
    found = []
    for match in _BLOCK.finditer(text):
        head = " ".join(match["head"].split())
        task, of, source = head.partition(" of ") if match["kind"] == "results" else ("", "of", head)
        if not (of and source) or (match["kind"] == "results" and not task) or _BEGIN.search(match["table"]):
            raise ValueError(
                f"write a marker as '<!-- results: TASK of COMMAND -->', ended by '<!-- end -->': {head!r}"
            )
        block = Block(task.strip(), source, match["table"])
        if match["kind"] == "output" and block.command is None:
            raise ValueError(f"output: {source}: give an airvlm command")
        if task and block.command is not None and (block.command[:1] != ["evaluate"] or not block.folder):
            raise ValueError(f"results of {task}: the command must be airvlm evaluate ... --output FOLDER ...")
        found.append(block)
    if len(found) != len(_BEGIN.findall(text)):
        raise ValueError("a marker has no '<!-- end -->' after it")
    return found


def replace_blocks(text: str, tables: Sequence[str]) -> str:
    """The page with these tables between its markers."""
    waiting = iter(tables)

    def fill(match: re.Match[str]) -> str:
        return f"<!-- {match['kind']}:{match['head']}-->\n{next(waiting).strip()}\n<!-- end -->"

    return _BLOCK.sub(fill, text)


def docs_table(task: TaskResults) -> str:
    """A task's methods beside vanilla, as the documentation shows them."""
    trade, known = task.trade_off, list(task.scores(VANILLA).definitions)
    metrics = list(METRICS.get(trade.x, known[:3]) if trade else known[:3])
    columns = figure_columns(task, metrics, brief=True) | difference_columns(task, metrics[:1])
    columns |= dict(list(equal_columns(task).items())[:1]) | matched_columns(task) | count_columns(task)
    return Table.of("", columns, [VANILLA, *task.others]).to_markdown(bare=True)


def update(path: Path, *, plan: bool = False) -> list[str]:
    """Run the commands of a page's markers and write their tables; lines that say what was done, or would be.

    A table whose images are not on this machine is left as it is.
    """
    text = path.read_text(encoding="utf-8")
    blocks = find_blocks(text)
    lines, tables, ran = [], [], dict[str, str]()
    for block in blocks:
        name, data = block.task or block.source, block.option("--data")
        table = block.table.strip()
        if data is not None and not Path(data).exists():
            lines.append(f"{path}: {name}: left as it is: {data} is not here")
        elif plan:
            lines.append(f"{path}: {name}: {'read ' if block.command is None else ''}{block.source}")
        else:
            if block.command is not None and block.source not in ran:
                ran[block.source] = _run(block.command)
            table = (ran[block.source] if not block.task else _results_table(block)).strip()
            lines.append(f"{path}: {name}: {'unchanged' if table == block.table.strip() else 'changed'}")
        tables.append(table)
    if not plan and blocks:
        write_atomically(path, replace_blocks(text, tables))
    return lines


def _results_table(block: Block) -> str:
    results = Results.load(block.folder)
    if block.task not in results.tasks:
        raise ValueError(f"{block.folder} has no answers to {block.task}")
    task = results.tasks[block.task]
    if block.methods:  # a folder may hold more than is shown
        task.methods = {label: task.methods[label] for label in block.methods if label in task.methods}
    return docs_table(task)


def _run(words: Sequence[str]) -> str:
    """Run a command and return what it printed. Exit code 1 is a note about its figures."""
    sys.stderr.write(f"airvlm {' '.join(words)}\n")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run_command([*words])
    if code > 1:
        raise ValueError(f"airvlm {' '.join(words[:2])} ... ended with code {code}")
    return printed.getvalue()
