"""A table of figures as data, and the same table in HTML, Markdown, LaTeX and for the terminal.

A sheet has column groups (a model, a dataset) over columns, and rows. Every text is taken as plain text: each format
escapes it for itself. Knows nothing of what the figures mean.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

__all__ = [
    "Cell",
    "Column",
    "Group",
    "Sheet",
    "markdown_table",
    "templates",
    "to_html",
    "to_latex",
    "to_markdown",
    "to_rich",
]

WIDE = 9  # more columns than this are printed across the page
GAP = 2  # characters between columns of the terminal


@dataclass(frozen=True)
class Cell:
    """One figure as it is shown."""

    text: str = ""
    under: str = ""  # in small print: an interval, a test
    best: bool = False  # bold: surely the best of its column
    mood: Literal["", "good", "bad"] = ""  # a difference that is sure, and to which side

    @property
    def lines(self) -> list[str]:
        return [line for line in (self.text, self.under) if line]


@dataclass(frozen=True)
class Column:
    """A column and the group it stands in."""

    title: str
    group: str = ""
    paper: bool = False  # figures of the paper, set apart
    deciding: bool = False  # the column that says whether a method gains


@dataclass(frozen=True)
class Group:
    """Neighbouring columns under one heading."""

    title: str
    span: int
    paper: bool
    deciding: bool


@dataclass(frozen=True)
class Sheet:
    """A table with its title and what its reader has to know."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]  # label and cells
    notes: tuple[str, ...] = ()
    corner: str = "method"

    @property
    def grouped(self) -> bool:
        return any(column.group for column in self.columns)

    @property
    def groups(self) -> list[Group]:
        found = []
        for (title, paper, deciding), members in groupby(
            self.columns, key=lambda column: (column.group, column.paper, column.deciding)
        ):
            found.append(Group(title, len(list(members)), paper, deciding))
        return found

    def full_title(self, column: Column) -> str:
        """A column's title where groups have no row of their own."""
        return " ".join(part for part in (column.title, column.group) if part)


@functools.cache
def templates() -> Any:
    """The page's templates: jinja2 escapes whatever is put into them."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    def classes(*names: Any) -> Markup:
        used = " ".join(name for name in names if name)
        return Markup(f' class="{escape(used)}"') if used else Markup("")

    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["classes"] = classes
    return found


def to_html(sheet: Sheet) -> str:
    """A table in a box of its own that scrolls sideways on a narrow screen."""
    macro = templates().get_template("table.html").make_module({}).table
    return str(macro(sheet, len(sheet.columns) > WIDE))


def to_rich(sheet: Sheet, width: int) -> list[Table]:
    """Tables for a terminal of this width: what does not fit beside the rest goes below it."""
    first = max(map(len, (sheet.corner, *(label for label, _ in sheet.rows))))
    titles = [sheet.full_title(column) for column in sheet.columns]
    widths = [
        max(map(len, (*titles[i].split(), *(line for _, cells in sheet.rows for line in cells[i].lines))))
        for i in range(len(titles))
    ]
    parts: list[list[int]] = [[]]
    room = width - first
    for i, needed in enumerate(widths):
        if parts[-1] and needed + GAP > room:
            parts.append([])
            room = width - first
        parts[-1].append(i)
        room -= needed + GAP
    tables = []
    for part in parts:
        title = Text(sheet.title) if part is parts[0] else None
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        table.add_column(sheet.corner, no_wrap=True, width=first)
        for i in part:
            table.add_column(Text(titles[i]), justify="right", overflow="fold", width=widths[i])
        for label, cells in sheet.rows:
            table.add_row(Text(label), *(Text("\n".join(cells[i].lines)) for i in part))
        tables.append(table)
    return tables


def to_markdown(sheet: Sheet) -> str:
    lines = [
        f"**{_md(sheet.title)}**",
        "",
        markdown_table(sheet),
        *(f"*{_md(note)}*\n" for note in sheet.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def markdown_table(sheet: Sheet) -> str:
    """The table alone, without its title and notes."""
    titles = [sheet.full_title(column) for column in sheet.columns]
    lines = [_md_row([sheet.corner, *titles]), "|---" + "|---:" * len(titles) + "|"]
    for label, cells in sheet.rows:
        lines.append(_md_row([label, *(" ".join(cell.lines) for cell in cells)], [False, *(c.best for c in cells)]))
    return "\n".join(lines) + "\n"


def _md_row(cells: Iterable[str], bold: Sequence[bool] | None = None) -> str:
    texts = [_md(cell) for cell in cells]
    marked = [f"**{t}**" if t and bold and bold[i] else t for i, t in enumerate(texts)]
    return "| " + " | ".join(marked) + " |"


def _md(text: str) -> str:
    for mark in "\\`*_<>|":
        text = text.replace(mark, "\\" + mark)
    if "](" in text:  # brackets alone are an interval, with parentheses after them a link
        text = text.replace("[", "\\[").replace("]", "\\]")
    return " ".join(text.split())


def to_latex(sheet: Sheet) -> str:
    """A booktabs table; needs \\usepackage{booktabs}."""
    lines = ["\\begin{table}[t]", "\\centering", f"\\caption{{{_tex(sheet.title)}}}"]
    lines += ["\\small", f"\\begin{{tabular}}{{l{'r' * len(sheet.columns)}}}", "\\toprule"]
    if sheet.grouped:
        groups = sheet.groups
        heads = [f"\\multicolumn{{{g.span}}}{{c}}{{{_tex(g.title)}}}" for g in groups]
        lines.append(" & ".join(["", *heads]) + " \\\\")
        at = 2
        rules = []
        for group in groups:
            rules += [f"\\cmidrule(lr){{{at}-{at + group.span - 1}}}"] if group.title else []
            at += group.span
        lines.append("".join(rules))
    lines += [" & ".join(map(_tex, [sheet.corner, *(c.title for c in sheet.columns)])) + " \\\\", "\\midrule"]
    for label, cells in sheet.rows:
        texts = [_tex(" ".join(c.lines)) for c in cells]
        texts = [f"\\textbf{{{text}}}" if c.best else text for text, c in zip(texts, cells)]
        lines.append(" & ".join([_tex(label), *texts]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"\\par\\footnotesize {_tex(note)}" for note in sheet.notes]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


_TEX = {mark: "\\" + mark for mark in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": "$\\pm$",
    "Δ": "$\\Delta$",
    "−": "$-$",
    "–": "--",
    "↓": "$\\downarrow$",
    "↑": "$\\uparrow$",
    "…": "\\dots{}",
    "·": "$\\cdot$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(mark, mark) for mark in " ".join(text.split()))
