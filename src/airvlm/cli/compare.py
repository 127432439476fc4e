"""`airvlm compare`: one question under several methods, side by side, with what differs marked."""

from rich.columns import Columns
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from airvlm.cli import asking
from airvlm.cli.console import Failure, emit, out
from airvlm.cli.options import Asking, ImageArgument, JsonOption, MethodsOption, QuestionArgument
from airvlm.inputs.prompts import DESCRIBE
from airvlm.reporting.differences import differences

__all__ = ["compare", "marked"]


def compare(
    image: ImageArgument,
    question: QuestionArgument = DESCRIBE,
    method: MethodsOption = None,
    how: Asking = Asking(),
    json: JsonOption = False,
) -> None:
    """One question under several methods, differences marked.

    The first method is what the others are compared with. Without --method: none and air.

    [bold]Examples[/bold]

    airvlm compare scene.png

    airvlm compare scene.png "What is on the left?" --method none --method air --method memvr --method vcd

    airvlm compare scene.png --method air:weight=0.1 --method air:weight=0.3
    """
    names = method or ["none", "air"]
    if len(set(names)) < len(names):
        raise Failure("--method: the same method is named twice")
    chosen = {asking.label_of(name): asking.chosen_method(name) for name in names}
    asking.check_question(question)
    images = asking.read_images(image, how)
    generation = asking.decoding(how)
    vlm = asking.load_for(how)
    with asking.explained():
        answers = vlm.compare(images, question, chosen, **generation)
    if json:
        shown = {name: asking.answer_json(answer) for name, answer in answers.items()}
        emit({"image": image, "question": question, "model": vlm.name, "answers": shown})
        return
    first = next(iter(answers.values())).text
    console = out()
    width = max(30, console.width // min(len(answers), 3) - 2)
    panels = []
    for name, answer in answers.items():
        body = marked(first, answer.text)
        if answer.report is not None:
            body.append(f"\n\n{answer.report}", style="dim")
        panels.append(
            Panel(body, title=f"{escape(name)} · {answer.tokens} tokens · {answer.seconds:.2f} s", width=width)
        )
    console.print(Columns(panels))
    same = [name for name, answer in list(answers.items())[1:] if answer.text == first]
    if same:
        console.print(escape(f"the same as {next(iter(answers))}, word for word: {', '.join(same)}"))


def marked(before: str, after: str) -> Text:
    """`after` with the words that `before` does not have in their places set in bold yellow."""
    text = Text()
    for piece, differs in differences(before, after):
        text.append(piece, style="bold yellow" if differs else "")
    return text
