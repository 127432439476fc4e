"""`airvlm visualize`: draw what a method did to an image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from airvlm.cli import common
from airvlm.cli.console import Failure, emit, err, out
from airvlm.cli.options import (
    GenerationOptions,
    ImageArgument,
    ImagesOption,
    JsonOption,
    MethodOptions,
    ModelOptions,
    QuestionArgument,
    output_option,
)

__all__ = ["visualize"]


def visualize(
    image: ImageArgument,
    question: QuestionArgument = None,
    output: Annotated[Path, output_option("The drawing: .png, .jpg or .webp.")] = Path("visualize.png"),
    more_images: ImagesOption = None,
    by: MethodOptions = MethodOptions(),
    json: JsonOption = False,
    model: ModelOptions = ModelOptions(),
    generation: GenerationOptions = GenerationOptions(),
) -> None:
    """Draw what a method did: crops, changed tokens, norms.

    The drawing shows the image with its crops, each with its distance to the whole, those that were used in green; a
    heat map of how much each visual token was changed; and the norm of the change over the norm before, per layer. With
    several images one drawing is written for each.

    \b
    Examples:
      airvlm visualize photo.jpg
      airvlm visualize photo.jpg --method air --set keep=4 --output air.png
    An emoji scene is for the model tiny:
      airvlm scene --seed 5 --context kitchen
      airvlm visualize scene.png "Is there a cup?" --model tiny
    """
    common.check_drawing_path(output)
    text = common.check_question(question)
    arguments = common.generation_arguments(generation)
    images = common.read_images([image, *(more_images or ())], allow_urls=False, model=model.model)
    method = common.choose_method(by.method, by.settings)
    nothing = "uses no crops and changes no visual token, so there is nothing to draw; `airvlm ask` shows its answer"
    if method is None or method.site == "logits":
        raise Failure(f"{'vanilla' if method is None else method.label} {nothing}")
    from airvlm.analysis.visualize import draw_report, measure_token_changes

    vlm = common.load_model(model)
    with common.exit_on_method_error():
        answer = vlm.ask(images, text, method=method, **arguments)
        changes = measure_token_changes(vlm, images, text, method)
    report = answer.report
    assert report is not None, "an answer under a method has its report"
    if not report.crops and changes.layer is None:
        raise Failure(f"{method.label} {nothing} ({report})")
    written = [output, *(output.with_stem(f"{output.stem}-{i + 1}") for i in range(1, len(images)))]
    for which, (shown, path) in enumerate(zip(images, written, strict=True)):
        draw_report(shown, report, which, changes).save(path)
    if json:
        asked = {"image": image, "question": text, "model": vlm.name, "output": str(output)}
        emit(asked | {"method": method.to_json(), "changed_at": changes.place} | common.answer_json(answer))
        return
    out().print(answer.text, markup=False, soft_wrap=True)
    err().print(str(report), style="dim", markup=False, soft_wrap=True)
    for path in written:
        out().print(f"written: {path}", markup=False, soft_wrap=True)
