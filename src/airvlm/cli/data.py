"""`airvlm data`: list, fetch, locate and verify the benchmarks' data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from airvlm.cli.console import Failure, emit, print_columns, warn
from airvlm.cli.options import JsonOption

if TYPE_CHECKING:
    from airvlm.data import Need

__all__ = ["data"]


def data(
    action: Annotated[
        Literal["list", "get", "where", "verify"],
        typer.Argument(metavar="ACTION", help="list, get, where or verify."),
    ],
    tasks: Annotated[list[str] | None, typer.Argument(metavar="TASK...", help="Tasks of `airvlm data list`.")] = None,
    split: Annotated[
        Literal["test", "validation", "calibration"],
        typer.Option("--split", help="Which part of the items; CHAIR fetches the images of each apart."),
    ] = "test",
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="NAME", help="The variant of the task, if it has other data.")
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="verify: fetch again what is damaged or missing.")] = False,
    json: JsonOption = False,
) -> None:
    """List, fetch, locate and verify the benchmarks' data.

    `airvlm evaluate TASK` fetches what it needs by itself; this command does it beforehand. Everything goes to
    AIRVLM_CACHE/data (default: ~/.cache/airvlm/data). A download that was stopped goes on where it was. `where` prints
    the folder and exits with 1 if the data are not complete; `verify` compares every file with its recorded hash and
    exits with 1 if one is damaged.

    \b
    Examples:
      airvlm data list
      airvlm data get pope repope
      airvlm data where pope
      airvlm data verify pope --repair
    """
    if action == "list":
        _list(tasks or [], json)
        return
    if not tasks:
        raise Failure(f"airvlm data {action} needs a task; `airvlm data list` shows them")
    needs = [_find(task, split, variant) for task in tasks]
    {"get": _get, "where": _show_place, "verify": lambda needs, json: _verify(needs, json, repair)}[action](needs, json)


def _find(task: str, split: str, variant: str | None) -> Need:
    from airvlm.data import find_need, list_tasks
    from airvlm.tasks import TASKS

    need = find_need(task, split=split, variant=variant)
    if need is None:
        if task not in TASKS:
            raise Failure(TASKS.unknown("task", task))
        raise Failure(f"{task} has no data to fetch; those that have are {', '.join(list_tasks())}")
    return need


def _describe(need: Need) -> dict[str, Any]:
    from airvlm.data import get_status

    status, part = get_status(need), need.data.parts[need.part]
    return {
        "task": need.task,
        "folder": str(status.folder),
        "complete": status.complete,
        "download": part.size,
        "files": status.files,
        "bytes": status.size,
        "license": need.license,
        "source": part.source,
    }


def _list(tasks: list[str], json: bool) -> None:
    from airvlm.data import list_tasks

    needs = [_find(task, "test", None) for task in tasks or list_tasks()]
    if json:
        emit({"data": [_describe(need) for need in needs]})
        return
    # tasks that need the same part of a data set share a row
    shared: dict[tuple[str, str], list[Need]] = {}
    for need in needs:
        shared.setdefault((need.data.name, need.part), []).append(need)
    rows = [["task", "here", "download", "license", "from"]]
    for group in shared.values():
        fact, others = _describe(group[0]), len(group) - 1
        size = "?" if fact["download"] is None else f"{fact['download'] / 1e6:.0f} MB"
        here = f"{fact['bytes'] / 1e6:.0f} MB" if fact["complete"] else "-"
        name = fact["task"] + (f" (and {others} more)" if others else "")
        rows.append([name, here, size, fact["license"], fact["source"]])
    print_columns(rows, right=(1, 2))


def _get(needs: list[Need], json: bool) -> None:
    from airvlm.data import fetch_data

    for need in needs:
        fetch_data(need)
    facts = [_describe(need) for need in needs]
    if json:
        emit({"data": facts})
    else:
        print_columns([[fact["task"], fact["folder"]] for fact in facts])


def _show_place(needs: list[Need], json: bool) -> None:
    facts = [_describe(need) for need in needs]
    if json:
        emit({"data": facts})
    else:
        print("\n".join(fact["folder"] for fact in facts))
    lacking = [fact["task"] for fact in facts if not fact["complete"]]
    if lacking:
        warn(f"not complete: {', '.join(lacking)}; run: airvlm data get {' '.join(lacking)}")
        raise typer.Exit(1)


def _verify(needs: list[Need], json: bool, repair: bool) -> None:
    from airvlm.data import fetch_data, get_status, verify_data

    found = {}
    for need in needs:
        problems = verify_data(need, repair=repair)
        if problems and repair:
            fetch_data(need)
        found[need.task] = problems
        if not json:
            files = get_status(need).files
            state = f"{files} files are intact" if not problems else "fetched again" if repair else "not intact"
            print("\n".join([*problems, f"{need.task}: {state}"]))
    if json:
        emit({"verified": {task: {"intact": not lines, "problems": lines} for task, lines in found.items()}})
    if any(found.values()) and not repair:
        raise typer.Exit(1)
