"""`airvlm ask`: one question about one image or several."""

from rich.markup import escape

from airvlm.cli import asking
from airvlm.cli.console import emit, err
from airvlm.cli.options import Asking, Choosing, ImageArgument, JsonOption, QuestionArgument

__all__ = ["answer_question", "ask"]


def ask(
    image: ImageArgument,
    question: QuestionArgument,
    by: Choosing = Choosing(),
    how: Asking = Asking(),
    json: JsonOption = False,
) -> None:
    """Ask a question about an image.

    The answer is printed as it comes; what the method did goes to standard error.

    [bold]Examples[/bold]

    airvlm ask scene.png "Is there a fork in the image?"

    airvlm ask scene.png "How many dogs are there?" --method none

    airvlm ask before.png "What has changed?" --image after.png --temperature 0.7 --seed 1

    airvlm ask photo.jpg "What is this?" -m llava-hf/llava-1.5-7b-hf --method air-paper --set keep=3 --set strength=0.2
    """
    answer_question(image, question, by, how, json=json)


def answer_question(image: str, question: str, by: Choosing, how: Asking, *, json: bool) -> None:
    """Ask, and print the answer as JSON or as it comes."""
    method = asking.chosen_method(by.method, by.settings)
    asking.check_question(question)
    images = asking.read_images(image, how)
    generation = asking.decoding(how)
    vlm = asking.load_for(how)
    with asking.explained():
        if json:
            answer = vlm.ask(images, question, method=method, **generation)
            asked = {"image": image, "question": question, "model": vlm.name}
            named = None if method is None else method.to_json()
            emit(asked | {"method": named} | asking.answer_json(answer))
            return
        answer = asking.spoken(vlm.stream(images, question, method=method, **generation))
    if answer.report is not None:
        err().print(f"[dim]{escape(str(answer.report))}[/dim]")
