"""`airvlm calibrate`: find the method and options that help a model, searched on one split and measured on another."""

from __future__ import annotations

import functools
import json as _json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from airvlm.cli.console import Failure, emit, err, print_columns, warn
from airvlm.cli.method_table import outside_methods, read_table
from airvlm.cli.options import JsonOption, ModelOptions, methods_option
from airvlm.cli.task_options import SpreadOptions, TaskOptions, exit_on_interrupt, model_loader

if TYPE_CHECKING:
    from airvlm.evaluation.calibration import Calibration, Search
    from airvlm.evaluation.spread import Runner

__all__ = ["calibrate"]

RESULT = "calibration.json"


def calibrate(
    task: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK...", help="Captioning or yes/no tasks, as tiny-chair; or one method that needs an artifact."
        ),
    ],
    method: Annotated[
        list[str] | None,
        methods_option("crop-blend, air and air-memory", "A method, as in air:keep=3."),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", metavar="COST", help="How much it may cost: answers (20000) or time (90s, 20m).")
    ] = "20m",
    settings: Annotated[
        int, typer.Option("--settings", metavar="N", min=1, help="Settings to begin with, the defaults first.")
    ] = 24,
    max_recall_loss: Annotated[
        float, typer.Option("--max-recall-loss", metavar="POINTS", min=0.0, help="Points of recall that may be lost.")
    ] = 1.0,
    plot: Annotated[bool, typer.Option("--plot/--no-plot", help="Draw what was found into --output.")] = True,
    pairs: Annotated[
        Literal["image", "degraded", "swapped"] | None,
        typer.Option("--pairs", metavar="KIND", help="For an artifact: image, degraded or swapped."),
    ] = None,
    nouns: Annotated[
        Path | None, typer.Option("--nouns", metavar="FILE", help="For an artifact: words that may be swapped.")
    ] = None,
    json: JsonOption = False,
    tasks: TaskOptions = TaskOptions(),
    spread: SpreadOptions = SpreadOptions(),
    model: ModelOptions = ModelOptions(),
) -> None:
    """Find the method and options that help your model.

    Many settings on few items of the calibration split, the better half on twice as many, and so on. What counts is the
    difference to a bias on the end token (or on yes) at equal recall (or yes-ratio). The best setting is then measured
    once on the validation split. Answers are stored: a larger budget asks nothing twice.

    The result is calibration.json in --output; use it as a method: --method @calibration.json

    In place of tasks, a method that needs an artifact (nullu, vti, ...) gets one: of the unlabeled images in --data, or
    of a JSON Lines file of text pairs, {"image", "truthful", "hallucinated"}. --output is then the file.

    \b
    Examples:
      airvlm calibrate tiny-chair --budget 10m --output runs/calibration
      airvlm calibrate tiny-chair tiny-pope --method crop-blend --settings 8 --budget 5000
      airvlm calibrate chair pope --data coco --model llava-hf/llava-1.5-7b-hf --budget 2h
      airvlm calibrate nullu --data photos --model llava-hf/llava-1.5-7b-hf --output nullu.safetensors
    """
    if not {*read_table(), *outside_methods()}.isdisjoint(task):
        if len(task) != 1:
            raise Failure("give tasks, or one method that needs an artifact: airvlm calibrate nullu --data FOLDER")
        from airvlm.cli.artifacts import write_artifact

        write_artifact(
            task[0],
            tasks.data,
            tasks.out,
            pairs=pairs,
            nouns=nouns,
            limit=tasks.limit,
            max_new_tokens=tasks.max_new_tokens,
            model=model,
            json=json,
        )
        return
    from airvlm.evaluation.calibration import SEARCHED, Budget, Search, split_task
    from airvlm.evaluation.plan import TaskSpec
    from airvlm.evaluation.spread import run_spread
    from airvlm.evaluation.workers import Shard

    spent = Budget.parse(budget)
    place = Shard.of(spread.shard)
    if spread.shard:  # a stage needs all answers: a process goes on with the other shards until it is complete
        place = replace(place, helps=True)
    how = asdict(tasks)
    output = how.pop("out")
    splits = []
    for name in task:
        first, second, own = split_task(TaskSpec.of(name, **how))
        if not own:
            warn(
                f"{name} has no calibration and validation splits of its own: its images are divided, "
                f"{len(first.items)} items to search on and {len(second.items)} to measure on"
            )
        splits.append((first, second))
    search = Search(splits, method or SEARCHED, settings, spent, max_recall_loss)
    load = model_loader(model, task)
    with exit_on_interrupt():
        found, folder = run_spread(
            functools.partial(_run, search), load, out=output, answers=10**6, **{**spread.arguments(), "shard": place}
        )
    if place.helps and place.index and not spread.shard:
        return  # the first process of the launch prints
    _report(found, folder, plot=plot, json=json)


def _run(search: Search, runner: Runner) -> tuple[Calibration, Path]:
    return search.run(runner), runner.folder


def _report(found: Calibration, folder: Path, *, plot: bool, json: bool) -> None:
    from airvlm.reporting.figures import draw_calibration
    from airvlm.storage.atomic import write_atomically

    path = folder / RESULT
    write_atomically(path, _json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
    try:
        drawings = draw_calibration(found, folder) if plot else []
    except ImportError as error:
        warn(error)
        drawings = []
    if json:
        emit(found.to_json() | {"file": str(path)})
        return
    stage = found.validation or found.stages[-1]
    print(f"{stage.split} split, {', '.join(f'{n} items of {name}' for name, n in stage.items.items())}\n")
    rows = [["setting", "gain", "95 % interval", "recall", "changed"]]
    for one in stage.measured[:10]:
        gain, recall = one.gain, one.recall_change
        interval = f"[{gain.low:+.2f}, {gain.high:+.2f}]" if gain.trusted else "[?]"
        told = "" if recall is None else f"{recall.value:+.2f}"
        rows.append([one.candidate.label, f"{gain.value:+.2f}", interval, told, f"{one.changed:.0%}"])
    print_columns(rows, right=(1, 2, 3, 4))
    print("\ngain: points better than a bias on one token at equal recall or yes-ratio, mean over the tasks")
    print(f"{found.settings_tried} settings tried, {found.answers} answers generated, {found.seconds:.0f} s")
    print(found.reason)
    if found.verdict == "undecided":
        print("recommended: nothing yet; calibrate with more images (a larger --limit or --budget)")
    else:
        file = "" if found.recommended is None else f" (or --method @{path})"
        print(f"recommended: --method {found.verdict}{file}")
    for drawing in drawings:
        err().print(str(drawing), markup=False, soft_wrap=True)
