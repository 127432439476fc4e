"""`airvlm leaderboard`: all methods on one model and the same items, as a table and a page."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from airvlm.cli.console import Failure, emit
from airvlm.cli.options import JsonOption, ModelOptions
from airvlm.cli.task_options import SpreadOptions, TaskOptions, current_command, exit_on_interrupt, model_loader

__all__ = ["leaderboard"]

NAME = "leaderboard"


def leaderboard(
    tasks: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK...", help="Captioning or yes/no tasks; or `merge` and the leaderboard.json of several people."
        ),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="METHOD",
            help="A method, `all`, or `faithful`: the published code of every method that has it. Repeatable.",
            show_default="all",
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="COST",
            help="Also run each method at its best setting on the calibration split, found within this budget per "
            "method: answers (2000) or time (5m).",
        ),
    ] = None,
    settings: Annotated[
        int,
        typer.Option("--settings", metavar="N", min=2, help="Settings of each method that --calibrate begins with."),
    ] = 8,
    matched: Annotated[
        bool,
        typer.Option(
            "--matched/--no-matched",
            help="Also run each control at the strength at which it changes as many answers as what it controls.",
        ),
    ] = True,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write leaderboard.html, beside the tables.")] = True,
    answers: Annotated[int, typer.Option("--answers", metavar="N", min=0, help="Items on the page, per task.")] = 12,
    name: Annotated[str, typer.Option("--name", help="Who measured it, shown beside the rows.")] = "",
    json: JsonOption = False,
    task_options: TaskOptions = TaskOptions(),
    spread: SpreadOptions = SpreadOptions(),
    model: ModelOptions = ModelOptions(),
) -> None:
    """Run every method on the same items and rank them.

    What counts is the difference to a bias on the end token (or on yes) at equal recall (or yes-ratio). Each method
    runs with its paper's options, greedily. Methods that need an artifact get one from the calibration images.
    Answers are stored: stop whenever you like and run the command again. Writes leaderboard.html, .md, .csv and
    .json into --output; the JSON file is what you send to somebody who merges boards.

    \b
    Examples:
      airvlm leaderboard tiny-chair tiny-pope --limit 20 --method crop-blend --method vcd
      airvlm leaderboard chair pope --data coco --model llava-hf/llava-1.5-7b-hf --output runs/board
    With what several people measured:
      airvlm leaderboard merge mine.json theirs.json --output runs/merged
    """
    from airvlm.leaderboard.board import Board, merge

    if tasks[0] == "merge":
        if len(tasks) < 3:
            raise Failure("give two leaderboards or more: airvlm leaderboard merge mine.json theirs.json")
        board = merge([Board.load(path) for path in tasks[1:]])
        _write(board, task_options.out or Path("leaderboard"), [], answers, page=page, json=json)
        return
    search = None if calibrate is None else _plan_search(tasks, calibrate, settings, task_options)
    measured = _measure(tasks, method or ["all"], search, name, task_options, spread, model, matched=matched)
    if measured is not None:
        board, results, folder = measured
        _write(board, folder, [results], answers, page=page, json=json)


def _plan_search(tasks: list[str], budget: str, settings: int, options: TaskOptions) -> Any:
    """The search that every method gets. Raises before a model is loaded if the budget is too small."""
    from airvlm.evaluation.calibration import Budget, Search, split_task
    from airvlm.evaluation.plan import TaskSpec

    how = {**asdict(options), "limit": None}
    del how["out"]
    splits = [split_task(TaskSpec.of(task, **how))[:2] for task in tasks]
    return Search(splits, [], settings, Budget.parse(budget), validate=False)


def _measure(
    tasks: list[str],
    names: list[str],
    search: Any,
    name: str,
    options: TaskOptions,
    spread: SpreadOptions,
    model: ModelOptions,
    *,
    matched: bool,
) -> tuple[Any, Any, Path] | None:
    """The board, the results and the folder; None in a process that only helps another one."""
    from airvlm.evaluation import evaluate as evaluation
    from airvlm.evaluation.plan import TaskSpec
    from airvlm.evaluation.workers import Shard
    from airvlm.leaderboard.board import Board
    from airvlm.leaderboard.costs import measure_costs
    from airvlm.leaderboard.methods import MATCHED, can_match, choose_methods, make_artifacts

    chosen, skipped = choose_methods(names)
    how = asdict(options)
    folder = how.pop("out") or Path("runs") / NAME
    specs = [TaskSpec.of(task, **how) for task in tasks]
    load = model_loader(model, tasks)
    place = Shard.of(spread.shard)
    if spread.shard:  # controls are matched on all answers: each process goes on until they are there
        place = replace(place, helps=True)
    with exit_on_interrupt():
        vlm = load(place.gpu())
        methods: dict[str, Any] = dict(make_artifacts(vlm, chosen, specs, folder / "artifacts"))
        found, notes = ({}, {}) if search is None else _calibrate(vlm, methods, search, folder)
        methods |= found
        results = evaluation.evaluate(
            load,
            specs,
            methods,
            out=folder,
            matched=matched and can_match(specs, methods),
            matched_limit=MATCHED,
            command=current_command(),
            **{**spread.arguments(), "shard": place},
        )
        if not place.gathers:
            return None  # the first process writes the board
        costs = measure_costs(vlm, methods, specs, folder)
    board = Board.of(results, skipped=skipped, calibrated=found, notes=notes, costs=costs, submitted_by=name)
    return board, results, folder


def _calibrate(vlm: Any, methods: dict[str, Any], search: Any, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Each method at the best setting that its budget finds, where that is not its default; and what the search saw."""
    import functools

    from airvlm.evaluation.calibration import list_candidates
    from airvlm.evaluation.spread import run_spread
    from airvlm.leaderboard.methods import label_setting

    found, notes = dict[str, Any](), dict[str, str]()
    for label, method in methods.items():
        # published code stands as it is; a control, or a method without options, has no other setting
        if getattr(method, "faithful", False) or len(list_candidates([method], 2, len(vlm.parts.layers))) == 1:
            continue
        run: Any = functools.partial(_search, replace(search, methods=[method]))
        best = run_spread(run, vlm, out=folder / "calibration", answers=10**6)
        setting = best.best.candidate.applied
        seen = f"{best.settings_tried} settings on {best.best.images} calibration images"
        if setting != method:
            found[label_setting(setting)] = setting
            given = next(m for m in best.stages[-1].measured if m.candidate.applied == method)
            notes[label_setting(setting)] = f"best of {seen}, where it gained {_promise(best.best)}"
            if math.isfinite(given.gain.value):  # there is none where it names nothing
                notes[label_setting(setting)] += f" and the paper's {_promise(given)}"
        else:
            notes[label] = f"no better one among {seen}"
    return found, notes


def _promise(measured: Any) -> str:
    return f"{measured.gain.value:+.1f}{'' if measured.on_curve else ' (beyond the curve)'}"


def _search(search: Any, runner: Any) -> Any:
    return search.run(runner)


def _write(board: Any, folder: Path, runs: list[Any], answers: int, *, page: bool, json: bool) -> None:
    from airvlm.leaderboard.markdown import board_markdown
    from airvlm.leaderboard.page import leaderboard_html
    from airvlm.storage.atomic import write_atomically

    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        **({"html": leaderboard_html(board, runs, answers=answers)} if page else {}),
        "md": board_markdown(board),
        "csv": board.to_csv(),
        "json": board.to_json(),
    }
    paths = {kind: folder / f"{NAME}.{kind}" for kind in contents}
    for kind, content in contents.items():
        write_atomically(paths[kind], content)
    if json:
        emit({"files": {kind: str(path) for kind, path in paths.items()}, "board": board.model_dump(mode="json")})
        return
    print(contents["md"])
    for path in paths.values():
        print(path)
