"""`airvlm demo`: a bundled scene described without and with AIR, beside the truth, which is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from airvlm import tiny
from airvlm.cli import asking
from airvlm.cli.console import Failure, emit, out
from airvlm.cli.options import Choosing, JsonOption, OutputOption

if TYPE_CHECKING:  # torch takes seconds to import: --help does not need it
    from airvlm.tiny import BundledScene
    from airvlm.vlm import VLM, Answer

__all__ = ["checked", "demo", "missed", "wrong"]

# Picked to show what the method can do, not how often: of 1500 test scenes it is one of the 22 in which AIR takes back
# every invented object and names every missed one. It takes back all invented ones in 190, and invents some in 11.
SCENE = "test-0149"


def demo(
    scene: Annotated[
        str, typer.Option("--scene", help="The id of a bundled test scene, or its number.")
    ] = SCENE,
    by: Choosing = Choosing(),
    output: OutputOption = Path("out/demo.png"),
    json: JsonOption = False,
) -> None:
    """See it: a scene described without and with AIR, beside the truth.

    Objects that are not in the image are red, objects that the description leaves out are listed in grey. Writes a
    drawing of what AIR looked at.

    [bold]Examples[/bold]

    airvlm demo

    airvlm demo --scene 12 --method air-lineage
    """
    from PIL import Image

    from airvlm.analysis.look import draw_look
    from airvlm.tiny.grammar import article

    method, chosen = by.method, asking.chosen_method(by.method, by.settings)
    if chosen is None:
        raise Failure("--method none: the demo compares with the model as it is already; choose a method")
    shown = find_scene(scene)
    vlm = asking.load("tiny")
    with asking.explained():
        answers = {"vanilla": vlm.describe(shown.path), method: vlm.describe(shown.path, method=chosen)}
    report = answers[method].report
    assert report is not None, "an answer under a method has its report"
    output.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(shown.path) as image:
        draw_look(image.convert("RGB"), report).save(output)
    if json:
        emit(_json(shown, vlm, answers, output))
        return
    console = out()
    console.print(f"[bold]the image[/bold]  {escape(str(shown.path))}", soft_wrap=True)
    if scene == SCENE:
        console.print(
            "[dim]chosen because a difference shows; on most scenes there is none (--scene N)[/dim]"
        )
    console.print(f"[bold]it shows[/bold]   {', '.join(shown.names)} (in {article(shown.context)})")
    for name, answer in answers.items():
        console.print()
        console.print(
            f"[bold]{escape(name)}[/bold] [dim]({answer.tokens} tokens, {answer.seconds:.2f} s)[/dim]"
        )
        console.print(checked(answer.text, shown))
        false, left_out = wrong(answer.text, shown), missed(answer.text, shown)
        if left_out:
            console.print(f"[bright_black]not mentioned: {', '.join(left_out)}[/bright_black]")
        console.print(
            f"[red]not there: {', '.join(false)}[/red]" if false else "[green]nothing invented[/green]"
        )
    console.print()
    console.print(f"[dim]{escape(str(report))}[/dim]")
    console.print(escape(f"what {method} looked at: {output}"), soft_wrap=True)


def find_scene(name: str) -> BundledScene:
    """A test scene by its id or its number."""
    scenes = tiny.scenes("test")
    for index, scene in enumerate(scenes):
        if name in (scene.id, str(index)):
            return scene
    raise Failure(
        f"--scene {name}: no such test scene; give an id such as {scenes[0].id} or 0 to {len(scenes) - 1}"
    )


def wrong(text: str, scene: BundledScene) -> list[str]:
    """Objects that the text names and the scene does not have."""
    return [name for name in _named(text) if name not in scene.names]


def missed(text: str, scene: BundledScene) -> list[str]:
    """Objects of the scene that the text does not name."""
    named = _named(text)
    return [name for name in scene.names if name not in named]


def checked(text: str, scene: BundledScene) -> Text:
    """The text with objects that are there in green, and those that are not in red."""
    from airvlm.tasks.words.marks import marks
    from airvlm.tasks.words.objects import mentions

    result = Text(text)
    for mark in marks(text, mentions(text), scene.names):
        result.stylize("green" if mark.present else "bold red", mark.start, mark.end)
    return result


def _named(text: str) -> list[str]:
    from airvlm.tasks.words.objects import mentions

    return list(dict.fromkeys(mention.category for mention in mentions(text)))


def _json(scene: BundledScene, vlm: VLM, answers: dict[str, Answer], output: Path) -> dict[str, Any]:
    shown = {
        name: asking.answer_json(answer)
        | {"wrong": wrong(answer.text, scene), "missed": missed(answer.text, scene)}
        for name, answer in answers.items()
    }
    where = {"scene": scene.id, "image": str(scene.path), "truth": list(scene.names), "output": str(output)}
    where["picture"] = where["image"]  # the field's former name
    return where | {"model": vlm.name, "answers": shown}
