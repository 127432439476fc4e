"""`airvlm reproduce`: a table of the paper by its number, or the README's own tables, measured again.

Knows the options and what to print; the paper's tables are airvlm.reporting.paper_tables, running is evaluate's, and
what a plan needs is reproduce_plan.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from airvlm.cli import answering
from airvlm.cli.answering import RowsOption, WorkersOption
from airvlm.cli.console import Failure, emit, err, out, warn
from airvlm.cli.options import Evaluating, JsonOption, MethodsOption

if TYPE_CHECKING:  # torch takes seconds to import: each function imports what it runs, so that --help does not
    from airvlm.cli.reproduce_plan import Planned
    from airvlm.evaluation.results import Results
    from airvlm.reporting.paper_tables import PaperTable
    from airvlm.reporting.reproduction import Compared
    from airvlm.vlm import VLM

__all__ = ["reproduce"]

WIDE = 160  # characters of a table in a file
DEPTH = 32  # of the paper's decoder, until a model is loaded


def reproduce(
    what: Annotated[str, typer.Argument(help="A table of the paper, table1 to table21; or readme.")],
    how: Evaluating = Evaluating(),
    method: MethodsOption = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would be run, what it needs and how long it takes.")
    ] = False,
    readme: Annotated[Path, typer.Option("--readme", help="The file whose tables `readme` writes anew.")] = Path(
        "README.md"
    ),
    batch_size: RowsOption = None,
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Measure a table of the paper again, its figures beside ours.

    Answers are kept like those of evaluate: the same command goes on where it was. Each figure of ours has its 95 %
    interval; where the paper's lies outside, it is marked. What nobody can reproduce is said, and why.
    Without --model: the table's first model. With --model tiny the scenes of its own world stand in for COCO's images.
    --method names the readings of AIR that stand in the rows that the paper calls AIR; default: three of them.

    `readme` runs the commands that stand in the markers of a README, and writes their tables between them.

    [bold]Examples[/bold]

    airvlm reproduce table1 --data coco --plan

    airvlm reproduce table1 --model tiny --limit 100

    airvlm reproduce table2 --data benchmarks --model llava-hf/llava-1.5-7b-hf --out runs/llava

    airvlm reproduce readme --plan
    """
    from airvlm.reporting.paper_tables import TABLES

    if what == "readme":
        _readme(readme, plan, json)
        return
    if what not in TABLES:
        raise Failure(f"no table {what!r}: the paper has {next(iter(TABLES))} to {list(TABLES)[-1]}; or readme")
    table = TABLES[what]
    if plan:
        _plan(table, how, method, workers, json)
        return
    _run(table, how, method, batch_size, workers, json)


# -- a table of the paper


def _plan(table: PaperTable, how: Evaluating, readings: Sequence[str] | None, workers: int | None, json: bool) -> None:
    from airvlm.cli.reproduce_plan import model_of, planned, tried

    parts = planned(table, how, readings, DEPTH)
    facts: dict[str, Any] = {"table": table.name, "title": table.title, "model": model_of(table, how.model)}
    facts["parts"] = [part.to_json() for part in parts]
    facts["answers"] = sum(part.answers for part in parts)
    facts["hours"], facts["hours_note"] = tried(table, how, readings, parts, workers)
    facts["beyond_reach"] = table.beyond_reach()
    if json:
        emit(facts)
        return
    console = out()
    console.print(f"table {table.number}: {table.title}; model {facts['model']}", markup=False)
    for part in parts:
        _show_part(part)
    console.print(f"answers to give: {facts['answers']}", markup=False)
    told = facts["hours_note"] if facts["hours"] is None else f"{facts['hours']:.2g} ({facts['hours_note']})"
    console.print(f"hours: {told}", markup=False, soft_wrap=True)
    _beyond(table)


def _show_part(part: Planned) -> None:
    console = out()
    console.print(f"\n{part.task_line}", markup=False, soft_wrap=True)
    for row in part.rows:
        fields = " ".join(f"{k}={v}" for k, v in part.settings(row).items())
        console.print(f"  {row.name}: --method {row.label}  {fields}".rstrip(), markup=False, soft_wrap=True)
    console.print(f"  data: {part.data_line}", markup=False, soft_wrap=True)


def _run(
    table: PaperTable,
    how: Evaluating,
    readings: Sequence[str] | None,
    batch_size: int | None,
    workers: int | None,
    json: bool,
) -> None:
    from airvlm.cli.reproduce_plan import model_of, planned
    from airvlm.evaluation.shards import Shard

    parts = planned(table, how, readings, DEPTH)
    missing = [part for part in parts if part.asked is None]
    if len(missing) == len(parts):
        raise Failure(f"{missing[0].data_line}; --plan lists everything that {table.name} needs")
    name = model_of(table, how.model)
    loader = answering.loader_of(_named(how, name), [])
    vlm = loader(how.device)
    parts = planned(table, how, readings, len(vlm.parts.layers))
    asked = [part.question() for part in parts if part.asked is not None]
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
        curve=False,
    )
    _show(table, parts, run, vlm, f"{name} {how.adapter or ''}", json)


def _named(how: Evaluating, model: str) -> Evaluating:
    from dataclasses import replace

    return replace(how, model=model)


def _show(table: PaperTable, parts: Sequence[Planned], run: Results, vlm: VLM, model: str, json: bool) -> None:
    from airvlm.reporting.reproduction import beside, compared, comparison_sheet
    from airvlm.reporting.sheets import to_rich
    from airvlm.reporting.task_sheet import title_of
    from airvlm.tasks.judges.judge import NoJudge

    theirs, same = beside(table, model)
    console = out()
    console.width = console.width if console.is_terminal else max(console.width, WIDE)
    everything: list[Compared] = []
    notes = []
    for part in parts:
        if part.asked is None:
            notes.append(f"{part.part.key}: not run: {part.data_line}")
            continue
        task = run.tasks[part.question().key]
        try:
            cells = compared(part.part, task, part.rows, theirs)
        except NoJudge as error:
            notes.append(f"{part.part.key}: answered, not scored: {error}")
            continue
        if not cells:
            notes.append(
                f"{part.part.key}: answered, not scored: airvlm score {part.asked.name} {run.folder} "
                f"--data {part.asked.task.data} --set method=NAME compares two methods"
            )
        everything += cells
        if cells and not json:
            sheet = comparison_sheet(title_of(task), cells, theirs, same)
            console.print(*to_rich(sheet, console.width), *sheet.notes, "", sep="\n")
    speed = _speed(parts, vlm) if table.timed else []
    notes += [f"note: {line}" for line in run.notes()]
    if json:
        emit(
            {
                "table": table.name,
                "model": run.model,
                "paper_model": theirs,
                "same_model": same,
                "cells": [cell.to_json() for cell in everything],
                "speed": speed,
                "notes": notes,
                "beyond_reach": table.beyond_reach(),
                "folder": str(run.folder),
            }
        )
    else:
        _show_speed(speed)
        outside = [cell for cell in everything if cell.differs]
        known = sum(cell.differs is not None for cell in everything)
        console.print(f"{len(outside)} of {known} of the paper's figures lie outside our interval", markup=False)
        for note in notes:
            console.print(note, markup=False, soft_wrap=True)
        _beyond(table)
        console.print(f"answers: {run.folder}", markup=False, soft_wrap=True)
    _draw(run.folder / f"{table.name}.png", everything)
    problems = run.problems()
    for problem in problems:
        warn(problem)
    if problems:
        raise typer.Exit(1)


def _draw(path: Path, cells: Sequence[Compared]) -> None:
    from airvlm.reporting import plots
    from airvlm.reporting.reproduction_plot import draw_changes

    if not plots.available():
        warn("no drawing: pip install 'airvlm[plots]'")
    elif draw_changes(path, cells):
        err().print(str(path), markup=False, soft_wrap=True)


def _beyond(table: PaperTable) -> None:
    console = out()
    console.print("\nwhat nobody can reproduce (docs/fidelity.md):", markup=False)
    for line in table.beyond_reach():
        console.print(f"  - {line}", markup=False, soft_wrap=True)


def _speed(parts: Sequence[Planned], vlm: VLM) -> list[dict[str, Any]]:
    """Seconds of an answer as ratios to vanilla, the paper's and ours; each answer is about a new image."""
    from airvlm.bench.efficiency import measure, vlm_subject
    from airvlm.reporting.paper_ablations import SECONDS

    rows = parts[0].rows
    costs = measure(vlm_subject(vlm), {row.label: row.method for row in rows}, tokens=64)
    own = SECONDS["vanilla"]
    return [
        {
            "row": row.name,
            "method": row.label,
            "paper_ratio": round(SECONDS[row.name][0] / own[0], 3),
            "paper_memory_above_vanilla_gb": round(SECONDS[row.name][1] - own[1], 2),
            **{k: v for k, v in cost.to_json().items() if k in ("ratio", "ratio_spread", "peak_memory_bytes")},
        }
        for row, cost in zip(rows, costs, strict=True)
    ]


def _show_speed(speed: Sequence[dict[str, Any]]) -> None:
    for one in speed:
        low, high = one["ratio_spread"]
        out().print(
            f"{one['row']}: {one['method']}: seconds to vanilla's: the paper {one['paper_ratio']:.2f}, "
            f"ours {one['ratio']:.2f} [{low:.2f}, {high:.2f}]",
            markup=False,
            soft_wrap=True,
        )


# -- the README


def _readme(path: Path, plan: bool, json: bool) -> None:
    from airvlm.evaluation.results import Results
    from airvlm.evaluation.store import StoreError
    from airvlm.reporting.readme_tables import blocks, readme_table, replaced
    from airvlm.storage.atomic import write_atomically

    try:
        text = path.read_text(encoding="utf-8")
        found = blocks(text)
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {error}") from error
    if not found:
        raise Failure(f"{path} has no tables between '<!-- results: TASK of COMMAND -->' and '<!-- end -->'")
    commands = list({tuple(block.command): None for block in found if block.command is not None})
    absent = {block.folder: data for block in found if (data := block.data) and not Path(data).exists()}
    if plan:
        facts = [
            {
                "task": b.task,
                "folder": b.folder,
                "command": b.source if b.command else None,
                "answers": _held(b.folder),
                "missing": absent.get(b.folder),
            }
            for b in found
        ]
        if json:
            emit({"tables": facts})
        for fact in facts if not json else ():
            how = f"airvlm reproduce readme runs: {fact['command']}" if fact["command"] else "read as it is"
            if fact["missing"]:
                how = f"left as it is, because {fact['missing']} is not here; with it, {how}"
            out().print(
                f"{fact['task']}: {fact['answers']} answers in {fact['folder']}; {how}",
                markup=False,
                soft_wrap=True,
            )
        return
    if len({block.folder for block in found} - absent.keys()) == 0:
        raise Failure(f"{path}: {next(iter(absent.values()))} is not here, and every table needs it or its like")
    for folder, data in absent.items():
        note = f"{path}: the tables of {folder} are left as they are: {data} is not here"
        err().print(note, markup=False, soft_wrap=True)
    every, found = found, [block for block in found if block.folder not in absent]
    for command in commands:
        if any(tuple(block.command or ()) == command for block in found):
            _evaluate(command)
    try:
        runs = {block.folder: Results.load(block.folder) for block in found}
    except StoreError as error:
        raise Failure(f"{path}: {error}") from error
    named = {b.folder: b.methods for b in found if b.methods}  # a folder may hold more than is shown
    for folder, methods in named.items():
        runs[folder] = runs[folder].only(list(runs[folder].tasks), methods)
    lacking = [b for b in found if b.task not in runs[b.folder].tasks]
    if lacking:
        raise Failure(f"{path}: {lacking[0].folder} has no answers to {lacking[0].task}")
    tables = [readme_table(runs[b.folder].tasks[b.task]) for b in found]
    made = dict(zip(found, tables, strict=True))
    write_atomically(path, replaced(text, [made.get(block, block.table) for block in every]))
    changed = [b.task for b, table in zip(found, tables, strict=True) if b.table.strip() != table.strip()]
    if json:
        left = [b.task for b in every if b.folder in absent]
        emit({"file": str(path), "tables": [b.task for b in found], "changed": changed, "left": left})
        return
    said = f"{path}: {len(found)} tables, changed: {', '.join(changed) or 'none'}"
    out().print(said, markup=False, soft_wrap=True)


def _held(folder: str) -> int:
    from airvlm.evaluation.store import Store, StoreError

    try:
        return len(Store(folder, readonly=True))
    except StoreError:
        return 0


def _evaluate(words: Sequence[str]) -> None:
    """Run a marker's command; what it prints goes to standard error. Code 1 is a note about its figures."""
    from airvlm.cli import run

    err().print("airvlm " + " ".join(words), markup=False, soft_wrap=True)
    with contextlib.redirect_stdout(sys.stderr):
        code = run([*words])
    if code > 1:
        raise Failure(f"airvlm {' '.join(words[:2])} ... ended with code {code}", code=code)
