"""Tables of results, as data and for the terminal, Markdown, LaTeX and HTML.

`task_table` has one row per method: figures, differences to vanilla, differences to a trivial control at equal recall
(the columns that decide), matched controls, and counts of answers. Every text is plain: each format escapes it.
"""

from __future__ import annotations

import csv
import functools
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from rich.table import Table as RichTable
from rich.text import Text

from airvlm.evaluation.results import VANILLA, Results, TaskResults
from airvlm.evaluation.statistics import Estimate, mcnemar
from airvlm.evaluation.sweeps import SweepResults
from airvlm.evaluation.trade_off import TradeOff

__all__ = [
    "Cell",
    "Column",
    "Table",
    "count_columns",
    "describe_methods",
    "difference_columns",
    "equal_columns",
    "escape_markdown",
    "figure_columns",
    "format_signed",
    "legend",
    "matched_columns",
    "number",
    "rows_to_csv",
    "summarize",
    "sweep_table",
    "task_table",
    "task_title",
    "templates",
]

WIDE = 9  # tables with more columns are printed in landscape
GAP = 2  # characters between columns of the terminal
LEADING, SHOWN, BRIEF = 4, 10, 6  # metrics at the front of a full table, in all of it, and in a brief one
ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
CONTROLS = {"eos-bias": "EOS bias", "yes-bias": "yes bias"}
CHAIR = ("CHAIR_S", "CHAIR_I", "CHAIR")
UNKNOWN = "?"  # in place of an interval


@dataclass(frozen=True)
class Cell:
    """One figure as it is shown."""

    text: str = ""
    note: str = ""  # in small print: an interval, a test
    best: bool = False  # significantly the best of its column
    significance: Literal["", "better", "worse"] = ""  # of a difference

    @property
    def lines(self) -> list[str]:
        return [line for line in (self.text, self.note) if line]


@dataclass(frozen=True)
class Column:
    """A column, and the heading that it shares with its neighbors."""

    title: str
    group: str = ""
    primary: bool = False  # the column that decides whether a method gains

    @property
    def full_title(self) -> str:
        return ", ".join(part for part in (self.title, self.group) if part)


Columns = dict[Column, dict[str, Cell]]  # cells by row


@dataclass(frozen=True)
class Table:
    """A table with its title and notes."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]  # label and cells
    notes: tuple[str, ...] = ()
    corner: str = "method"

    @classmethod
    def of(cls, title: str, columns: Columns, rows: Iterable[str], notes: Iterable[str] = ()) -> Table:
        """A table from cells by column and row; what is missing is empty."""
        lines = tuple((row, tuple(cells.get(row, Cell()) for cells in columns.values())) for row in rows)
        return cls(title, tuple(columns), lines, tuple(notes))

    @property
    def groups(self) -> list[tuple[Column, int]]:
        """Neighboring columns under one heading: the first of them, and their number."""
        grouped = (list(members) for _, members in groupby(self.columns, key=lambda c: (c.group, c.primary)))
        return [(members[0], len(members)) for members in grouped]

    @property
    def wide(self) -> bool:
        return len(self.columns) > WIDE

    def to_html(self) -> str:
        """A table in a box that scrolls sideways on a narrow screen."""
        return str(templates().get_template("table.html").make_module({}).table(self))

    def to_rich(self, width: int) -> list[RichTable]:
        """Tables for a terminal of this width: columns that do not fit go below."""
        first = max(map(len, (self.corner, *(label for label, _ in self.rows))))
        titles = [column.full_title for column in self.columns]
        widths = [
            max(map(len, ("-", *titles[i].split(), *(line for _, cells in self.rows for line in cells[i].lines))))
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
            title = Text(self.title) if part is parts[0] else None
            table = RichTable(title=title, title_justify="left", box=None, pad_edge=False)
            table.add_column(self.corner, no_wrap=True, width=first)
            for i in part:
                table.add_column(Text(titles[i]), justify="right", overflow="fold", width=widths[i])
            for label, cells in self.rows:
                table.add_row(Text(label), *(Text("\n".join(cells[i].lines)) for i in part))
            tables.append(table)
        return tables

    def to_markdown(self, *, bare: bool = False) -> str:
        """A Markdown table; bare: without title and notes."""
        lines = [_markdown_row([self.corner, *(column.full_title for column in self.columns)])]
        lines.append("|---" + "|---:" * len(self.columns) + "|")
        for label, cells in self.rows:
            texts = [" ".join(cell.lines) for cell in cells]
            lines.append(_markdown_row([label, *texts], [False, *(cell.best for cell in cells)]))
        if not bare:
            lines = [f"**{escape_markdown(self.title)}**", "", *lines, ""]
            lines += [f"*{escape_markdown(note)}*\n" for note in self.notes]
        return "\n".join(lines).rstrip() + "\n"

    def to_latex(self) -> str:
        """A booktabs table; needs \\usepackage{booktabs}."""
        lines = ["\\begin{table}[t]", "\\centering", f"\\caption{{{_latex(self.title)}}}"]
        lines += ["\\small", f"\\begin{{tabular}}{{l{'r' * len(self.columns)}}}", "\\toprule"]
        if any(column.group for column in self.columns):
            heads = [f"\\multicolumn{{{span}}}{{c}}{{{_latex(column.group)}}}" for column, span in self.groups]
            lines.append(" & ".join(["", *heads]) + " \\\\")
            at, rules = 2, ""
            for column, span in self.groups:
                rules += f"\\cmidrule(lr){{{at}-{at + span - 1}}}" if column.group else ""
                at += span
            lines.append(rules)
        lines += [" & ".join(map(_latex, [self.corner, *(c.title for c in self.columns)])) + " \\\\", "\\midrule"]
        for label, cells in self.rows:
            texts = [_latex(" ".join(cell.lines)) for cell in cells]
            texts = [f"\\textbf{{{text}}}" if cell.best else text for text, cell in zip(texts, cells)]
            lines.append(" & ".join([_latex(label), *texts]) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}"]
        lines += [f"\\par\\footnotesize {_latex(note)}" for note in self.notes]
        return "\n".join([*lines, "\\end{table}"]) + "\n"


def _markdown_row(cells: Iterable[str], bold: Sequence[bool] | None = None) -> str:
    texts = [escape_markdown(cell) for cell in cells]
    return "| " + " | ".join(f"**{t}**" if t and bold and bold[i] else t for i, t in enumerate(texts)) + " |"


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is, without HTML, links or emphasis."""
    for mark in "\\`*_<>|":
        text = text.replace(mark, "\\" + mark)
    if "](" in text:  # brackets alone are an interval, with parentheses after them a link
        text = text.replace("[", "\\[").replace("]", "\\]")
    return " ".join(text.split())


_LATEX = {mark: "\\" + mark for mark in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": "$\\pm$",
    "−": "$-$",
    "–": "--",
    "↓": "$\\downarrow$",
    "↑": "$\\uparrow$",
    "…": "\\dots{}",
    "·": "$\\cdot$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(mark, mark) for mark in " ".join(text.split()))


@functools.cache
def templates() -> Any:
    """The page's templates; jinja2 escapes whatever is put into them."""
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


# -- figures as text


def number(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:.1f}".replace("-", "−")


def format_signed(value: float) -> str:
    # what only rounding left has no sign
    return "–" if not math.isfinite(value) else f"{round(value, 6) + 0.0:+.1f}".replace("-", "−")


def figure_cell(estimate: Estimate, *, brief: bool, best: bool = False) -> Cell:
    """A figure with its standard error (brief) or its interval."""
    if not math.isfinite(estimate.value):
        return Cell(number(estimate.value))
    if brief:
        note = f"± {number(estimate.error) if estimate.trusted else UNKNOWN}"
    else:
        bounds = f"{number(estimate.low)}, {number(estimate.high)}" if estimate.trusted else UNKNOWN
        note = f"[{bounds}]"
    return Cell(number(estimate.value), note, best)


def difference_cell(estimate: Estimate, better: str, more: str = "", *, marked: bool = True) -> Cell:
    """A difference with its interval, marked if it is significant."""
    if not math.isfinite(estimate.value):
        return Cell("–")
    bounds = f"[{format_signed(estimate.low)}, {format_signed(estimate.high)}]" if estimate.trusted else f"[{UNKNOWN}]"
    gains = (estimate.value > 0) == (better == "higher")
    note = " ".join(part for part in (bounds, more) if part)
    sure = marked and estimate.significant and better != "neither"
    return Cell(format_signed(estimate.value), note, significance=("better" if gains else "worse") if sure else "")


# -- a task


def task_title(task: TaskResults, model: str = "") -> str:
    """What was asked, in a line."""
    generation = task.spec.generation
    split = "" if task.spec.split in task.spec.key else f", {task.spec.split} split"
    parts = [f"{task.spec.key}{split}", task.spec.sample_text]
    if "max_new_tokens" in generation:
        parts.append(f"at most {generation['max_new_tokens']} tokens, greedy")
    if generation.get("noise"):
        parts.append(f"noise of {generation['noise'] * 255:.0f}/255 on the images")
    return "; ".join([*parts, *([f"model {model}"] if model else [])])


def describe_methods(methods: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """One line per method: its label and all its options."""
    return [f"{label}: {_describe(method)}" for label, method in methods.items() if method is not None]


def _describe(method: Mapping[str, Any]) -> str:
    parts = []
    for name, value in method.items():
        if isinstance(value, Mapping):
            parts.append(f"{name}={value.get('name')}({_describe(value)})")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            parts += [f"{part.get('name')}({_describe(part)})" for part in value]
        elif name != "name":
            parts.append(f"{name}={'none' if value is None else value}")
    return ", ".join(parts) or "no options"


def task_table(task: TaskResults, title: str = "", *, full: bool = False) -> Table:
    """A task's methods beside vanilla.

    Args:
        task: the results.
        title: of the table; "" says what was asked.
        full: with intervals of all figures, more metrics and notes, and the columns that decide first.
    """
    metrics = order_metrics(task.scores(VANILLA).definitions, SHOWN if full else BRIEF)
    primary = {**equal_columns(task), **keeping_columns(task), **matched_columns(task)}
    differences = difference_columns(task, metrics[:2])
    counts = count_columns(task)
    if full:
        leading, more = (figure_columns(task, part) for part in (metrics[:LEADING], metrics[LEADING:]))
        columns = {**primary, **leading, **differences, **counts, **more}
    else:
        columns = {**figure_columns(task, metrics, brief=True), **differences, **primary, **counts}
    notes = _notes(task, columns) if full else ()
    return Table.of(title or task_title(task), columns, [VANILLA, *task.others], notes)


def order_metrics(definitions: Iterable[str], most: int | None = None) -> list[str]:
    """The metrics in a task's order, with what a figure must not be read without right behind it.

    The yes-ratio stands beside each accuracy, recall (or cover) and mean length beside CHAIR.

    Args:
        definitions: the metrics' names.
        most: so many at most, none of them without what stands beside it.
    """
    names = list(definitions)
    beside = {name: (name.replace("accuracy", "yes_ratio"),) for name in names if name.startswith("accuracy")}
    chair = [name for name in names if name in CHAIR][-1:]
    for lead, partners in {**beside, **dict.fromkeys(chair, ("recall", "Cover", "length"))}.items():
        moved = [name for name in partners if name in names]
        names = [name for name in names if name not in moved]
        at = names.index(lead) + 1
        names[at:at] = moved
    if most is not None and most < len(names) and names[most] in beside.get(names[most - 1], ()):
        most -= 1
    return names[:most]


def figure_columns(task: TaskResults, metrics: Sequence[str], *, brief: bool = False) -> Columns:
    found = {}
    for metric in metrics:
        column = Column(metric) if brief else Column(metric + ARROWS[task.better(metric)], "figures")
        best = None if brief else find_best(task, metric)
        samples = {label: task.sample(label) for label in (VANILLA, *task.others)}
        found[column] = {
            label: figure_cell(sample.estimate(metric), brief=brief, best=label == best)
            for label, sample in samples.items()
        }
    return found


def find_best(task: TaskResults, metric: str) -> str | None:
    """The method that is significantly better than every other; None if there is none.

    A figure that a bias on one token improves has no best: the lowest CHAIR belongs to whatever says least.
    """
    better, trade = task.better(metric), task.trade_off
    samples = {label: task.sample(label) for label in (VANILLA, *task.others)}
    known = {label: s.value(metric) for label, s in samples.items() if math.isfinite(s.value(metric))}
    if better == "neither" or len(known) < 2 or (trade is not None and metric in trade.ys):
        return None
    first = (max if better == "higher" else min)(known, key=lambda label: known[label])
    rest = [samples[label] for label in known if label != first]
    return first if all(samples[first].difference(other, metric).significant for other in rest) else None


def _equal_group(trade: TradeOff) -> str:
    return f"difference to {CONTROLS[trade.control]} at equal {trade.held_equal}"


def equal_columns(task: TaskResults) -> Columns:
    """The differences to the trivial control's curve."""
    trade, found = task.trade_off, Columns()
    at = {label: task.at_equal(label) for label in task.others}
    for y in trade.ys if trade is not None else ():
        cells = {
            label: difference_cell(here[y].difference, task.better(y), "" if here[y].inside else "beyond the curve")
            for label, here in at.items()
            if y in here
        }
        if cells and trade is not None:
            found[Column(y, _equal_group(trade), primary=True)] = cells
    return found


def keeping_columns(task: TaskResults) -> Columns:
    """The end-token bias at which each method keeps vanilla's recall, and what is left of its gain there."""
    trade, cells = task.trade_off, dict[str, Cell]()
    if trade is None:
        return {}
    y = trade.ys[0]
    for label in task.others:
        bias = task.keeping_bias(label)
        if bias is not None and (sample := task.sample_at(label, bias)) is not None:
            found = difference_cell(sample.difference(task.sample(VANILLA), y), task.better(y), marked=False)
            cells[label] = Cell(f"{bias:+.2f}".replace("-", "−"), " ".join([y, *found.lines]))
        elif trade.control == "eos-bias" and (curve := task.own_curve(label)):
            goal = task.sample(VANILLA).value(trade.x)
            lost = all(sample.value(trade.x) < goal for sample in curve.values())
            cells[label] = Cell((f"below {min(curve):g}" if lost else f"above {max(curve):g}").replace("-", "−"))
    return {Column(f"bias that keeps vanilla's {trade.held_equal}", f"with {trade.control}"): cells} if cells else {}


def matched_columns(task: TaskResults) -> Columns:
    """Each control at the strength of what it controls, and the method's difference to it."""
    trade, own, beyond = task.trade_off, dict[str, Cell](), dict[str, Cell]()
    if trade is None:
        return {}
    y = trade.ys[0]
    for label in task.others:
        facts = task.matched.get(label)
        if facts is None or task.count_unanswered(facts["label"]) or y not in (at := task.at_equal(facts["label"])):
            continue
        note = f"{facts['strength']}, {task.count_changed(facts['label'])} changed"
        own[label] = difference_cell(at[y].difference, task.better(y), note, marked=False)
        if facts["controls"] in task.methods:
            method, control = task.sample(facts["controls"]), task.sample(facts["label"])
            held = f"{trade.held_equal} {format_signed(method.difference(control, trade.x).value)}"
            beyond[label] = difference_cell(method.difference(control, y), task.better(y), held, marked=False)
    found = {Column(f"{y} difference at equal {trade.held_equal}", "matched control"): own} if own else {}
    return found | ({Column(f"{y} of the method minus it", "matched control"): beyond} if beyond else {})


def difference_columns(task: TaskResults, metrics: Sequence[str]) -> Columns:
    """To vanilla; not marked if another column decides, which may contradict it."""
    found = {}
    for metric in metrics:
        cells = {}
        for label in task.others:
            p = mcnemar(task.scores(label), task.scores(VANILLA), metric)
            note, marked = "" if p is None else f"p = {p:.2g}", task.trade_off is None
            cells[label] = difference_cell(task.difference(label, metric), task.better(metric), note, marked=marked)
        found[Column(metric, "difference to vanilla")] = cells
    return found


def count_columns(task: TaskResults) -> Columns:
    """Answers that a method changed, in which it acted, and that do not count."""
    group = f"of {len(task.items)} answers"
    acted = {label: task.count_fired(label) for label in task.others}
    wrong = {}
    for label in (VANILLA, *task.others):
        counts = {
            "failed": task.count_failed(label),
            "unanswered": task.count_unanswered(label),
            "unparsed": task.scores(label).unparsed,
        }
        wrong[label] = Cell(", ".join(f"{k} {name}" for name, k in counts.items() if k))
    found = {
        Column("changed", group): {label: Cell(str(task.count_changed(label))) for label in task.others},
        Column("acted", group): {label: Cell(str(k)) for label, k in acted.items() if k is not None},
    }
    if task.spec.task.kind == "caption" and "length" not in task.scores(VANILLA).definitions:
        means = {label: task.mean_tokens(label) for label in (VANILLA, *task.others)}
        found[Column("mean tokens", group)] = {label: Cell(number(m)) for label, m in means.items() if m is not None}
    return found | ({Column("not counted", group): wrong} if any(cell.text for cell in wrong.values()) else {})


def _notes(task: TaskResults, columns: Columns) -> list[str]:
    trade = task.trade_off
    notes = [
        f"{task.spec.sample_text}, {task.spec.split} split. Brackets: 95 % intervals, paired over images. Bold: "
        "better than every other row by more than the interval of the difference."
    ]
    if trade is not None and any(column.primary for column in columns):
        notes.append(
            f"At equal {trade.held_equal}: the method minus the best that a bias on one token alone ({trade.control}) "
            f"reaches at the method's own {trade.held_equal}. This column decides; only here is a gain marked."
        )
    if any(column.group.startswith("with ") for column in columns):
        notes.append(
            "The bias that keeps vanilla's recall: added to the end token beside the method; below it, the difference "
            "to vanilla that is left."
        )
    if task.matched:
        notes.append("Matched control: at the strength that changes as many calibration answers as the method.")
    if any(UNKNOWN in cell.note for cells in columns.values() for cell in cells.values()):
        notes.append(f"[{UNKNOWN}]: not enough images for an interval, or all have the same value.")
    return [*notes, *task.scores(VANILLA).notes]


def sweep_table(sweep: SweepResults, model: str = "") -> Table:
    """One row per point of a sweep, and vanilla once per way of asking."""
    tasks: dict[str, TaskResults] = {}
    for _, label, task in sweep.points:
        held = tasks.setdefault(task.spec.key, replace(task, methods={VANILLA: None}))
        held.methods[label] = task.methods[label]
    columns, rows = Columns(), list[str]()
    for key, task in tasks.items():
        table = task_table(task)
        values = {label: value for value, label, own in sweep.points if own.spec.key == key}
        first = next(iter(values.values()))
        names = {
            label: values.get(label, VANILLA if len(tasks) == 1 else f"vanilla, {first}") for label, _ in table.rows
        }
        rows += names.values()
        for i, column in enumerate(table.columns):
            columns.setdefault(column, {}).update({names[label]: cells[i] for label, cells in table.rows})
    title = "; ".join([f"sweep {sweep.title}", *([f"model {model}"] if model else [])])
    return replace(Table.of(title, columns, rows), corner=sweep.varies)


def legend(results: Results) -> list[str]:
    """What the columns mean."""
    lines = [
        "±: standard error. [ ]: 95 % interval, paired over images. p: McNemar's exact test. "
        f"{UNKNOWN}: not enough images for an interval."
    ]
    trades = dict.fromkeys(t.trade_off for t in results.tasks.values() if t.curve)
    for trade in trades:
        if trade is not None:
            lines.append(
                f"at equal {trade.held_equal}: difference to a baseline with {CONTROLS[trade.control]} only "
                f"({trade.control}) at the same {trade.held_equal}."
            )
    return lines


def summarize(task: TaskResults) -> list[str]:
    """One sentence per method: what it gains at equal recall, or against vanilla."""
    trade, lines = task.trade_off, []
    metric = trade.ys[0] if trade is not None else next(iter(task.scores(VANILLA).definitions))
    for label in task.others:
        at = task.at_equal(label).get(metric)
        estimate = task.difference(label, metric) if at is None else at.difference
        cell = difference_cell(estimate, task.better(metric))
        against = "against vanilla" if at is None or trade is None else f"as a {_equal_group(trade)}"
        verdict = {"better": "better", "worse": "worse", "": "no significant difference"}[cell.significance]
        lines.append(f"{task.spec.key}, {label}: {verdict}; {metric} {' '.join(cell.lines)} {against}.")
    return lines


def rows_to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """`Results.rows` as CSV. Texts that a spreadsheet would take for a formula get a ' in front."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0] if rows else ())
    writer.writerows([_csv(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _csv(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    return "" if value is None else str(value)
