"""`airvlm look`: a picture of what AIR looked at."""

from pathlib import Path

from airvlm.analysis.look import draw_look
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
from airvlm.images.prompts import DESCRIBE

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

    Writes the picture with its crops, each with its distance d_OT to the whole, the kept ones marked, and the norm of
    what was added, as a ratio to what was there, by layer.

    [bold]Examples[/bold]

    airvlm look scene.png

    airvlm look scene.png "Is there a fork?" --method air-paper --set keep=4 --output fork.png
    """
    chosen = asking.chosen_method(by.method, by.settings)
    if chosen is None:
        raise Failure("--method none looks at nothing; choose a method that has crops, such as air")
    check_output(output)
    picture = asking.picture_and_question(image, question, how.allow_urls)
    vlm = asking.load(how.model, how.adapter, how.dtype)
    with asking.explained():
        answer = vlm.ask(picture, question, method=chosen, max_new_tokens=how.max_new_tokens)
    assert answer.report is not None, "an answer under a method has its report"
    if not answer.report.crops:
        raise Failure(
            f"{by.method} has no crops to show; choose air, air-paper, air-lineage or air-transported"
        )
    draw_look(picture, answer.report).save(output)
    if json:
        asked = {"image": image, "question": question, "model": vlm.name, "output": str(output)}
        emit(asked | {"method": chosen.to_json()} | asking.answer_json(answer))
        return
    out().print(answer.text)
    out().print(f"[dim]{answer.report}[/dim]")
    out().print(f"written: {output}")


def check_output(path: Path) -> None:
    """Refuse a place that cannot be written before the work is done."""
    if path.suffix.lower() not in {".png", ".jpg", ".jpeg", ".webp"}:
        raise Failure(f"--output {path}: write to .png, .jpg or .webp")
    if not path.absolute().parent.is_dir():
        raise Failure(f"--output {path}: there is no folder {path.absolute().parent}")
