"""The report of one or several runs: one page that needs nothing besides itself, and the same tables as text.

Knows how the parts go together; the tables, plots and answers are made elsewhere, and the page itself is templates/.
It forbids itself to load anything or to run any script but its own.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airvlm.evaluation.results import Results
from airvlm.evaluation.statistics import mcnemar
from airvlm.evaluation.task_results import VANILLA, TaskResults
from airvlm.reporting.answers import answer_cards
from airvlm.reporting.figures import figures
from airvlm.reporting.layout import paper_sheets
from airvlm.reporting.plots import available
from airvlm.reporting.sheets import WIDE, Sheet, templates, to_latex, to_markdown
from airvlm.reporting.task_sheet import task_sheet

__all__ = ["Page", "report_csv", "report_html", "report_latex", "report_markdown", "write_report"]

SECTIONS = (
    ("full", "Every task in full"),
    ("tables", "In the paper's layout"),
    ("plots", "Plots"),
    ("answers", "Answers"),
    ("settings", "Settings"),
)


@dataclass(frozen=True)
class Page:
    """What a report is made of, computed once for all its formats."""

    runs: tuple[Results, ...]
    paper: tuple[Sheet, ...]
    full: tuple[Sheet, ...]
    figures: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, runs: Sequence[Results]) -> Page:
        full = [task_sheet(f"{name}: {_model(run)}", task) for run in runs for name, task in run.tasks.items()]
        problems = [f"{_model(run)}: {problem}" for run in runs for problem in run.problems()]
        notes = [f"{_model(run)}: {note}" for run in runs for note in run.notes()]
        return cls(
            tuple(runs),
            tuple(paper_sheets(runs)),
            tuple(full),
            tuple(figures(runs)),
            tuple(problems),
            tuple(notes),
        )


def write_report(runs: Sequence[Results], folder: str | Path, *, answers: int = 40) -> dict[str, Path]:
    """Write report.html, .md, .csv and .tex into a folder, each whole or not at all; `answers` a task are shown."""
    folder, report = Path(folder), Page.of(runs)
    contents = {
        "report.html": report_html(report, answers),
        "report.md": report_markdown(report),
        "report.csv": report_csv(report),
        "report.tex": report_latex(report),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        scratch = folder / f".{name}.part"
        scratch.write_text(content, encoding="utf-8", newline="")
        scratch.replace(folder / name)
    return {Path(name).suffix[1:]: folder / name for name in contents}


def _model(run: Results) -> str:
    return str(run.model["name"]).rstrip("/").rsplit("/", 1)[-1]


def report_html(report: Page, answers: int = 40) -> str:
    from markupsafe import Markup

    folder = Path(__file__).parent / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    cards, counts = [], []
    for run in report.runs:
        for name, task in run.tasks.items():
            title = name if len(report.runs) == 1 else f"{name} ({_model(run)})"
            made = answer_cards(title, task, answers)
            cards += made
            counts.append((title, len(made), len(task.items)))
    shown = {"tables": report.paper, "full": report.full, "answers": cards, "settings": True}
    shown["plots"] = bool(report.figures) or not available()
    page: str = (
        templates()
        .get_template("page.html")
        .render(
            report=report,
            title=_title(report),
            origins=_origins(report.runs),
            policy=_policy(script),
            style=Markup(style),  # ours, as the script is: written beside the templates
            script=Markup(script),
            sections=SECTIONS,
            shown=shown,
            wide=WIDE,
            cards=cards,
            counts="; ".join(f"{title}: {k} of {n}" for title, k, n in counts),
            tasks=[title for title, _, _ in counts],
            settings=[(_model(run), _settings(run)) for run in report.runs],
        )
    )
    return page


def _title(report: Page) -> str:
    return "airvlm: " + ", ".join(dict.fromkeys(_model(run) for run in report.runs))


def _origins(runs: Sequence[Results]) -> list[dict[str, str]]:
    """When, by which command and with which versions the answers were made."""
    return [
        {
            "date": str(command.get("date", "")),
            "command": str(command.get("command", "")),
            "versions": ", ".join(f"{name} {v}" for name, v in command.get("versions", {}).items()),
        }
        for run in runs
        for command in run.commands
    ]


def _policy(script: str) -> str:
    """Nothing is loaded, and only the page's own script runs."""
    code = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{code}'"


def _settings(run: Results) -> list[tuple[str, str]]:
    parts: list[tuple[str, Any]] = [
        ("model", run.model),
        ("methods", run.methods),
        ("commands", run.commands),
        *((f"task {name}", _task_settings(task)) for name, task in run.tasks.items()),
    ]
    return [(name, _dump(value)) for name, value in parts]


def _dump(value: Any) -> str:
    """Indented JSON with plain lists, such as one of 500 image ids, on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: "[" + " ".join(found[1].split()) + "]", text)


def _task_settings(task: TaskResults) -> dict[str, Any]:
    """What somebody else needs to make the same figures."""
    asked = task.asked
    first = next((record for record in task.records(VANILLA) if record is not None), None)
    return {
        "settings": asked.task.settings(),
        "source": asked.task.source,
        "split": asked.split,
        "limit": asked.limit,
        "items": len(asked.items),
        "generation": asked.generation,
        "prompt of the first item": asked.task.prompt(asked.items[0]) if asked.items else None,
        "versions": first.question.versions if first else None,
        "controls that draw the curve": task.curve,
        "controls at a matched strength": task.matched,
    }


def report_markdown(report: Page) -> str:
    parts = ["# " + _title(report), ""]
    for made in _origins(report.runs):
        parts += [f"{made['date']}, `{made['command']}`, {made['versions']}", ""]
    for heading, lines in (("Not to be trusted yet:", report.problems), ("Notes:", report.notes)):
        if lines:
            parts += [heading, "", *(f"* {line}" for line in lines), ""]
    parts += ["## Every task in full", "", *map(to_markdown, report.full)]
    parts += ["## In the paper's layout", "", *map(to_markdown, report.paper), "## Settings", ""]
    for run in report.runs:
        value = {"model": run.model, "methods": run.methods}
        value |= {f"task {name}": _task_settings(task) for name, task in run.tasks.items()}
        parts += ["```json", _dump(value), "```", ""]
    return "\n".join(parts)


def report_latex(report: Page) -> str:
    head = "% tables of airvlm report; put \\usepackage{booktabs} into the preamble\n\n"
    return head + "\n".join(map(to_latex, (*report.paper, *report.full)))


def report_csv(report: Page) -> str:
    """A line for each metric of each method of each task: value, difference to vanilla, at equal recall."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["model", "task", "method", "metric", "value", "low", "high", "error", "n"]
        + [
            "difference",
            "difference_low",
            "difference_high",
            "p",
            "at_equal",
            "at_equal_low",
            "at_equal_high",
        ]
    )
    for run in report.runs:
        for name, task in run.tasks.items():
            for label in task.methods:
                at = task.at_equal(label)
                for metric in task.scores(label).definitions:
                    figure = task.sample(label).estimate(metric)
                    row: list[Any] = [figure.value, figure.low, figure.high, figure.error, figure.n]
                    if label != VANILLA:
                        to = task.sample(label).difference(task.sample(VANILLA), metric)
                        row += [
                            to.value,
                            to.low,
                            to.high,
                            mcnemar(task.scores(label), task.scores(VANILLA), metric),
                        ]
                        if metric in at:
                            equal = at[metric].difference
                            row += [equal.value, equal.low, equal.high]
                    cells = [_csv(value) for value in row + [None] * (12 - len(row))]
                    writer.writerow([_model(run), name, label, metric, *cells])
    return text.getvalue()


def _csv(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
