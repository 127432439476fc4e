"""`airvlm demo`: both worlds described without and with AIR: a bundled scene beside its truth, and a photograph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from airvlm import tiny
from airvlm.cli import asking
from airvlm.cli.console import Failure, emit, out
from airvlm.cli.demo_photo import HOW, find_photograph, print_photograph, show_photograph
from airvlm.cli.judged import judged, print_judged
from airvlm.cli.options import Choosing, JsonOption, OutputOption

if TYPE_CHECKING:  # torch takes seconds to import: --help does not need it
    from airvlm.tiny import BundledScene
    from airvlm.vlm import VLM, Answer

__all__ = ["demo"]

# Picked to show what the method can do, not how often: of 1500 test scenes it is one of the 24 in which AIR takes back
# every invented object and names every missed one. Of 461 with an invented object it takes back all in 308, and it
# invents some in 3 others.
SCENE = "test-1275"


def demo(
    scene: Annotated[str, typer.Option("--scene", help="The id of a bundled test scene, or its number.")] = SCENE,
    image: Annotated[
        str | None,
        typer.Option("--image", help="A photograph of yours, in place of the one that the extra photos brings."),
    ] = None,
    by: Choosing = Choosing(),
    output: OutputOption = Path("out/demo.png"),
    json: JsonOption = False,
) -> None:
    """See it: a scene and a photograph described without and with AIR.

    The scene stands beside its truth: objects that are not in the image are red, objects that the description leaves
    out are listed in grey. The photograph is yours (--image), or one that scikit-image brings (the extra photos); every
    object that is named in a description is asked for. Writes drawings of what AIR looked at.

    [bold]Examples[/bold]

    airvlm demo

    airvlm demo --image photo.jpg

    airvlm demo --scene 12 --method air-lineage
    """
    from PIL import Image

    from airvlm.analysis.look import draw_look

    method, chosen = by.method, asking.chosen_method(by.method, by.settings)
    if chosen is None:
        raise Failure("--method none: the demo compares with the model as it is already; choose a method")
    shown, photograph = find_scene(scene), find_photograph(image)
    vlm = asking.load("tiny")
    with asking.explained():
        answers = {"vanilla": vlm.describe(shown.path), method: vlm.describe(shown.path, method=chosen)}
    report = answers[method].report
    assert report is not None, "an answer under a method has its report"
    output.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(shown.path) as opened:
        draw_look(opened.convert("RGB"), report).save(output)
    if not json:
        _print(shown, answers, output, picked=scene == SCENE)
        out().print()
    beside = output.with_stem(f"{output.stem}-photo")
    real = None if photograph is None else show_photograph(photograph, method, chosen, beside)
    if json:
        emit(_json(shown, vlm, answers, output) | {"photograph": None if real is None else real.to_json()})
    elif real is None:
        out().print(escape(HOW), soft_wrap=True)
    else:
        print_photograph(real)


def find_scene(name: str) -> BundledScene:
    """A test scene by its id or its number."""
    scenes = tiny.scenes("test")
    for index, scene in enumerate(scenes):
        if name in (scene.id, str(index)):
            return scene
    raise Failure(f"--scene {name}: no such test scene; give an id such as {scenes[0].id} or 0 to {len(scenes) - 1}")


def _print(scene: BundledScene, answers: dict[str, Answer], output: Path, *, picked: bool) -> None:
    from airvlm.tiny.grammar import article

    console = out()
    console.print(f"[bold]the scene[/bold]  {escape(str(scene.path))}", soft_wrap=True)
    if picked:
        console.print("[dim]chosen because a difference shows; on most scenes there is none (--scene N)[/dim]")
    console.print(f"[bold]it shows[/bold]   {', '.join(scene.names)} (in {article(scene.context)})")
    for name, answer in answers.items():
        print_judged(name, answer, scene.names)
    console.print()
    method = list(answers)[-1]
    console.print(f"[dim]{escape(str(answers[method].report))}[/dim]")
    console.print(escape(f"what {method} looked at: {output}"), soft_wrap=True)


def _json(scene: BundledScene, vlm: VLM, answers: dict[str, Answer], output: Path) -> dict[str, Any]:
    shown = {name: asking.answer_json(answer) | judged(answer.text, scene.names) for name, answer in answers.items()}
    where = {"scene": scene.id, "image": str(scene.path), "truth": list(scene.names), "output": str(output)}
    where["picture"] = where["image"]  # the field's former name
    return where | {"model": vlm.name, "answers": shown}
