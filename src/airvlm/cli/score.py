"""`airvlm score`: the score of a file of answers, of any run of anybody's; no model is loaded.

Knows the tasks' common interface only: a task reads its own files (`Task.rescore`).
"""

from __future__ import annotations

import dataclasses
import json as _json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from airvlm.cli.console import Failure, emit, out, warn
from airvlm.cli.options import JsonOption, VariantOption

if TYPE_CHECKING:  # numpy and the tasks are not needed for --help
    from airvlm.evaluation.statistics import Estimate
    from airvlm.tasks import Scores, Task

__all__ = ["score"]

DRAWS = 1000  # resamples for the intervals
TOLERATED = 0.01  # share of answers that may be unreadable before the reader is told


def score(
    task: Annotated[str, typer.Argument(help="A task's name, such as chair or pope; --list shows them.")] = "",
    answers: Annotated[
        Path | None, typer.Argument(help="The answers, in the benchmark's own format (gzipped or not).")
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option("--truth", help="What the answers are compared with, where the file does not say."),
    ] = None,
    variant: VariantOption = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE of the task, e.g. drop_incomplete=true.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The benchmark's folder, if it has one.")] = None,
    lenient: Annotated[
        bool,
        typer.Option("--lenient", help="Take the last of answers with one id, and leave out those of no item."),
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Fewer answers than items are meant: end with code 0, not 3.")
    ] = False,
    items: Annotated[bool, typer.Option("--items", help="Also what was read from each answer.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Which tasks and variants there are.")] = False,
    json: JsonOption = False,
) -> None:
    """Score answers that you already have.

    Answers whose id stands twice or belongs to no item are errors. A score on fewer than all items says so and ends
    with code 3.

    [bold]Examples[/bold]

    airvlm score chair captions.jsonl --truth coco/annotations --variant wordnet

    airvlm score pope answers.jsonl --truth coco_pope_random.json --variant rucaibox

    airvlm score amber answers.json --truth AMBER/data
    """
    from airvlm.tasks import load_task

    if listed:
        _list(json)
        return
    if not task or answers is None:
        raise Failure("needs a task and a file of answers: airvlm score TASK ANSWERS; --list shows the tasks")
    for path in (answers, truth, data):
        if path is not None and not path.exists():
            raise Failure(f"no file or folder {path}")
    chosen = load_task(task, data, variant=variant, **_options(settings or []))
    scores = chosen.rescore(answers, truth, lenient=lenient) if lenient else chosen.rescore(answers, truth)
    if not scores.n:
        raise Failure(f"{answers}: nothing in it can be scored ({scores.covered})")
    figures = _figures(scores)
    coverage = scores.covered
    unjudged = max(0, scores.missing - coverage.missing)
    if coverage.unreadable > TOLERATED * max(1, coverage.matched) or unjudged > TOLERATED * max(1, scores.n):
        warn(f"{coverage.unreadable} answers could not be read and {unjudged} have no verdict, of {coverage.matched}")
    if coverage.duplicate or coverage.unknown:
        warn(f"{coverage.duplicate} answers with the id of another and {coverage.unknown} to no item were given")
    if json:
        emit(_report(task, chosen, variant, scores, figures, items))
    else:
        _print(task, chosen, scores, figures, items)
    if not coverage.complete or unjudged:
        lacking = f"{coverage.missing} have no answer" + (f" and {unjudged} no verdict" if unjudged else "")
        warn(f"a score on {coverage.matched - unjudged} of {coverage.expected} items: {lacking}")
        if not partial:
            raise typer.Exit(3)


def _print(task: str, chosen: Task, scores: Scores, figures: dict[str, Estimate], items: bool) -> None:
    table = Table("metric", "value", "95 % interval", box=None, pad_edge=False)
    for name, figure in figures.items():
        table.add_row(name, _shown(figure.value), f"{_shown(figure.low)} – {_shown(figure.high)}")
    console = out()
    named = ", ".join(
        f"{k}={v}" for k, v in {**chosen.settings(), **scores.record}.items() if k not in {"task", "images"}
    )
    coverage = scores.covered
    lacking = max(coverage.missing, scores.missing)
    part = f" of {coverage.expected} items, {lacking} without an answer or a verdict" if lacking else ""
    console.print(f"[bold]{escape(task)}[/bold]  n = {scores.n}{part}  [dim]{escape(named)}[/dim]")
    console.print(str(coverage), style="dim")
    console.print(table)
    if spent := _spent():
        console.print(
            f"judge: {spent['requests']} questions asked, {spent['from_file']} on file, "
            f"{spent['prompt_tokens']} + {spent['completion_tokens']} tokens"
        )
    for note in scores.notes:
        console.print(f"note: {escape(note)}")
    if items:
        for row in scores.details:
            print(_json.dumps(row, ensure_ascii=False, default=str))


def _spent() -> dict[str, int]:
    """What the judge cost; nothing, where none was asked."""
    judge = sys.modules.get("airvlm.tasks.judges.judge")
    spent: dict[str, int] = judge.SPENT.to_json() if judge else {}
    return spent if any(spent.values()) else {}


def _figures(scores: Scores) -> dict[str, Estimate]:
    from airvlm.evaluation.statistics import Draws, Sample

    sample = Sample(scores, Draws(scores.groups, DRAWS))
    return {name: sample.estimate(name) for name in scores.definitions}


def _report(
    name: str, task: Task, variant: str | None, scores: Scores, figures: dict[str, Estimate], items: bool
) -> dict[str, Any]:
    content: dict[str, Any] = {
        "task": name,
        "variant": variant,
        "settings": {**task.settings(), **scores.record},
        "n": scores.n,
        "unparsed": scores.unparsed,
        "missing": max(scores.missing, scores.covered.missing),
        "complete": scores.covered.complete and scores.missing <= scores.covered.missing,
        "coverage": scores.covered.to_json(),
        "metrics": {
            metric: {"value": _plain(f.value), "low": _plain(f.low), "high": _plain(f.high), "n": f.n}
            for metric, f in figures.items()
        },
        "counts": scores.totals,
        "notes": list(scores.notes),
    }
    if spent := _spent():
        content["judge"] = spent
    if items:
        content["items"] = scores.details
    return content


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _shown(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"


def _options(settings: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise Failure(f"--set takes FIELD=VALUE, not {setting!r}")
        try:
            options[name] = _json.loads(value)
        except _json.JSONDecodeError:
            options[name] = value
    return options


def _list(json: bool) -> None:
    from airvlm.tasks import TASKS

    if json:
        emit({"tasks": {name: _about(name) for name in TASKS}})
        return
    table = Table("task", "what", "variants", box=None, pad_edge=False)
    for name in TASKS:
        about = _about(name)
        table.add_row(name, about["about"], ", ".join(about["variants"]))
    out().print(table)


def _about(name: str) -> dict[str, Any]:
    from airvlm.tasks import TASKS

    task = TASKS[name]()
    fields = {f.name for f in dataclasses.fields(task)} - {"data", "judge"}
    return {"about": TASKS[name].about, "variants": list(task.variants), "fields": sorted(fields)}
