"""`airvlm describe`: the question that evaluations of hallucination ask."""

from airvlm.cli.ask import answer_question
from airvlm.cli.options import Asking, Choosing, ImageArgument, JsonOption
from airvlm.inputs.prompts import DESCRIBE

__all__ = ["describe"]


def describe(
    image: ImageArgument,
    by: Choosing = Choosing(),
    how: Asking = Asking(),
    json: JsonOption = False,
) -> None:
    """Describe an image in detail.

    [bold]Examples[/bold]

    airvlm describe scene.png

    airvlm describe scene.png --method none --json
    """
    answer_question(image, DESCRIBE, by, how, json=json)
