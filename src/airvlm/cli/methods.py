"""`airvlm methods`: every method, every field, its meaning, default and range, and the package it comes from.

A field's meaning is what its declaration says (airvlm.methods.base.setting): one place to read and to write it.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from airvlm.cli.console import Failure, emit, out, warn
from airvlm.cli.options import JsonOption, ReadmeOption

__all__ = ["methods", "methods_markdown"]


def methods(
    name: Annotated[str | None, typer.Argument(help="Only this one, with all its fields.")] = None,
    json: JsonOption = False,
    markdown: ReadmeOption = False,
) -> None:
    """Which methods there are: every field, its meaning and default.

    [bold]Examples[/bold]

    airvlm methods

    airvlm methods air-paper

    airvlm ask scene.png "Is there a fork?" --method air-paper --set keep=3
    """
    from airvlm.methods import METHODS

    if name is not None and name not in METHODS:
        raise Failure(METHODS.unknown("method", name))
    if markdown:
        print(methods_markdown())
        return
    names = list(METHODS) if name is None else [name]
    for problem in METHODS.problems.values():
        warn(f"left out: the method {problem}")
    if json:
        emit({"methods": {each: facts(each) for each in names}})
        return
    console = out()
    shown: dict[type[Any], str] = {}  # the first name of a kind is printed whole, later ones by what differs
    for each in names:
        about = facts(each)
        origin = "" if about["package"] == "airvlm" else f"  [dim](of {escape(about['package'])})[/dim]"
        console.print(f"[bold]{escape(each)}[/bold]  {escape(about['summary'])}{origin}")
        if about["paper"]:
            console.print(f"  [dim]{escape(about['paper'])}[/dim]")
        console.print(f"  [dim]forward passes: {escape(about['forwards'])}[/dim]")
        kind: type[Any] = type(METHODS[each].default)
        first = shown.setdefault(kind, each)
        known = facts(first)["fields"] if first != each else []
        if known:
            console.print(f"  the fields of {first}, here with:")
        table = Table.grid(padding=(0, 2))
        for field in about["fields"]:
            if field not in known:
                acts = f" (acts in {', '.join(field['readings'])})" if field["readings"] else ""
                table.add_row("", escape(f"{field['name']} = {field['default']}"), escape(field["meaning"] + acts))
        console.print(table)


def facts(name: str) -> dict[str, Any]:
    """What the registry knows of a method."""
    from airvlm.methods import METHODS

    info = METHODS[name]
    method = info.default
    fields = [
        {
            "name": field.name,
            "default": _spelled(getattr(method, field.name)),
            "meaning": field.metadata.get("doc", ""),
            "kind": str(field.type),
            **{fact: field.metadata.get(fact) for fact in ("low", "high", "above", "search")},
            "readings": list(field.metadata.get("readings", ())),
        }
        for field in _fields(method)
    ]
    return {
        "summary": info.summary,
        "paper": info.paper,
        "forwards": info.forwards,
        "package": info.package,
        "fields": fields,
    }


def _fields(method: Any) -> tuple[dataclasses.Field[Any], ...]:
    return () if method is None else dataclasses.fields(method)


def _spelled(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def methods_markdown() -> str:
    """One line a method."""
    from airvlm.methods import METHODS

    lines = ["| method | what it does | forward passes | source |", "|---|---|---|---|"]
    cited: set[str] = set()
    for name in METHODS:
        about = facts(name)
        source = about["paper"]
        cite = "" if source in cited else source  # once is enough
        cited.add(source)
        lines.append(f"| `{name}` | {about['summary']} | {about['forwards']} | {cite} |")
    return "\n".join(lines)
