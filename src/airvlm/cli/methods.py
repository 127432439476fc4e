"""`airvlm methods`: every method, every field, its meaning and default.

A field's meaning is what its declaration says, or the comment beside it: there is one place to read and to write it.
"""

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from functools import cache
from typing import Annotated, Any

import typer
from rich.table import Table

from airvlm.cli.asking import chosen_method
from airvlm.cli.console import Failure, JsonOption, emit, out
from airvlm.methods import METHODS
from airvlm.methods.base import Method

__all__ = ["field_notes", "methods", "methods_markdown"]


def methods(
    name: Annotated[str | None, typer.Argument(help="Only this one, with all its fields.")] = None,
    json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table of the README.")] = False,
) -> None:
    """Which methods there are: every field, its meaning and default.

    [bold]Examples[/bold]

    airvlm methods

    airvlm methods air-paper

    airvlm ask scene.png "Is there a fork?" --method air-paper --set keep=3
    """
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
    for each in names:
        about = facts(each)
        console.print(f"[bold]{each}[/bold]  {about['mechanism']}")
        if about["paper"]:
            console.print(f"  [dim]{about['paper']}[/dim]")
        if about["cost"]:
            console.print(f"  [dim]cost: {about['cost']}[/dim]")
        table = Table.grid(padding=(0, 2))
        for field in about["fields"]:
            table.add_row("", f"{field['name']} = {field['default']}", field["meaning"])
        console.print(table)


def facts(name: str) -> dict[str, Any]:
    """What is known of a method by its name in the registry."""
    method = chosen_method(name)
    if method is None:
        return {"mechanism": "the model as it is", "paper": "", "cost": "", "fields": []}
    notes = field_notes(type(method))
    fields = [
        {
            "name": f.name,
            "default": _spelled(getattr(method, f.name)),
            "meaning": f.metadata.get("help") or notes.get(f.name, ""),
        }
        for f in dataclasses.fields(method)  # type: ignore[arg-type]
    ]
    kind = type(method)
    return {"mechanism": kind.mechanism, "paper": kind.publication, "cost": kind.forwards, "fields": fields}


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
                above, line = [], node.lineno - 1
                while line in comments and line not in code:
                    above.insert(0, comments[line])
                    line -= 1
                notes[node.target.id] = " ".join(beside or above)
    return notes


def methods_markdown() -> str:
    """One line a method."""
    lines = ["| method | what it does | cost | source |", "|---|---|---|---|"]
    for name in METHODS:
        about = facts(name)
        lines.append(f"| `{name}` | {about['mechanism']} | {about['cost']} | {about['paper']} |")
    return "\n".join(lines)
