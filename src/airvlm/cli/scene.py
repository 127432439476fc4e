"""`airvlm scene`: a new scene of the embedded model's world, drawn with its truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from airvlm.cli.console import emit, out
from airvlm.cli.look import check_output
from airvlm.cli.options import JsonOption, OutputOption

if TYPE_CHECKING:
    from airvlm.tiny.world import Scene

__all__ = ["scene"]

SIDE = 448  # pixels of a scene, as the embedded model's evaluation has them


def scene(
    seed: Annotated[int, typer.Option("--seed", help="The same seed draws the same scene.")] = 0,
    context: Annotated[
        str | None, typer.Option("--context", help="kitchen, street, beach, farm, ... Default: the seed's.")
    ] = None,
    output: OutputOption = Path("scene.png"),
    side: Annotated[int, typer.Option("--side", min=32, max=4096, help="Pixels a side.")] = SIDE,
    json: JsonOption = False,
) -> None:
    """Draw a new scene of the embedded model's world, with its truth.

    [bold]Examples[/bold]

    airvlm scene --seed 7 --context kitchen --output kitchen.png

    airvlm scene --seed 7 && airvlm describe scene.png
    """
    from airvlm.tiny.drawing import draw
    from airvlm.tiny.world import compose

    check_output(output)
    composed = compose(seed, context)
    draw(composed, side).save(output)
    if json:
        emit({"output": str(output), **composed.to_json()})
        return
    console = out()
    shown = f"{composed.context}, {composed.colour} background"
    console.print(escape(f"written: {output} ({shown})"), soft_wrap=True)
    for line in truth(composed):
        console.print(f"  {line}")


def truth(scene: Scene) -> list[str]:
    """What the scene shows, a line for each kind of object."""
    from airvlm.tiny.grammar import counted, places

    lines = []
    for name in scene.names:
        objects = [placed for placed in scene.objects if placed.name == name]
        lines.append(f"{counted(name, len(objects))} {places(objects)}")
    return lines
