"""A table of figures as data, and the same table in HTML, Markdown and LaTeX. Knows nothing of what the
figures mean.

A sheet has column groups (a model, a dataset) over columns, and rows. Every text is taken as plain text:
each format escapes it for itself.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

__all__ = ["Cell", "Column", "Sheet", "to_html", "to_latex", "to_markdown"]

WIDE = 9  # more columns than this are printed across the page


@dataclass(frozen=True)
class Cell:
    """One figure as it is shown."""

    text: str = ""
    under: str = ""  # in small print: an interval, a test
    best: bool = False  # bold, as the paper does
    mood: Literal["", "good", "bad"] = ""  # a difference that is sure, and to which side


@dataclass(frozen=True)
class Column:
    """A column and the group it stands in."""

    title: str
    group: str = ""
    paper: bool = False  # figures of the paper, set apart


@dataclass(frozen=True)
class Sheet:
    """A table with its title and what its reader has to know."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]  # label and cells
    notes: tuple[str, ...] = ()
    corner: str = "method"


def _groups(columns: Sequence[Column]) -> list[tuple[str, int, bool]]:
    """Neighbouring columns of one group: (group, how many, whether the paper's)."""
    found = []
    for (group, paper), members in groupby(columns, key=lambda column: (column.group, column.paper)):
        found.append((group, len(list(members)), paper))
    return found


def to_html(sheet: Sheet) -> str:
    """A table in a box of its own that scrolls sideways on a narrow screen."""
    e = html.escape
    lines = [
        f'<figure class="sheet{" wide" if len(sheet.columns) > WIDE else ""}">',
        f"<figcaption>{e(sheet.title)}</figcaption>",
        '<div class="scroll" tabindex="0" role="region" aria-label="table"><table>',
    ]
    if any(column.group for column in sheet.columns):
        over = "".join(
            f'<th colspan="{n}" scope="colgroup"{_class("paper" if paper else "")}>{e(group)}</th>'
            for group, n, paper in _groups(sheet.columns)
        )
        lines.append(f'<thead><tr><td class="corner"></td>{over}</tr>')
    else:
        lines.append("<thead>")
    heads = "".join(
        f'<th scope="col"{_class("paper" if c.paper else "")}>{e(c.title)}</th>' for c in sheet.columns
    )
    lines.append(f'<tr><th scope="col" class="corner">{e(sheet.corner)}</th>{heads}</tr></thead><tbody>')
    for label, cells in sheet.rows:
        body = "".join(_html_cell(cell, column) for cell, column in zip(cells, sheet.columns, strict=True))
        lines.append(f'<tr><th scope="row">{e(label)}</th>{body}</tr>')
    lines.append("</tbody></table></div>")
    lines += [f'<p class="note">{e(note)}</p>' for note in sheet.notes]
    return "\n".join([*lines, "</figure>"])


def _html_cell(cell: Cell, column: Column) -> str:
    text = html.escape(cell.text)
    text = f"<b>{text}</b>" if cell.best else text
    under = f"<small>{html.escape(cell.under)}</small>" if cell.under else ""
    return f"<td{_class(cell.mood, 'paper' if column.paper else '')}>{text}{under}</td>"


def _class(*names: str) -> str:
    used = " ".join(name for name in names if name)
    return f' class="{used}"' if used else ""


def to_markdown(sheet: Sheet) -> str:
    titles = [" ".join(part for part in (c.group, c.title) if part) for c in sheet.columns]
    lines = [
        f"**{_md(sheet.title)}**",
        "",
        _md_row([sheet.corner, *titles]),
        "|---" + "|---:" * len(titles) + "|",
    ]
    for label, cells in sheet.rows:
        lines.append(
            _md_row([label, *(_one_line(cell) for cell in cells)], [False, *(cell.best for cell in cells)])
        )
    return "\n".join(lines + ["", *(f"*{_md(note)}*\n" for note in sheet.notes)]).rstrip() + "\n"


def _one_line(cell: Cell) -> str:
    return f"{cell.text} {cell.under}" if cell.under else cell.text


def _md_row(cells: Iterable[str], bold: Sequence[bool] | None = None) -> str:
    texts = [_md(cell) for cell in cells]
    marked = [f"**{t}**" if t and bold and bold[i] else t for i, t in enumerate(texts)]
    return "| " + " | ".join(marked) + " |"


def _md(text: str) -> str:
    for mark in "\\`*_<>|[]":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def to_latex(sheet: Sheet) -> str:
    """A booktabs table; needs \\usepackage{booktabs}."""
    lines = ["\\begin{table}[t]", "\\centering", f"\\caption{{{_tex(sheet.title)}}}"]
    lines += ["\\small", f"\\begin{{tabular}}{{l{'r' * len(sheet.columns)}}}", "\\toprule"]
    if any(column.group for column in sheet.columns):
        groups = _groups(sheet.columns)
        lines.append(
            " & ".join(["", *(f"\\multicolumn{{{n}}}{{c}}{{{_tex(g)}}}" for g, n, _ in groups)]) + " \\\\"
        )
        at = 2
        rules = []
        for group, n, _ in groups:
            rules += [f"\\cmidrule(lr){{{at}-{at + n - 1}}}"] if group else []
            at += n
        lines.append("".join(rules))
    lines += [" & ".join(map(_tex, [sheet.corner, *(c.title for c in sheet.columns)])) + " \\\\", "\\midrule"]
    for label, cells in sheet.rows:
        texts = [f"\\textbf{{{_tex(_one_line(c))}}}" if c.best else _tex(_one_line(c)) for c in cells]
        lines.append(" & ".join([_tex(label), *texts]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"\\par\\footnotesize {_tex(note)}" for note in sheet.notes]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


_TEX = {
    **{mark: "\\" + mark for mark in "&%$#_{}"},
    **{
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
    },
    **{
        "±": "$\\pm$",
        "Δ": "$\\Delta$",
        "−": "$-$",
        "–": "--",
        "↓": "$\\downarrow$",
        "↑": "$\\uparrow$",
        "…": "\\dots{}",
        "·": "$\\cdot$",
    },
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(mark, mark) for mark in " ".join(text.split()))
