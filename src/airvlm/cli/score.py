"""`airvlm score`: score a file of answers, of anybody's run; no model is loaded."""

from __future__ import annotations

import dataclasses
import json as _json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airvlm.cli.console import Failure, emit, print_columns, warn
from airvlm.cli.options import JsonOption

if TYPE_CHECKING:
    from airvlm.evaluation.statistics import Estimate
    from airvlm.tasks import Scores, Task

__all__ = ["score"]

DRAWS = 1000  # resamples for the intervals
TOLERATED = 0.01  # share of answers that may be unreadable without a warning
INCOMPLETE = 3  # exit code


def score(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task, such as chair or pope; --list shows them.")] = "",
    answers: Annotated[
        Path | None, typer.Argument(metavar="ANSWERS", help="In the benchmark's own format, gzipped or not.")
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option("--truth", metavar="PATH", help="Ground truth, if the answers do not include it."),
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="NAME", help="A variant of the task's parser or protocol.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="An option of the task, as in drop_incomplete=true."),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="Score by rules where NLTK's tagger or CAPTURE's parser is not installed; every output says so.",
        ),
    ] = False,
    data: Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The benchmark's folder.")] = None,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Of answers with the same id take the last; ignore unknown ids.")
    ] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Exit with 0 although items have no answer.")] = False,
    items: Annotated[bool, typer.Option("--items", help="Also print what was read from each answer.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the tasks and their variants.")] = False,
    json: JsonOption = False,
) -> None:
    """Score answers that you already have.

    Answers with a duplicate or an unknown id are errors. How many items have an answer is always printed; exits with 3
    if some have none, or if there is no ground truth to score with.

    \b
    Examples:
      airvlm score chair captions.jsonl --truth coco/annotations --variant wordnet
      airvlm score pope answers.jsonl --truth coco_pope_random.json --variant rucaibox
      airvlm score amber answers.json --truth AMBER/data
    """
    from airvlm.tasks import has_option, load_task
    from airvlm.tasks.answers import score_file

    if listed:
        _list_tasks(json)
        return
    if not task or answers is None:
        raise Failure("needs a task and a file of answers: airvlm score TASK ANSWERS; --list shows the tasks")
    for path in (answers, truth, data):
        if path is not None and not path.exists():
            raise Failure(f"no file or folder {path}")
    options = _parse_settings(settings or [])
    if approximate:
        if not has_option(task, "approximate"):
            raise Failure(f"--approximate: {task} needs no model that rules could replace; leave it out")
        options["approximate"] = True
    chosen = load_task(task, data, variant=variant, **options)
    scores = score_file(chosen, answers, truth, lenient=lenient)
    coverage = scores.coverage
    if not scores.n:
        raise Failure(f"{answers}: nothing in it can be scored ({coverage})")
    # without ground truth a task has no metric of which more or less would be better
    scored = any(metric.better != "neither" for metric in scores.definitions.values())
    figures = _figures(scores)
    content = _report(task, chosen, variant, scores, figures)
    if items or not scored:
        content["items"] = scores.details
    if json:
        emit(content)
    else:
        _print(content, figures)
    unjudged = max(0, scores.missing - coverage.missing)
    if coverage.unreadable > TOLERATED * max(1, coverage.matched) or unjudged > TOLERATED * max(1, scores.n):
        warn(f"of {coverage.matched} answers {coverage.unreadable} could not be read and {unjudged} have no verdict")
    if coverage.duplicate or coverage.unknown:
        warn(f"ignored: {coverage.duplicate} answers with a duplicate id, {coverage.unknown} with an unknown id")
    if not scored:
        warn(f"not scored: {'; '.join(scores.notes) or 'there is no ground truth; give it with --truth'}")
        raise typer.Exit(INCOMPLETE)
    if not coverage.complete or unjudged:
        lacking = f"{coverage.missing} have no answer" + (f" and {unjudged} no verdict" if unjudged else "")
        warn(f"a score on {coverage.matched - unjudged} of {coverage.expected} items: {lacking}")
        if not partial:
            raise typer.Exit(INCOMPLETE)


def _figures(scores: Scores) -> dict[str, Estimate]:
    from airvlm.evaluation.statistics import Draws, Sample

    sample = Sample(scores, Draws(scores.groups, DRAWS))
    return {name: sample.estimate(name) for name in scores.definitions}


def _report(name: str, task: Task, variant: str | None, scores: Scores, figures: dict[str, Estimate]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "task": name,
        "variant": variant,
        "settings": {**task.settings(), **scores.record},
        "n": scores.n,
        "unparsed": scores.unparsed,
        "missing": max(scores.missing, scores.coverage.missing),
        "complete": scores.coverage.complete and scores.missing <= scores.coverage.missing,
        "coverage": scores.coverage.to_json(),
        "metrics": {metric: figure.to_json() for metric, figure in figures.items()},
        "counts": scores.totals,
        "notes": list(scores.notes),
    }
    judge = sys.modules.get("airvlm.tasks.judges.judge")  # imported only if one was asked
    spent: dict[str, int] = judge.SPENT.to_json() if judge else {}
    return content | ({"judge": spent} if any(spent.values()) else {})


def _print(content: dict[str, Any], figures: dict[str, Estimate]) -> None:
    skipped = ("task", "images", "seed", "count")  # a file of answers has its images, and draws none
    settings = ", ".join(f"{k}={v}" for k, v in content["settings"].items() if k not in skipped and v is not None)
    coverage = content["coverage"]
    part = f" of {coverage['expected']} items, {content['missing']} without an answer or a verdict"
    print(f"{content['task']}  n = {content['n']}{part if content['missing'] else ''}")
    print(settings)
    print(" · ".join(f"{name} {count}" for name, count in coverage.items()))
    rows = [["metric", "value", "95 % interval"]]
    for name, figure in figures.items():
        interval = f"[{figure.low:.2f}, {figure.high:.2f}]" if figure.trusted else "[?]"
        rows.append([name, f"{figure.value:.2f}" if math.isfinite(figure.value) else "–", interval])
    print_columns(rows, right=(1, 2))
    if judge := content.get("judge"):
        tokens = f"{judge['prompt_tokens']} + {judge['completion_tokens']} tokens"
        print(f"judge: {judge['requests']} questions asked, {judge['from_file']} from its file, {tokens}")
    for note in content["notes"]:
        print(f"note: {note}")
    for row in content.get("items", ()):
        print(_json.dumps(row, ensure_ascii=False, default=str))


def _parse_settings(settings: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise Failure(f"--set {setting}: write OPTION=VALUE")
        try:
            options[name] = _json.loads(value)
        except _json.JSONDecodeError:
            options[name] = value
    return options


def _list_tasks(json: bool) -> None:
    from airvlm.tasks import TASKS

    facts = {}
    for name in TASKS:
        task = TASKS[name]()
        options = sorted({f.name for f in dataclasses.fields(task)} - {"data", "judge"})
        facts[name] = {"about": TASKS[name].about, "variants": list(task.variants), "options": options}
    if json:
        emit({"tasks": facts})
        return
    rows, shown = [["task", "variants", "what"]], dict[str, str]()
    for name, task_facts in facts.items():
        variants, about = ", ".join(task_facts["variants"]), str(task_facts["about"])
        rows.append([name, f"those of {shown[variants]}" if variants in shown else variants, about])
        if variants:
            shown.setdefault(variants, name)
    print_columns(rows)
