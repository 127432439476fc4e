"""The report of one or several runs: one page that needs nothing besides itself, and the same tables as
text.

Knows how the parts go together; the tables, plots and answers are made elsewhere. Everything that comes
from a run is escaped, and the page forbids itself to load anything or to run any script but its own.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airvlm.evaluation.run import VANILLA, Run, TaskRun
from airvlm.evaluation.statistics import mcnemar
from airvlm.reporting.answers import answer_cards
from airvlm.reporting.figures import figures
from airvlm.reporting.layout import full_sheet, paper_sheets
from airvlm.reporting.sheets import Sheet, to_html, to_latex, to_markdown

__all__ = ["Report", "report_csv", "report_html", "report_latex", "report_markdown", "write_report"]


@dataclass(frozen=True)
class Report:
    """What a report is made of, computed once for all its formats."""

    runs: tuple[Run, ...]
    paper: tuple[Sheet, ...]
    full: tuple[Sheet, ...]
    figures: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Report:
        full = [
            full_sheet(f"{name}: {_model(run)}", task) for run in runs for name, task in run.tasks.items()
        ]
        problems = [f"{_model(run)}: {problem}" for run in runs for problem in run.problems()]
        return cls(tuple(runs), tuple(paper_sheets(runs)), tuple(full), tuple(figures(runs)), tuple(problems))


def write_report(runs: Sequence[Run], folder: str | Path, *, answers: int = 40) -> dict[str, Path]:
    """Write report.html, .md, .csv and .tex into a folder, each whole or not at all; `answers` a task are shown."""
    folder, report = Path(folder), Report.of(runs)
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


def _model(run: Run) -> str:
    return str(run.model["name"]).rstrip("/").rsplit("/", 1)[-1]


def _beside(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def report_html(report: Report, answers: int = 40) -> str:
    e, style, script = html.escape, _beside("page.css"), _beside("page.js")
    title = "airvlm: " + ", ".join(dict.fromkeys(_model(run) for run in report.runs))
    sections = [
        ("tables", "In the paper's layout", "".join(map(to_html, report.paper))),
        ("full", "Every task in full", "".join(map(to_html, report.full))),
        ("plots", "Plots", "".join(_plot(caption, svg) for caption, svg in report.figures)),
        ("answers", "Answers", _answers(report, answers)),
        ("settings", "Settings", "".join(_settings(run) for run in report.runs)),
    ]
    links = "".join(f'<a href="#{key}">{e(name)}</a>' for key, name, body in sections if body)
    body = "".join(
        f'<section id="{key}"><h2>{e(name)}</h2>{text}</section>' for key, name, text in sections if text
    )
    trouble = "".join(f"<li>{e(problem)}</li>" for problem in report.problems)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{e(title)}</title><style>{style}</style></head><body>",
            f"<header><h1>{e(title)}</h1><nav>{links}</nav></header><main>",
            f'<div class="trouble"><h2>Not to be trusted yet</h2><ul>{trouble}</ul></div>' if trouble else "",
            body,
            f"</main><script>{script}</script></body></html>",
        ]
    )


def _policy(script: str) -> str:
    """Nothing is loaded, and only the page's own script runs."""
    code = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{code}'"


def _plot(caption: str, svg: str) -> str:
    return f'<figure class="plot">{svg}<figcaption>{html.escape(caption)}</figcaption></figure>'


def _answers(report: Report, limit: int) -> str:
    cards, counts = [], []
    for run in report.runs:
        for name, task in run.tasks.items():
            title = name if len(report.runs) == 1 else f"{name} ({_model(run)})"
            made = answer_cards(title, task, limit)
            cards += made
            counts.append((title, len(made), len(task.items)))
    if not cards:
        return ""
    e = html.escape
    choices = "".join(f'<option value="{e(title)}">{e(title)}</option>' for title, _, _ in counts)
    shown = "; ".join(f"{title}: {k} of {n}" for title, k, n in counts)
    return "\n".join(
        [
            f'<p class="note">{e(shown)}; items on which methods differ are shown first.</p>',
            '<p class="legend">Objects: <mark class="there">in the picture</mark>',
            '<mark class="absent">not in the picture</mark></p>',
            f'<form id="filter"><label>task <select id="task"><option value="">all</option>{choices}</select></label>',
            '<label><input type="checkbox" id="differs"> answers differ</label>',
            '<label><input type="checkbox" id="wrong"> something is wrong</label>',
            '<span id="count" role="status"></span></form>',
            f'<div id="cards">{"".join(cards)}</div>',
        ]
    )


def _settings(run: Run) -> str:
    e = html.escape
    parts = [f"<h3>{e(_model(run))}</h3>", _json("model", run.model), _json("methods", run.methods)]
    for name, task in run.tasks.items():
        parts.append(_json(f"task {name}", _task_settings(task)))
    return "".join(parts)


def _json(title: str, value: Any) -> str:
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(_dump(value))}</pre></details>"


def _dump(value: Any) -> str:
    """Indented JSON with plain lists, such as one of 500 picture ids, on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: "[" + " ".join(found[1].split()) + "]", text)


def _task_settings(task: TaskRun) -> dict[str, Any]:
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
    }


def report_markdown(report: Report) -> str:
    parts = ["# " + ", ".join(dict.fromkeys(_model(run) for run in report.runs)), ""]
    if report.problems:
        parts += ["Not to be trusted yet:", "", *(f"* {problem}" for problem in report.problems), ""]
    parts += ["## In the paper's layout", "", *map(to_markdown, report.paper)]
    parts += ["## Every task in full", "", *map(to_markdown, report.full), "## Settings", ""]
    for run in report.runs:
        value = {"model": run.model, "methods": run.methods}
        value |= {f"task {name}": _task_settings(task) for name, task in run.tasks.items()}
        parts += ["```json", _dump(value), "```", ""]
    return "\n".join(parts)


def report_latex(report: Report) -> str:
    head = "% tables of airvlm report; put \\usepackage{booktabs} into the preamble\n\n"
    return head + "\n".join(map(to_latex, (*report.paper, *report.full)))


def report_csv(report: Report) -> str:
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
