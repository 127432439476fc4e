"""`airvlm demo`: a scene and photographs described with and without a method, beside what they show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text

from airvlm import tiny
from airvlm.cli import common
from airvlm.cli.console import Failure, emit, out, print_columns
from airvlm.cli.options import DEFAULT_METHOD, JsonOption, MethodOptions, ModelOptions, option, output_option

if TYPE_CHECKING:
    from PIL import Image

    from airvlm.methods.base import Method
    from airvlm.vlm import VLM, Answer

__all__ = ["demo"]

SCENE = "test-1275"
FOLDER = Path(__file__).parents[1] / "serve" / "photographs"
# Free photographs that show objects of COCO, and what people see in them.
PHOTOGRAPHS = {
    "astronaut.webp": (("person",), "NASA, public domain, from scikit-image"),
    "coffee.webp": (("cup", "spoon", "dining table"), "Rachel Michetti, CC0, from scikit-image"),
}
# Measured under crop-blend with its defaults: the whole test split of scenes, and the first 1,000 test photographs. All
# 5,000 were measured with 12 crops (experiments/notes/photographs.md).
RATES = {
    "tiny": "The scene was picked. Of 1,500 test scenes, 461 descriptions name an object that is not there; under "
    "crop-blend 190 do (281 lose all of them, 10 gain one). Recall falls from 79.8 to 76.0 %.",
    "photo": "The first photograph was picked, too. Of 1,000 test photographs, 305 descriptions change; 568 name an "
    "object that is not there, 518 under crop-blend (142 name fewer, 34 more). Recall falls from 62.4 to 61.1 %. "
    "With 12 crops in place of 4, over all 5,000: 1,600 change, 55.5 % name an object that is not there, 49.4 % under "
    "crop-blend, and recall falls from 63.8 to 62.3 %.",
}
LARGER = (
    "photo has 5 million parameters. With a network, `airvlm demo --model smol` describes the photographs with one of "
    "221 million, made of CLIP and SmolLM2, which are fetched from the hub."
)


def demo(
    scene: Annotated[str, option("--scene", "ID", "A bundled test scene, by id or number.")] = SCENE,
    image: Annotated[
        list[str] | None, option("--image -i", "IMAGE", "A photograph of yours, in place of those. Repeatable.")
    ] = None,
    model: Annotated[
        str, option("--model -m", "NAME", "The model that describes the photographs; smol needs a network.")
    ] = "photo",
    by: MethodOptions = MethodOptions(),
    output: Annotated[
        Path | None, output_option("A folder for drawings of what the method did.  [default: none are drawn]")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Describe a scene and photographs with and without a method.

    The scene is described by the embedded model tiny, the photographs by photo, or by another --model. Objects that
    are not in the image are shown in red. The photographs come with the package, or are yours (--image).

    \b
    Examples:
      airvlm demo
      airvlm demo --image photo.jpg --output drawings
      airvlm demo --scene 12 --method air --set keep=3
    With a model of real parts, CLIP and SmolLM2 (needs the network):
      airvlm demo --model smol
    """
    bundled = _find_scene(scene)
    photographs = _find_photographs(image, model)
    method = common.choose_method(by.method, by.settings)
    if method is None:
        raise Failure("--method vanilla: the demo compares with vanilla already; choose a method")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    default = method.label == DEFAULT_METHOD
    shown = Shown("scene", str(bundled.path), common.read_image(str(bundled.path), False), bundled.names)
    results = [_describe(common.load_model(ModelOptions(model="tiny")), shown, method, output)]
    if not json:
        _print_result(results[0])
        _print_note(RATES["tiny"] if default and scene == SCENE else "")
    vlm = common.load_model(ModelOptions(model=model))
    for photograph in photographs:
        results.append(_describe(vlm, photograph, method, output))
        if not json:
            _print_result(results[-1])
    if json:
        emit({"method": method.to_json(), "results": [result.to_json() for result in results]})
    else:
        _print_note(RATES.get(model, "") if default and image is None else "")
        _print_note(LARGER if model == "photo" else "")


@dataclass(frozen=True)
class Shown:
    """An image of the demo."""

    kind: str  # scene or photograph
    source: str
    image: Image.Image
    truth: tuple[str, ...] | None  # what it shows; None if nobody said
    credit: str = ""


@dataclass(frozen=True)
class Result:
    """An image, and its descriptions by label."""

    shown: Shown
    model: str
    answers: dict[str, Answer]
    drawing: Path | None

    def to_json(self) -> dict[str, Any]:
        shown = self.shown
        answers = {
            label: common.answer_json(answer) | _judge(answer.text, shown.truth)
            for label, answer in self.answers.items()
        }
        facts = {"kind": shown.kind, "image": shown.source, "credit": shown.credit, "model": self.model}
        truth = None if shown.truth is None else list(shown.truth)
        drawing = None if self.drawing is None else str(self.drawing)
        return facts | {"truth": truth, "answers": answers, "drawing": drawing}


def _find_scene(name: str) -> tiny.BundledScene:
    scenes = tiny.scenes("test")
    for number, scene in enumerate(scenes):
        if name in (scene.id, str(number)):
            return scene
    raise Failure(f"--scene {name}: no such scene; give an id such as {scenes[0].id}, or 0 to {len(scenes) - 1}")


def _find_photographs(given: list[str] | None, model: str) -> list[Shown]:
    """The user's photographs, or those of the package."""
    if given:
        images = common.read_images(given, allow_urls=False, model=model)
        return [Shown("photograph", name, image, None) for name, image in zip(given, images, strict=True)]
    return [
        Shown("photograph", str(FOLDER / name), common.read_image(str(FOLDER / name), False), truth, credit)
        for name, (truth, credit) in PHOTOGRAPHS.items()
    ]


def _describe(vlm: VLM, shown: Shown, method: Method, output: Path | None) -> Result:
    with common.exit_on_method_error():
        answers = {"vanilla": vlm.describe(shown.image), method.label: vlm.describe(shown.image, method=method)}
    report, drawing = answers[method.label].report, None
    if output is not None and report is not None:
        from airvlm.analysis.visualize import draw_report

        drawing = output / f"{Path(shown.source).stem}.png"
        draw_report(shown.image, report).save(drawing)
    return Result(shown, vlm.name, answers, drawing)


def _judge(text: str, truth: tuple[str, ...] | None) -> dict[str, list[str]]:
    """Objects that a text names wrongly, and those that it misses; empty if nobody said what the image shows."""
    from airvlm.tasks.words.objects import find_mentions

    if truth is None:
        return {}
    named = list(dict.fromkeys(mention.category for mention in find_mentions(text, "exact")))
    return {
        "wrong": [name for name in named if name not in truth],
        "missed": [name for name in truth if name not in named],
    }


def _print_result(result: Result) -> None:
    shown = result.shown
    rows = [(shown.kind, shown.source + (f" ({shown.credit})" if shown.credit else ""))]
    if shown.truth is not None:
        rows.append(("it shows", ", ".join(shown.truth)))
    if result.drawing is not None:
        rows.append(("drawing", str(result.drawing)))
    print_columns(rows)
    for label, answer in result.answers.items():
        judged = _judge(answer.text, shown.truth)
        text = Text.assemble((f"\n{label}: ", "bold"), answer.text)
        if judged.get("wrong"):
            text.append(f"\n  not in the image: {', '.join(judged['wrong'])}", style="red")
        if judged.get("missed"):
            text.append(f"\n  not mentioned: {', '.join(judged['missed'])}", style="bright_black")
        out().print(text, soft_wrap=True)
    first, *others = [answer.text for answer in result.answers.values()]
    if others == [first]:
        out().print("(the same description)")
    out().print()


def _print_note(text: str) -> None:
    if text:
        out().print(text + "\n", style="dim", markup=False, soft_wrap=not out().is_terminal)
