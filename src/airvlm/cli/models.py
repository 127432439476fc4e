"""`airvlm models`: the embedded models, and the supported families. Knows only their cards and families.py."""

from collections.abc import Mapping
from typing import Any

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
    """Which models are embedded, and which families are supported.

    A family is transformers' model type. Anything else can be used from Python by naming its parts:
    [bold]ModelParts(...)[/bold].

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
        emit({"embedded": embedded(), "families": rows, "refused": REFUSED})
        return
    if markdown:
        print(models_markdown())
        return
    console = out()
    for name, card in embedded().items():
        console.print(f"[bold]{name}[/bold]  embedded: {escape(str(card['world']))}", soft_wrap=True)
        console.print(Padding(escape(_in_a_line(card["scores"])), (0, 0, 0, 2)))
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


def embedded() -> dict[str, dict[str, Any]]:
    """The models inside the package: what they know, and what they score (`airvlm about` says more)."""
    from airvlm.cli.about import MODELS, WORLDS

    found = {}
    for name, own in MODELS.items():
        if (own.model_path() / "card.json").is_file():
            found[name] = {"world": WORLDS[name]["images"], "scores": own.model_card().get("scores", {})}
    return found


def _in_a_line(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in scores.items())


def models_markdown() -> str:
    """One line a family."""
    lines = ["| family | model type | for example | images |", "|---|---|---|---|"]
    lines += [
        f"| {f.title} | `{f.model_type}` | {f.checkpoint} | {f.resolution}{'; ' + f.note if f.note else ''} |"
        for f in FAMILIES.own.values()
    ]
    return "\n".join(lines)
