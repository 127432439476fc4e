"""`airvlm ablate`: one method with one thing varied at a time, as tables and curves.

Knows the options and what to print; the sweeps are airvlm.evaluation.sweeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airvlm.cli import answering, asking
from airvlm.cli.answering import RowsOption, WorkersOption
from airvlm.cli.console import Failure, emit, err, warn
from airvlm.cli.evaluate import print_tables
from airvlm.cli.options import CurveOption, Evaluating, JsonOption
from airvlm.evaluation import SWEEPS

if TYPE_CHECKING:  # torch takes seconds to import: each function imports what it runs, so that --help does not
    from airvlm.evaluation.plan import Asked
    from airvlm.evaluation.sweeps import Sweep

__all__ = ["ablate"]


def ablate(
    task: Annotated[str, typer.Argument(help="A task by name, as in tiny-chair.")],
    method: Annotated[str, typer.Argument(help="The method to vary, fields after a colon: air-paper:keep=3.")],
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            help="field=value,value,... of the method (also max_new_tokens and noise_on_image), "
            f"or a sweep of the paper's: {', '.join(SWEEPS)}. Repeat it.",
        ),
    ] = None,
    how: Evaluating = Evaluating(split="validation"),
    batch_size: RowsOption = None,
    workers: WorkersOption = None,
    curve: CurveOption = False,
    plot: Annotated[bool, typer.Option("--plot/--no-plot", help="Draw the curves (needs airvlm[plots]).")] = True,
    json: JsonOption = False,
) -> None:
    """Vary a method's fields and tabulate the effect.

    Each --sweep varies one thing and leaves the rest as METHOD has it. Answers are kept like those of evaluate: the
    same command on the same folder resumes, and `airvlm report` reads it. The split is validation, so that nothing is
    tuned on the test items.

    [bold]Examples[/bold]

    airvlm ablate tiny-chair air --sweep weight=0.05,0.15,0.25 --sweep eps

    airvlm ablate tiny-chair air-paper:keep=3 --sweep layers=2-4,3-6 --sweep controls --sweep noise

    airvlm ablate chair air-paper --data coco --model llava-hf/llava-1.5-7b-hf --sweep layers --sweep length
    """
    from airvlm.evaluation.shards import Shard
    from airvlm.evaluation.sweeps import asked_by, found_in, noted
    from airvlm.reporting import tables

    if not sweep:
        raise Failure(f"say what varies: --sweep field=value,value, or one of {', '.join(SWEEPS)}")
    if asking.chosen_method(method) is None:
        raise Failure(f"{method} has nothing to vary")
    key = task if how.split == "test" else f"{task}, {how.split}"

    def ask(cap: int | None, noise: float, around: str) -> Asked:
        cap = how.max_new_tokens if cap is None else cap
        return answering.ask_tasks([task], how, max_new_tokens=cap, noise=noise, label=key + around)[0]

    ask(None, 0.0, "")  # what is missing is said before a model is loaded
    _check([parse_sweep_or_fail(text, method, 32).name for text in sweep])
    loader = answering.loader_of(how, [task])
    vlm = loader(how.device)
    sweeps = [parse_sweep_or_fail(text, method, len(vlm.parts.layers)) for text in sweep]
    asked = asked_by(sweeps, ask)
    names = noted(sweeps, asked, method, key)
    run, _ = answering.answer(
        vlm,
        loader,
        asked,
        {},
        how.out_folder,
        place_here=Shard(),
        workers=workers,
        batch_size=batch_size,
        device=how.device,
        curve=curve,
        sweeps=names,
    )
    answered = found_in(run)
    found = [answered[name] for name in names]
    for one in found:
        for part in one.tables if not json else ():
            print_tables(part)
        if plot:
            _draw(one, run.folder / f"ablation-{task}-{method.partition(':')[0]}-{one.name}.png")
    if json:
        emit({one.name: one.to_json() for one in found})
    problems = [problem for one in found for problem in one.problems()]
    if problems:
        err().print(tables.problem_table(problems))
        raise typer.Exit(1)


def _draw(sweep: Sweep, path: Path) -> None:
    from airvlm.reporting.sweep_plot import draw_sweep

    try:
        draw_sweep(sweep, path)
        err().print(f"{sweep.name}: {path}", soft_wrap=True, markup=False)
    except ImportError as error:
        warn(error)


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
