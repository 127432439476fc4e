"""`airvlm models`: the supported families. Knows only the table in families.py."""

from rich.markup import escape
from rich.padding import Padding

from airvlm.cli.console import emit, out, warn
from airvlm.cli.options import JsonOption, ReadmeOption
from airvlm.models.families import FAMILIES, REFUSED

__all__ = ["models", "models_markdown"]


def models(
    json: JsonOption = False,
    markdown: ReadmeOption = False,
) -> None:
    """Which model families are supported.

    A family is transformers' model type. Anything else can be used from Python by naming its parts:
    [bold]Anatomy(...)[/bold].

    [bold]Examples[/bold]

    airvlm models

    airvlm models --json
    """
    if json:
        rows = [
            {"model_type": f.model_type, "title": f.title, "checkpoint": f.checkpoint, "resolution": f.resolution,
             "note": f.note, "package": FAMILIES.package(name)}
            for name, f in FAMILIES.items()
        ]  # fmt: skip
        emit({"families": rows, "refused": REFUSED})
        return
    if markdown:
        print(models_markdown())
        return
    console = out()
    for own, f in FAMILIES.items():
        # a block each, not a row: names are there to be copied, so that no terminal may cut them
        package = FAMILIES.package(own)
        outside = f"  (of {escape(package)})" if package != "airvlm" else ""
        console.print(f"[bold]{escape(f.title)}[/bold]  {f.model_type}{outside}", soft_wrap=True)
        console.print(f"  {escape(f.checkpoint)}", soft_wrap=True)
        console.print(Padding(escape("; ".join(filter(None, (f.resolution, f.note)))), (0, 0, 0, 2)))
    for name, reason in REFUSED.items():
        console.print(f"not possible: {name} ({escape(reason)})")
    for problem in FAMILIES.problems.values():
        warn(f"left out: {problem}")


def models_markdown() -> str:
    """One line a family."""
    lines = ["| family | model type | for example | images |", "|---|---|---|---|"]
    lines += [
        f"| {f.title} | `{f.model_type}` | {f.checkpoint} | {f.resolution}{'; ' + f.note if f.note else ''} |"
        for f in FAMILIES.own.values()
    ]
    return "\n".join(lines)
