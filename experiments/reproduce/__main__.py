"""`python -m experiments.reproduce table1 ...`, or `docs` for the tables of README.md and docs/results.

Measures a table of the paper again and prints ours beside the paper's. Each figure of ours has its 95 % interval; the
paper's is compared with it only if it is of the same model. Answers are stored, so that the same command resumes.

    python -m experiments.reproduce table1 --data coco --plan
    python -m experiments.reproduce table1 --model tiny --limit 100
    python -m experiments.reproduce table2 --data benchmarks --model llava-hf/llava-1.5-7b-hf --output runs/llava
    python -m experiments.reproduce docs --plan
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airvlm import VLM
from airvlm.cli.evaluate import print_table
from experiments.reproduce import docs
from experiments.reproduce.paper import PublishedTable, load_tables, paper_facts
from experiments.reproduce.tables import (
    PlannedPart,
    comparison_table,
    draw_changes,
    estimate_hours,
    measure,
    plan_parts,
)

__all__ = ["main"]

PAGES = ("README.md", "docs/results/*.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    parser = argparse.ArgumentParser("python -m experiments.reproduce", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", help="a table of the paper, table1 to table21; or docs")
    parser.add_argument("pages", nargs="*", type=Path, help=f"pages to update, for docs (default: {' '.join(PAGES)})")
    parser.add_argument(
        "--plan", action="store_true", help="say what would be run, what it needs and how long it takes"
    )
    parser.add_argument("--model", help="default: the table's first model")
    parser.add_argument("--adapter", help="a LoRA, for table20")
    parser.add_argument("--device")
    parser.add_argument("--data", type=Path, help="the folder of all benchmarks")
    parser.add_argument("--limit", type=int, help="the first items of each task only")
    parser.add_argument("--air", action="append", help="a method in rows that the paper calls AIR; repeatable")
    parser.add_argument("--output", "-o", type=Path, help="where answers are stored")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        if given.what == "docs":
            pages = given.pages or [path for pattern in PAGES for path in sorted(Path().glob(pattern))]
            for page in pages:
                print("\n".join(docs.update(page, plan=given.plan)))
            return 0
        if given.what not in load_tables():
            raise ValueError(f"no table {given.what!r}: the paper has table1 to table{len(load_tables())}; or docs")
        return _reproduce(load_tables()[given.what], given)
    except (ValueError, OSError, ImportError) as error:
        sys.stderr.write(f"reproduce: {' '.join(str(error).split())}\n")
        return 2


def _reproduce(table: PublishedTable, given: argparse.Namespace) -> int:
    model = given.model or paper_facts()["models"][table.models[0]]["hub"]
    plan = functools.partial(plan_parts, table, model=model, data=given.data, limit=given.limit, air=given.air)
    parts = plan()
    missing = [part for part in parts if part.spec is None]
    if len(missing) == len(parts) and not given.plan:
        raise ValueError(f"{missing[0].data}; --plan lists everything that {table.name} needs")
    load = functools.partial(_load, model, given.adapter, given.device)
    if given.plan:
        return _print_plan(table, parts, model, load, given.json)
    vlm = load(None)
    parts = plan(depth=len(vlm.parts.layers))
    theirs, same = table.compared_model(model, given.adapter or "")
    results, cells, notes = measure(
        parts,
        load if (given.workers or 1) > 1 else vlm,
        theirs,
        same,
        out=given.output,
        workers=given.workers,
        batch_size=given.batch_size,
    )
    everything = [cell for found in cells.values() for cell in found]
    speed = _measure_speed(vlm, parts[0]) if table.timed else []
    counted = [cell.differs for cell in everything if cell.differs is not None]
    content = {
        "table": table.name,
        "model": results.model,
        "paper_model": theirs,
        "same_model": same,
        "cells": [cell.to_json() for cell in everything],
        "speed": speed,
        "notes": [*notes, *results.notes()],
        "not_reproducible": table.not_reproducible(),
        "folder": str(results.folder),
    }
    if given.json:
        print(json.dumps(content))
    else:
        for key, found in cells.items():
            if found:
                shown = comparison_table(results.tasks[key], found, theirs, same)
                print_table(shown)
                print(*shown.notes, "", sep="\n")
        _print_end(content, speed, counted)
    if everything and draw_changes(results.folder / f"{table.name}.png", everything):
        sys.stderr.write(f"{results.folder / f'{table.name}.png'}\n")
    for problem in results.problems():
        sys.stderr.write(f"reproduce: {problem}\n")
    return 1 if results.problems() else 0


def _load(model: str, adapter: str | None, own_device: str | None, device: str | None) -> VLM:
    return VLM.load(model, adapter=adapter, device=own_device or device)


def _print_plan(table: PublishedTable, parts: Sequence[PlannedPart], model: str, load: Any, as_json: bool) -> int:
    hours, note = None, "not measured: no data"
    if any(part.spec is not None for part in parts):
        try:
            hours, note = estimate_hours(load(None), parts), "in one process, from a few answers of each method"
        except (OSError, ValueError, ImportError) as error:
            note = f"not measured: {str(error).splitlines()[0]}"
    answers = sum(part.answers for part in parts)
    if as_json:
        content = {"table": table.name, "model": model, "answers": answers, "hours": hours, "hours_note": note}
        content |= {"parts": [part.to_json() for part in parts], "not_reproducible": table.not_reproducible()}
        print(json.dumps(content))
        return 0
    print(f"{table.name}: {table.title}; model {model}")
    for part in parts:
        judged = ", scored by a judge (AIRVLM_JUDGE_URL)" if part.part.judged else ""
        asked = "cannot be asked" if part.spec is None else f"{part.answers} answers{judged}"
        print(f"  {part.part.key}: {asked}; {part.data}")
    for row in dict.fromkeys(row for part in parts for row in part.rows):
        print(f"  {row.name}: --method {row.label}")
    print(f"answers: {answers}; hours: {note if hours is None else f'{hours:.2g} ({note})'}")
    _print_not_reproducible(table.not_reproducible())
    return 0


def _print_end(content: dict[str, Any], speed: Sequence[dict[str, Any]], counted: Sequence[bool]) -> None:
    for one in speed:
        low, high = one["ratio_spread"]
        print(
            f"{one['row']}: {one['method']}: seconds to vanilla's: paper {one['paper_ratio']:.2f}, "
            f"ours {one['ratio']:.2f} [{low:.2f}, {high:.2f}]"
        )
    if content["same_model"]:
        print(f"{sum(counted)} of {len(counted)} of the paper's figures are outside our interval")
    else:
        print(f"another model than the paper's {content['paper_model']}: figures are not compared")
    print(*content["notes"], sep="\n")
    _print_not_reproducible(content["not_reproducible"])
    print(f"answers: {content['folder']}")


def _print_not_reproducible(lines: Sequence[str]) -> None:
    print("\nwhat nobody can reproduce (docs/explanation/fidelity.md):")
    for line in lines:
        print(f"  - {line}")


def _measure_speed(vlm: VLM, part: PlannedPart) -> list[dict[str, Any]]:
    """Seconds per answer as ratios to vanilla, the paper's and ours; each answer is about a new image."""
    from airvlm.bench.efficiency import measure as measure_costs
    from airvlm.bench.efficiency import vlm_subject

    printed = paper_facts()["seconds"]
    rows = [row for row in part.rows if row.name in printed]
    costs = measure_costs(vlm_subject(vlm), {row.label: row.method for row in rows}, tokens=64)
    kept = ("ratio", "ratio_spread", "peak_memory_bytes")
    return [
        {
            "row": row.name,
            "method": row.label,
            "paper_ratio": round(printed[row.name][0] / printed["vanilla"][0], 3),
            "paper_memory_above_vanilla_gb": round(printed[row.name][1] - printed["vanilla"][1], 2),
            **{name: value for name, value in cost.to_json().items() if name in kept},
        }
        for row, cost in zip(rows, costs, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
