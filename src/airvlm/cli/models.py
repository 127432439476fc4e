"""`airvlm models`: the supported families. Knows only the table in families.py."""

from rich.table import Table

from airvlm.cli.console import emit, out
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
    """
    if json:
        rows = [
            {"model_type": f.model_type, "title": f.title, "checkpoint": f.checkpoint, "resolution": f.resolution,
             "note": f.note}
            for f in FAMILIES.values()
        ]  # fmt: skip
        emit({"families": rows, "refused": REFUSED})
        return
    if markdown:
        print(models_markdown())
        return
    table = Table("family", "model type", "for example", "pictures", "to know", box=None, pad_edge=False)
    for f in FAMILIES.values():
        table.add_row(f.title, f.model_type, f.checkpoint, f.resolution, f.note)
    out().print(table)
    for name, reason in REFUSED.items():
        out().print(f"not possible: {name} ({reason})")


def models_markdown() -> str:
    """One line a family."""
    lines = ["| family | model type | for example | pictures |", "|---|---|---|---|"]
    lines += [
        f"| {f.title} | `{f.model_type}` | {f.checkpoint} | {f.resolution}{'; ' + f.note if f.note else ''} |"
        for f in FAMILIES.values()
    ]
    return "\n".join(lines)
