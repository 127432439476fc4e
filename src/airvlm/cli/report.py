"""`airvlm report`: a page and tables from stored answers. Needs no model; knows only where things are written."""

from pathlib import Path
from typing import Annotated

import typer

from airvlm.cli.console import Failure, emit, out, warn
from airvlm.cli.options import JsonOption

__all__ = ["report"]


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS…", help="Folders that `airvlm evaluate --out` wrote.")],
    to: Annotated[Path, typer.Option("--out", "-o", help="Folder for report.html, .md, .csv and .tex.")] = Path(
        "report"
    ),
    data: Annotated[
        Path | None,
        typer.Option("--data", help="The benchmarks' folder, if it is elsewhere than at evaluation."),
    ] = None,
    answers: Annotated[int, typer.Option("--answers", min=0, help="Single answers shown of each task.")] = 40,
    json: JsonOption = False,
) -> None:
    """One page, and Markdown, CSV and LaTeX, from the answers of one or several runs.

    Our figures with their intervals beside the paper's, differences to vanilla, the distance from the curve at equal
    recall, plots, single answers with what is hallucinated in them, and all settings.

    [bold]Examples[/bold]

    airvlm report runs/tiny

    airvlm report runs/llava runs/qwen --out report --answers 100
    """
    from airvlm.evaluation.results import Results
    from airvlm.evaluation.store import StoreError
    from airvlm.reporting.page import write_report  # numpy and the tasks: not needed for --help

    try:
        loaded = [Results.load(folder, data=data) for folder in runs]
        written = write_report(loaded, to, answers=answers)
    except StoreError as error:
        raise Failure(str(error)) from error
    problems = [problem for run in loaded for problem in run.problems()]
    if json:
        emit({"files": {kind: str(path) for kind, path in written.items()}, "problems": problems})
        return
    for path in written.values():
        out().print(str(path), soft_wrap=True, markup=False)
    for problem in problems:
        warn(problem)
