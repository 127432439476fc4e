"""`airvlm methods`: every method, every field, its meaning and default.

A field's meaning is what its declaration says, or the comment beside it: there is one place to read and to write it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from airvlm.cli.console import Failure, emit, out
from airvlm.cli.options import JsonOption, ReadmeOption

if TYPE_CHECKING:  # the methods bring torch: each function imports them, so that --help does not
    from airvlm.hooks.method import Method

__all__ = ["field_notes", "methods", "methods_markdown"]


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
        raise Failure(f"unknown method {name!r}; known: {', '.join(METHODS)}")
    if markdown:
        print(methods_markdown())
        return
    names = list(METHODS) if name is None else [name]
    if json:
        emit({"methods": {each: facts(each) for each in names}})
        return
    console = out()
    shown: dict[type[Any], str] = {}  # the first name of a kind is printed whole, later ones by what differs
    for each in names:
        about = facts(each)
        console.print(f"[bold]{each}[/bold]  {about['mechanism']}")
        if about["publication"]:
            console.print(f"  [dim]{about['publication']}[/dim]")
        console.print(f"  [dim]forward passes: {about['forwards']}[/dim]")
        kind: type[Any] = type(METHODS[each].default)
        first = shown.setdefault(kind, each)
        known = facts(first)["fields"] if first != each else []
        if known:
            console.print(f"  the fields of {first}, here with:")
        table = Table.grid(padding=(0, 2))
        for field in about["fields"]:
            if field not in known:
                table.add_row("", f"{field['name']} = {field['default']}", field["meaning"])
        console.print(table)


def facts(name: str) -> dict[str, Any]:
    """What the registry knows of a method."""
    from airvlm.methods import METHODS

    info = METHODS[name]
    method = info.default
    kind: Any = type(method)
    notes = {} if method is None else field_notes(kind)
    fields = [
        {
            "name": field.name,
            "default": _spelled(getattr(method, field.name)),
            "meaning": field.metadata.get("help") or notes.get(field.name, ""),
        }
        for field in _fields(method)
    ]
    return {
        "mechanism": info.mechanism,
        "publication": info.publication,
        "forwards": info.forwards,
        "fields": fields,
    }


def _fields(method: Any) -> tuple[dataclasses.Field[Any], ...]:
    return () if method is None else dataclasses.fields(method)


def _spelled(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@cache
def field_notes(kind: type[Method]) -> dict[str, str]:
    """The comment beside each field of a dataclass, or above it."""
    notes: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        source = textwrap.dedent(inspect.getsource(base))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {t.start[0]: t.string.lstrip("# ").strip() for t in tokens if t.type == tokenize.COMMENT}
        code = {
            number for number, line in enumerate(source.splitlines(), 1) if not line.strip().startswith("#")
        }
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef), "the source of a class is a class"
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                beside = [comments[line] for line in lines if line in comments]
                above: list[str] = []
                line = node.lineno - 1
                while line in comments and line not in code:
                    above.insert(0, comments[line])
                    line -= 1
                notes[node.target.id] = " ".join(beside or above)
    return notes


def methods_markdown() -> str:
    """One line a method."""
    from airvlm.methods import METHODS

    lines = ["| method | what it does | forward passes | source |", "|---|---|---|---|"]
    cited: set[str] = set()
    for name in METHODS:
        about = facts(name)
        source = about["publication"]
        cite = "" if source in cited else source  # once is enough
        cited.add(source)
        lines.append(f"| `{name}` | {about['mechanism']} | {about['forwards']} | {cite} |")
    return "\n".join(lines)
