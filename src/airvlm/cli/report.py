"""`airvlm report`: a page and tables from stored answers."""

from pathlib import Path
from typing import Annotated

import typer

from airvlm.cli.console import emit, warn
from airvlm.cli.options import JsonOption, output_option

__all__ = ["report"]


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="What `airvlm evaluate --output` wrote.")],
    to: Annotated[Path, output_option("Folder for report.html, .md, .csv and .tex.")] = Path("report"),
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="The benchmarks' folder, if it has moved since the evaluation."),
    ] = None,
    answers: Annotated[int, typer.Option("--answers", metavar="N", min=0, help="Single answers per task.")] = 40,
    json: JsonOption = False,
) -> None:
    """Write tables and a page from stored answers.

    Figures with intervals, differences to vanilla and at equal recall, plots, single answers with hallucinated objects
    marked, and all settings, in one HTML page that loads nothing; the tables also as Markdown, CSV and LaTeX.

    \b
    Examples:
      airvlm report runs/tiny
      airvlm report runs/llava runs/qwen --output report --answers 100
    """
    from airvlm.evaluation.results import Results
    from airvlm.reporting.page import write_report

    loaded = [Results.load(folder, data=data) for folder in runs]
    written = write_report(loaded, to, answers=answers)
    problems = [problem for run in loaded for problem in run.problems()]
    if json:
        emit({"files": {kind: str(path) for kind, path in written.items()}, "problems": problems})
        return
    for path in written.values():
        print(path)
    for problem in problems:
        warn(problem)
