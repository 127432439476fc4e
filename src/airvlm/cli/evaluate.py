"""`airvlm evaluate`: benchmarks under methods, every answer kept, tables that say what they are worth.

Knows the options and what to print; the evaluation itself is in airvlm.evaluation.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from airvlm.cli import answering, asking
from airvlm.cli.answering import RowsOption, WorkersOption
from airvlm.cli.console import Failure, emit, err, out
from airvlm.cli.options import (
    CurveOption,
    Evaluating,
    JsonOption,
    MethodsOption,
    RayAddressOption,
    RayOption,
    ShardOption,
)

if TYPE_CHECKING:  # torch takes seconds to import: each function imports what it runs, so that --help does not
    from airvlm.evaluation.plan import Asked
    from airvlm.evaluation.results import Results
    from airvlm.evaluation.shards import Shard
    from airvlm.evaluation.task_results import TaskResults

__all__ = ["conclude", "evaluate", "print_tables"]

WIDE = 160  # characters of a table in a file


def evaluate(
    task: Annotated[list[str], typer.Argument(help="Tasks by name, as in tiny-chair tiny-pope.")],
    method: MethodsOption = None,
    how: Evaluating = Evaluating(),
    batch_size: RowsOption = None,
    workers: WorkersOption = None,
    shard: ShardOption = None,
    ray: RayOption = 0,
    ray_address: RayAddressOption = None,
    curve: CurveOption = True,
    matched: Annotated[
        bool,
        typer.Option(
            "--matched",
            help="Ask each control also at the strength that changes as many answers as what it controls, "
            "found on the calibration split.",
        ),
    ] = False,
    require_acting: Annotated[
        bool,
        typer.Option("--require-acting", help="A control or baseline that never acted ends with code 1 too."),
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    json: JsonOption = False,
) -> None:
    """Run benchmarks under methods and keep the answers.

    Plain greedy decoding (vanilla) always runs beside the methods. Without --method: air. Answers go to one file,
    one line each, as they come: stop it whenever you like, and the same command goes on. Ends with code 1 when more
    than 1 % of the answers failed or could not be read, or when a method never acted (of a control or a baseline, or
    where it acted in another task, that is a note).

    Under [bold]accelerate launch -m airvlm.cli evaluate ...[/bold] the processes share the work.

    [bold]Examples[/bold]

    airvlm evaluate tiny-chair tiny-pope --method air --method memvr --method vcd

    airvlm evaluate chair --data coco --model llava-hf/llava-1.5-7b-hf --max-new-tokens 64 --out runs/llava

    airvlm evaluate tiny-chair --shard 0/4 --out runs/tiny
    """
    methods = {asking.label_of(name): asking.chosen_method(name) for name in (method or ["air"])}
    place_here = answering.place(shard)
    asked = answering.ask_tasks(task, how, max_new_tokens=how.max_new_tokens)
    if matched:
        _check_matched(asked)
    run, part = answering.answer(
        None,
        answering.loader_of(how, task),
        asked,
        {name: one for name, one in methods.items() if one is not None},
        how.out_folder,
        place_here=place_here,
        workers=workers,
        batch_size=batch_size,
        ray=ray,
        ray_address=ray_address,
        device=how.device,
        curve=curve,
        matched=matched,
    )
    conclude(run, part, json=json, markdown=markdown, require_acting=require_acting)


def _check_matched(asked: list[Asked]) -> None:
    from airvlm.evaluation.matched import calibration

    for one in asked:
        try:
            calibration(one)
        except ValueError as error:
            raise Failure(str(error)) from error


def print_tables(task: TaskResults) -> None:
    """A task's figures; where nobody watches (a file, a pipe) they may be wide."""
    from airvlm.reporting import tables

    console = out()
    console.width = console.width if console.is_terminal else max(console.width, WIDE)
    for table in tables.rich_tables(task, console.width):
        console.print(table, "")


def conclude(run: Results, shard: Shard, *, json: bool, markdown: bool = False, require_acting: bool = False) -> None:
    """Print the result; end with code 1 where it cannot be trusted."""
    from airvlm.reporting import tables

    left = sum(task.unanswered(label) for task in run.tasks.values() for label in task.methods)
    if not shard.gathers:
        if shard.helps:
            return  # the first process of the launch speaks for all
        err().print(
            f"part {shard.index}/{shard.count} is done; {left} answers of other parts are missing in {run.folder}"
        )
    if json:
        emit(tables.to_json(run))
    for task in run.tasks.values() if not json else ():
        if markdown:
            print(tables.markdown(task) + "\n")
        else:
            print_tables(task)
    if not json and not markdown:
        for line in tables.legend(run):
            out().print(line, style="dim")
    problems = run.problems(acting=require_acting)
    for line in run.notes() if not require_acting else ():
        err().print(f"note: {line}", markup=False, soft_wrap=True)
    if not shard.gathers:
        problems = [problem for problem in problems if "nothing answered" not in problem]
    if problems:
        sys.stdout.flush()
        err().print(tables.problem_table(problems))
        raise typer.Exit(1)
