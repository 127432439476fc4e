"""`airvlm scene`: a new scene of the embedded model's world, drawn with its truth."""

from pathlib import Path
from typing import Annotated

import typer

from airvlm.cli.console import Failure, emit, out
from airvlm.cli.look import check_output
from airvlm.cli.options import JsonOption, OutputOption
from airvlm.tiny.drawing import SIDE, NoFont, draw
from airvlm.tiny.grammar import counted, places
from airvlm.tiny.world import Scene, compose

__all__ = ["scene"]


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

    Needs the font Noto Color Emoji (Debian: fonts-noto-color-emoji). The scenes that evaluations use are in the
    package and need no font.

    [bold]Examples[/bold]

    airvlm scene --seed 7 --context kitchen --output kitchen.png

    airvlm scene --seed 7 && airvlm describe scene.png
    """
    check_output(output)
    composed = compose(seed, context)
    try:
        drawn = draw(composed, side)
    except NoFont as error:
        raise Failure(str(error)) from error
    drawn.save(output)
    if json:
        emit({"output": str(output), **composed.to_json()})
        return
    console = out()
    console.print(f"written: {output} ({composed.context}, {composed.colour} background)")
    for line in truth(composed):
        console.print(f"  {line}")


def truth(scene: Scene) -> list[str]:
    """What the scene shows, a line for each kind of object."""
    lines = []
    for name in scene.names:
        objects = [placed for placed in scene.objects if placed.name == name]
        lines.append(f"{counted(name, len(objects))} {places(objects)}")
    return lines
