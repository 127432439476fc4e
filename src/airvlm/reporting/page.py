"""The report of one or several result folders: one HTML page that needs nothing else, and its tables as text.

The page's policy forbids it to load anything or to run any script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airvlm.evaluation.results import VANILLA, Results, TaskResults
from airvlm.evaluation.sweeps import list_sweeps
from airvlm.reporting.answers import answer_cards
from airvlm.reporting.figures import list_figures
from airvlm.reporting.plots import available
from airvlm.reporting.tables import Table, escape_markdown, rows_to_csv, summarize, sweep_table, task_table, templates
from airvlm.storage.atomic import write_atomically

__all__ = ["Report", "render_page", "report_csv", "report_html", "report_latex", "report_markdown", "write_report"]

SECTIONS = (("full", "Tables"), ("plots", "Plots"), ("answers", "Answers"), ("settings", "Settings"))


@dataclass(frozen=True)
class Report:
    """What a report is made of, computed once for all its formats."""

    runs: tuple[Results, ...]
    tables: tuple[Table, ...]
    figures: tuple[tuple[str, str], ...]  # caption and SVG
    summary: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, runs: Sequence[Results]) -> Report:
        tables = []
        for run in runs:
            tables += [task_table(t, f"{name}: {run.model_name}", full=True) for name, t in run.tasks.items()]
            tables += [sweep_table(sweep, run.model_name) for sweep in list_sweeps(run).values()]
        return cls(
            tuple(runs),
            tuple(tables),
            tuple(list_figures(runs)),
            tuple(f"{run.model_name}: {line}" for run in runs for t in run.tasks.values() for line in summarize(t)),
            tuple(f"{run.model_name}: {problem}" for run in runs for problem in run.problems()),
            tuple(f"{run.model_name}: {note}" for run in runs for note in run.notes()),
        )

    @property
    def title(self) -> str:
        return "airvlm: " + ", ".join(dict.fromkeys(run.model_name for run in self.runs))

    @property
    def origins(self) -> list[dict[str, str]]:
        """When, by which command and with which versions the answers were made."""
        return [
            {
                "date": str(command.get("date", "")),
                "command": str(command.get("command", "")),
                "versions": ", ".join(f"{name} {v}" for name, v in command.get("versions", {}).items()),
            }
            for run in self.runs
            for command in run.commands
        ]


def write_report(runs: Sequence[Results], folder: str | Path, *, answers: int = 40) -> dict[str, Path]:
    """Write report.html, .md, .csv and .tex, each as a whole; returns their paths by suffix.

    Args:
        runs: the results.
        folder: where to write.
        answers: how many single answers are shown per task.
    """
    folder, report = Path(folder), Report.of(runs)
    contents = {
        "report.html": report_html(report, answers),
        "report.md": report_markdown(report),
        "report.csv": report_csv(report),
        "report.tex": report_latex(report),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return {Path(name).suffix[1:]: folder / name for name in contents}


def report_html(report: Report, answers: int = 40) -> str:
    cards, counts = [], []
    for run in report.runs:
        for name, task in run.tasks.items():
            title = name if len(report.runs) == 1 else f"{name} ({run.model_name})"
            made = answer_cards(title, task, answers)
            cards += made
            counts.append((title, len(made), len(task.items)))
    shown = {"full": report.tables, "answers": cards, "settings": True}
    shown["plots"] = bool(report.figures) or not available()
    return render_page(
        "page.html",
        "page.js",
        report=report,
        sections=SECTIONS,
        shown=shown,
        cards=cards,
        counts="; ".join(f"{title}: {k} of {n}" for title, k, n in counts),
        tasks=[title for title, _, _ in counts],
        settings=[(run.model_name, [(name, _dump(value)) for name, value in _settings(run)]) for run in report.runs],
    )


def render_page(template: str, script: str, **values: Any) -> str:
    """A page that loads nothing, and whose policy allows no script but its own.

    Args:
        template: its template in `templates/`.
        script: its script there.
        values: what the template shows; every text is escaped.
    """
    from markupsafe import Markup

    folder = Path(__file__).parent / "templates"
    style, code = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", script))
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    # style and script are files of this package
    page: str = (
        templates().get_template(template).render(policy=policy, style=Markup(style), script=Markup(code), **values)
    )
    return page


def _settings(run: Results) -> list[tuple[str, Any]]:
    """What somebody else needs to get the same figures."""
    tasks = [(f"task {name}", _task_settings(task)) for name, task in run.tasks.items()]
    return [("model", run.model), ("methods", run.methods), ("commands", run.commands), *tasks]


def _task_settings(task: TaskResults) -> dict[str, Any]:
    spec = task.spec
    first = next((record for record in task.records(VANILLA) if record is not None), None)
    return {
        "settings": spec.task.settings(),
        "source": spec.task.source,
        "split": spec.split,
        "limit": spec.limit,
        "items": len(spec.items),
        "generation": spec.generation,
        "prompt of the first item": spec.task.prompt(spec.items[0]) if spec.items else None,
        "versions": first.key.versions if first else None,
        "controls that draw the curve": task.curve,
        "controls at a matched strength": task.matched,
    }


def _dump(value: Any) -> str:
    """Indented JSON with plain lists, such as one of 500 image ids, on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: "[" + " ".join(found[1].split()) + "]", text)


def report_markdown(report: Report) -> str:
    parts = ["# " + escape_markdown(report.title), ""]
    for made in report.origins:
        command = made["command"].replace("`", "'")
        parts += [f"{escape_markdown(made['date'])}, `{command}`, {escape_markdown(made['versions'])}", ""]
    lists = (
        ("These figures cannot be trusted yet:", report.problems),
        ("Notes:", report.notes),
        ("Results:", report.summary),
    )
    for heading, lines in lists:
        if lines:
            parts += [heading, "", *(f"* {escape_markdown(line)}" for line in lines), ""]
    parts += ["## Tables", "", *(table.to_markdown() for table in report.tables), "## Settings", ""]
    for run in report.runs:
        parts += ["```json", _dump(dict(_settings(run))), "```", ""]
    return "\n".join(parts)


def report_latex(report: Report) -> str:
    head = "% tables of airvlm report; put \\usepackage{booktabs} into the preamble\n\n"
    return head + "\n".join(table.to_latex() for table in report.tables)


def report_csv(report: Report) -> str:
    """The rows of `Results.to_frame` of all runs."""
    return rows_to_csv([row for run in report.runs for row in run.rows()])
