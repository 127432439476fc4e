"""`airvlm evaluate`: run benchmarks under methods, store every answer, and print tables."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from airvlm.cli.console import Failure, emit, err, out, warn
from airvlm.cli.options import DEFAULT_METHOD, JsonOption, MethodsOption, ModelOptions
from airvlm.cli.task_options import SpreadOptions, TaskOptions, current_command, exit_on_interrupt, model_loader
from airvlm.evaluation import SWEEPS

if TYPE_CHECKING:
    from airvlm.evaluation.results import Results
    from airvlm.evaluation.sweeps import SweepResults
    from airvlm.evaluation.workers import Shard
    from airvlm.reporting.tables import Table

__all__ = ["evaluate", "print_table"]

WIDE = 160  # characters of a table in a file


def evaluate(
    task: Annotated[list[str], typer.Argument(metavar="TASK...", help="Tasks of `airvlm info tasks`.")],
    method: MethodsOption = None,
    split: Annotated[
        Literal["test", "validation", "calibration"] | None,
        typer.Option("--split", help="Which part of the items.", show_default="test; validation with --sweep"),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="OPTION=A,B,...",
            help="Vary an option of the methods (also max_new_tokens and noise_on_image), or a sweep of the paper: "
            f"{', '.join(SWEEPS)}. Repeatable.",
        ),
    ] = None,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve/--no-curve",
            help="Also read a bias on the end token (or on yes) at several strengths from the same runs, for "
            "differences at equal recall (or yes-ratio).",
        ),
    ] = True,
    matched: Annotated[
        bool,
        typer.Option(
            "--matched",
            help="Also ask each control at the strength that changes as many answers as what it controls, found on the "
            "calibration split.",
        ),
    ] = False,
    require_acting: Annotated[
        bool, typer.Option("--require-acting", help="Exit with 1 if a control or a published method never acted, too.")
    ] = False,
    log_samples: Annotated[
        bool, typer.Option("--log-samples", help="Write a JSON Lines file per task and method into OUTPUT/samples.")
    ] = False,
    plot: Annotated[bool, typer.Option("--plot/--no-plot", help="Draw the curves and sweeps into --output.")] = True,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
    json: JsonOption = False,
    tasks: TaskOptions = TaskOptions(),
    spread: SpreadOptions = SpreadOptions(),
    model: ModelOptions = ModelOptions(),
) -> None:
    """Run benchmarks under methods and keep the answers.

    Vanilla, the model as it is, always runs beside the methods. Answers are stored one by one: stop the command
    whenever you like, and run it again to resume. Exits with 1 if more than 1 % of the answers failed or could not be
    parsed, or if a method never acted. Under `accelerate launch -m airvlm.cli evaluate ...` the processes share the
    work.

    \b
    Examples:
      airvlm evaluate tiny-chair --limit 100
      airvlm evaluate tiny-chair tiny-pope --method crop-blend --method memvr --method vcd
      airvlm evaluate tiny-chair --limit 100 --sweep weight=0.2,0.4,0.8 --sweep eps
      airvlm evaluate tiny-chair --shard 0/4 --output runs/tiny
      airvlm evaluate pope --model llava-hf/llava-1.5-7b-hf
      airvlm evaluate chair --data coco --model llava-hf/llava-1.5-7b-hf --output runs/llava
    """
    from airvlm.evaluation import evaluate as evaluation
    from airvlm.evaluation.workers import Shard

    place = Shard.of(spread.shard)
    load = model_loader(model, task)
    try:
        with exit_on_interrupt():
            results = evaluation.evaluate(
                load,
                task,
                method or [DEFAULT_METHOD],
                split=split or ("validation" if sweep else "test"),
                sweep=sweep or (),
                curve=curve,
                matched=matched,
                command=current_command(),
                **asdict(tasks),
                **{**spread.arguments(), "shard": place},
            )
    except NotImplementedError as error:
        raise Failure(str(error) or f"{' '.join(task)} cannot be evaluated, only scored") from error
    if log_samples and place.gathers:
        for path in results.write_samples():
            err().print(str(path), soft_wrap=True, markup=False)
    _conclude(results, place, plot=plot, markdown=markdown, json=json, require_acting=require_acting)


def _conclude(results: Results, shard: Shard, *, plot: bool, markdown: bool, json: bool, require_acting: bool) -> None:
    """Print the results; exit with 1 if they cannot be trusted."""
    from airvlm.evaluation.sweeps import list_sweeps
    from airvlm.reporting.tables import sweep_table, task_table, task_title

    left = sum(task.count_unanswered(label) for task in results.tasks.values() for label in task.methods)
    if not shard.gathers:
        if shard.helps:
            return  # the first process of the launch prints
        warn(
            f"shard {shard.index}/{shard.count} is done; {left} answers of other shards are missing in {results.folder}"
        )
    sweeps = list_sweeps(results)
    if sweeps:
        tables = [sweep_table(sweep, results.model_name) for sweep in sweeps.values()]
        content = {title: sweep.to_json() for title, sweep in sweeps.items()}
    else:
        tables = [task_table(task, task_title(task, results.model_name)) for task in results.tasks.values()]
        content = {name: {m: task.figures(m) for m in task.methods} for name, task in results.tasks.items()}
    if json:
        emit(content)
    elif markdown:
        print("\n".join(table.to_markdown() for table in tables))
    else:
        _print_tables(tables, results)
    if plot and shard.gathers:
        _draw(results, list(sweeps.values()))
    problems = [problem for task in results.tasks.values() for problem in task.problems()]
    if sweeps:
        problems += [problem for sweep in sweeps.values() for problem in sweep.problems()]
    else:
        problems = results.problems(require_acting=require_acting)
        for line in results.notes() if not require_acting else ():
            warn(f"note: {line}")
    if not shard.gathers:
        problems = [problem for problem in problems if not problem.endswith("no answers")]
    if problems:
        sys.stdout.flush()
        for problem in ("these figures cannot be trusted:", *problems):
            warn(problem)
        raise typer.Exit(1)


def _print_tables(tables: list[Table], results: Results) -> None:
    from airvlm.reporting.tables import describe_methods, legend

    for line in describe_methods(results.methods):
        out().print(line, style="dim", markup=False, soft_wrap=True)
    for table in tables:
        out().print()
        print_table(table)
    for line in (*legend(results), f"answers: {results.folder}"):
        out().print(line, style="dim", markup=False, soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table; in a file or a pipe it may be wide."""
    console = out()
    if console.is_terminal:
        console.print(*table.to_rich(console.width), sep="\n")
        return
    text = io.StringIO()
    width = max(console.width, WIDE)
    Console(file=text, width=width).print(*table.to_rich(width), sep="\n")
    print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def _draw(results: Results, sweeps: list[SweepResults]) -> None:
    """Draw each sweep, or each task's curves, into the results' folder."""
    from airvlm.reporting.figures import draw_curves, draw_sweep
    from airvlm.reporting.plots import available

    def path(kind: str, title: str) -> Path:
        return results.folder / f"{kind}-{re.sub(r'[^A-Za-z0-9.=-]+', '-', title)}.png"

    try:
        drawn = [draw_sweep(sweep, path("sweep", sweep.title)) for sweep in sweeps]
        if not sweeps and available():
            drawn += [made for name, task in results.tasks.items() if (made := draw_curves(task, path("curve", name)))]
        for file in drawn:
            err().print(str(file), soft_wrap=True, markup=False)
    except ImportError as error:
        warn(error)
