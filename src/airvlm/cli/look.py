"""`airvlm look`: a drawing of what AIR looked at."""

from pathlib import Path

from rich.markup import escape

from airvlm.cli import asking
from airvlm.cli.console import Failure, emit, out
from airvlm.cli.options import (
    Asking,
    Choosing,
    ImageArgument,
    JsonOption,
    OutputOption,
    QuestionArgument,
)
from airvlm.inputs.prompts import DESCRIBE

__all__ = ["check_output", "look"]


def look(
    image: ImageArgument,
    question: QuestionArgument = DESCRIBE,
    output: OutputOption = Path("look.png"),
    by: Choosing = Choosing(),
    how: Asking = Asking(),
    json: JsonOption = False,
) -> None:
    """Draw what AIR looked at.

    Writes the image with its crops, each with its distance d_OT to the whole, the kept ones marked; a heat map of where
    the image's tokens were changed; and the norm of what was added, as a ratio to what was there, by layer.

    [bold]Examples[/bold]

    airvlm look scene.png

    airvlm look scene.png "Is there a fork?" --method air-paper --set keep=4 --output fork.png
    """
    from airvlm.analysis.changed import token_changes
    from airvlm.analysis.look import draw_look

    chosen = asking.chosen_method(by.method, by.settings)
    if chosen is None:
        raise Failure("--method none looks at nothing; choose a method that has crops, such as air")
    check_output(output)
    asking.check_question(question)
    images = asking.read_images(image, how)
    generation = asking.decoding(how)
    vlm = asking.load_for(how)
    with asking.explained():
        answer = vlm.ask(images, question, method=chosen, **generation)
    assert answer.report is not None, "an answer under a method has its report"
    changes = token_changes(vlm, images, question, chosen)
    written = [output, *(output.with_stem(f"{output.stem}-{i + 1}") for i in range(1, len(images)))]
    for which, (shown, path) in enumerate(zip(images, written)):
        draw_look(shown, answer.report, which, changes).save(path)
    if json:
        asked = {"image": image, "question": question, "model": vlm.name, "output": str(output)}
        emit(asked | {"method": chosen.to_json(), "changed_at": changes.place} | asking.answer_json(answer))
        return
    out().print(escape(answer.text))
    out().print(f"[dim]{escape(str(answer.report))}[/dim]")
    for path in written:
        out().print(escape(f"written: {path}"), soft_wrap=True)


def check_output(path: Path) -> None:
    """Refuse a place that cannot be written before the work is done."""
    if path.suffix.lower() not in {".png", ".jpg", ".jpeg", ".webp"}:
        raise Failure(f"--output {path}: write to .png, .jpg or .webp")
    if not path.absolute().parent.is_dir():
        raise Failure(f"--output {path}: there is no folder {path.absolute().parent}")
