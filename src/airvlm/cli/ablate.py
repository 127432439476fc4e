"""`airvlm ablate`: one method with one thing varied at a time, as tables and curves.

Knows the options and what to print; the sweeps are airvlm.evaluation.sweeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airvlm.cli import asking
from airvlm.cli import evaluate as evaluating
from airvlm.cli.console import Failure, emit, err, warn
from airvlm.cli.options import BatchOption, CurveOption, Evaluating, JsonOption
from airvlm.evaluation import BATCH_SIZE, SWEEPS

if (
    TYPE_CHECKING
):  # torch takes seconds to import: each function imports what it runs, so that --help does not
    from airvlm.evaluation.plan import Asked
    from airvlm.evaluation.sweeps import Sweep

__all__ = ["ablate"]


def ablate(
    task: Annotated[str, typer.Argument(help="A task by name, as in tiny-chair.")],
    method: Annotated[
        str, typer.Argument(help="The method to vary, fields after a colon: air-paper:keep=3.")
    ],
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            help="field=value,value,... of the method (also max_new_tokens and noise_on_picture), "
            f"or a sweep of the paper's: {', '.join(SWEEPS)}. Repeat it.",
        ),
    ] = None,
    how: Evaluating = Evaluating(split="validation"),
    batch_size: BatchOption = BATCH_SIZE,
    curve: CurveOption = False,
    plot: Annotated[
        bool, typer.Option("--plot/--no-plot", help="Draw the curves (needs airvlm[plots]).")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Vary a method's fields and tabulate the effect.

    Each --sweep varies one thing and leaves the rest as METHOD has it. Answers are kept like those of evaluate: the
    same command on the same folder resumes. The split is validation, so that nothing is tuned on the test items.

    [bold]Examples[/bold]

    airvlm ablate tiny-chair air --sweep weight=0.05,0.15,0.25 --sweep eps

    airvlm ablate tiny-chair air-paper:keep=3 --sweep layers=2-4,3-6 --sweep controls --sweep noise

    airvlm ablate chair air-paper --data coco --model llava-hf/llava-1.5-7b-hf --sweep layers --sweep length
    """
    from airvlm.evaluation.plan import ModelFacts
    from airvlm.evaluation.sweeps import ablate as run_sweeps
    from airvlm.reporting import tables
    from airvlm.reporting.sweep_plot import draw_sweep

    if not sweep:
        raise Failure(f"say what varies: --sweep field=value,value, or one of {', '.join(SWEEPS)}")
    if asking.chosen_method(method) is None:
        raise Failure(f"{method} has nothing to vary")

    def ask(cap: int | None, noise: float) -> Asked:
        return evaluating.ask_tasks([task], how, max_new_tokens=cap or how.max_new_tokens, noise=noise)[0]

    ask(None, 0.0)  # what is missing is said before a model is loaded
    _check([parse_sweep_or_fail(text, method, 32).name for text in sweep])
    model = asking.model_for([task], how.model)
    vlm = asking.load(model, how.adapter, how.dtype, how.device, **asking.loading_options(how))
    depth = len(vlm.anatomy.layers)
    sweeps = [parse_sweep_or_fail(text, method, depth) for text in sweep]
    folder = how.out_folder or evaluating.default_folder(ModelFacts.of(vlm))
    found = run_sweeps(vlm, ask, sweeps, folder, batch_size=batch_size, curve=curve)
    for one in found:
        if not json:
            for part in one.tables:
                evaluating.print_tables(part)
        if plot:
            try:
                drawn = draw_sweep(
                    one, Path(folder) / f"ablation-{task}-{method.partition(':')[0]}-{one.name}.png"
                )
                err().print(f"{one.name}: {drawn}", soft_wrap=True)
            except ImportError as error:
                warn(error)
    if json:
        emit({one.name: one.to_json() for one in found})
    problems = [problem for one in found for problem in one.problems()]
    if problems:
        err().print(tables.problem_table(problems))
        raise typer.Exit(1)


def _check(names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise Failure("--sweep: the same field is varied twice; give all its values at once")


def parse_sweep_or_fail(text: str, method: str, depth: int) -> Sweep:
    """A sweep; one that cannot be ends the command in one line."""
    from airvlm.evaluation.sweeps import parse_sweep

    try:
        return parse_sweep(text, method, depth)
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise Failure(str(error)) from error
