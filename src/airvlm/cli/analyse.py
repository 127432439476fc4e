"""`airvlm analyse`: one command a question about a model, each with a drawing and its numbers."""

from pathlib import Path
from typing import Annotated

import typer

from airvlm.cli.console import Failure, emit, out
from airvlm.cli.options import Choosing, JsonOption, Loading

__all__ = ["analyse"]

QUESTIONS = {
    "margins": "how well a distance tells an image's own crops from another's",
    "layers": "what each layer does with the image, and what an injection there changes",
    "heat": "where in the image each object word of an answer comes from",
    "crops": "a gallery of crops, kept and dropped, and the prototypes",
    "tokens": "what the visual tokens hold: place, image, object",
    "agreement": "what survives when views are blended",
}
SIZES = {"margins": 60, "layers": 40, "heat": 12, "crops": 8, "tokens": 100, "agreement": 60}


def analyse(
    question: Annotated[str, typer.Argument(help=f"One of {', '.join(QUESTIONS)}, or all.")],
    by: Choosing = Choosing(),
    how: Loading = Loading(),
    images: Annotated[
        Path | None,
        typer.Option("--images", help="A folder of images. Default: the emoji model's own scenes."),
    ] = None,
    objects: Annotated[
        Path | None, typer.Option("--objects", help="What the images show: a JSON file {image: [names]}.")
    ] = None,
    count: Annotated[int | None, typer.Option("--images-used", min=2, help="How many images. Default: enough.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where drawings and numbers go.")] = Path("analysis"),
    json: JsonOption = False,
) -> None:
    """Look into a model: what its visual tokens hold, what its layers do, what crops and distances tell.

    Each question writes NAME.png and NAME.json; `all` also writes a page, index.html.

    [bold]Examples[/bold]

    airvlm analyse tokens --model tiny

    airvlm analyse all --model llava-hf/llava-1.5-7b-hf --images photos --out analysis/llava
    """
    names = list(QUESTIONS) if question == "all" else [question]
    if names[0] not in QUESTIONS:
        raise Failure(f"no analysis {question!r}; there are {', '.join(QUESTIONS)}, and all")
    from airvlm.analysis.page import write_page
    from airvlm.analysis.questions import answer
    from airvlm.cli import asking

    method = asking.chosen_method(by.method, by.settings)
    vlm = asking.load(how.model, how.adapter, how.dtype)
    found = []
    for name in names:
        result = answer(name, vlm, method, count or SIZES[name], images, objects)
        drawing, numbers = result.save(folder)
        found.append(result)
        if not json:
            out().print(f"{name}: {result.finding}", markup=False)
            for warning in result.warnings:
                out().print(f"  warning: {warning}", markup=False)
            out().print(f"  {drawing}, {numbers}", markup=False)
    if question == "all":
        page = write_page(found, folder, vlm.name)
        if not json:
            out().print(f"page: {page}", markup=False)
    if json:
        emit({result.name: result.to_json() for result in found})
