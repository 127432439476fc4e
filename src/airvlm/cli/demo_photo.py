"""The demo's second part: a photograph described without and with a method, and yes/no questions about it.

The photograph is the user's, or one that scikit-image brings (extra `photos`); none is in this package. Knows nothing
of the emoji world.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from airvlm.cli import asking
from airvlm.cli.console import out
from airvlm.cli.judged import judged, named, print_judged

if TYPE_CHECKING:  # torch takes seconds to import: --help does not need it
    from PIL import Image

    from airvlm.methods.base import Method
    from airvlm.vlm import Answer

__all__ = ["HOW", "Photograph", "Shown", "find_photograph", "print_photograph", "show_photograph"]

HOW = "to see it on a photograph: airvlm demo --image photo.jpg, or pip install 'airvlm[photos]'"
# Chosen before any model was asked: of the colour photographs inside scikit-image that are free, the only one that
# shows several of COCO's objects. What it shows is what people see in it.
FREE, CREDIT = "coffee.png", "Rachel Michetti, CC0, from scikit-image"
TRUTH = ("cup", "spoon", "dining table")


@dataclass(frozen=True)
class Photograph:
    """A photograph, and what is known of it."""

    source: str  # where it is
    image: Image.Image
    truth: tuple[str, ...] | None = None  # None where nobody said
    credit: str = ""


@dataclass(frozen=True)
class Shown:
    """What the model said of a photograph, as it is ("vanilla") and under a method."""

    photograph: Photograph
    model: str
    answers: dict[str, Answer]
    questions: dict[str, dict[str, str]]  # question -> by method, what was answered
    output: Path  # the drawing of what the method looked at

    def to_json(self) -> dict[str, Any]:
        known = self.photograph.truth
        answers = {
            name: asking.answer_json(answer) | judged(answer.text, known) for name, answer in self.answers.items()
        }
        return {
            "image": self.photograph.source,
            "credit": self.photograph.credit,
            "truth": None if known is None else list(known),
            "model": self.model,
            "answers": answers,
            "questions": self.questions,
            "output": str(self.output),
        }


def find_photograph(given: str | None) -> Photograph | None:
    """The user's photograph, or the free one; None where there is neither."""
    if given is not None:
        return Photograph(given, asking.read_image(given, allow_urls=False))
    found = find_spec("skimage")  # its file is enough: importing the package takes seconds
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(folder) / "data" / FREE
        if path.is_file():
            return Photograph(str(path), asking.read_image(str(path), allow_urls=False), TRUTH, CREDIT)
    return None


def show_photograph(photograph: Photograph, name: str, method: Method, output: Path) -> Shown:
    """Describe it, and ask for every object that is named in a description or known to be there."""
    from airvlm.analysis.look import draw_look
    from airvlm.tiny.grammar import existence

    vlm = asking.load(None)
    image = photograph.image
    methods = {"vanilla": None, name: method}
    with asking.explained():
        answers = {label: vlm.describe(image, method=chosen) for label, chosen in methods.items()}
        objects = [*(photograph.truth or ()), *(o for answer in answers.values() for o in named(answer.text))]
        asked = [existence(one, True).question for one in dict.fromkeys(objects)]
        said = {
            label: [vlm.ask(image, question, method=chosen, max_new_tokens=8).text for question in asked]
            for label, chosen in methods.items()
        }
    questions = {question: {label: said[label][i] for label in said} for i, question in enumerate(asked)}
    report = answers[name].report
    assert report is not None, "an answer under a method has its report"
    draw_look(image, report).save(output)
    return Shown(photograph, vlm.name, answers, questions, output)


def print_photograph(shown: Shown) -> None:
    console, photograph = out(), shown.photograph
    credit = f" ({photograph.credit})" if photograph.credit else ""
    console.print(f"[bold]the photograph[/bold]  {escape(photograph.source + credit)}", soft_wrap=True)
    if photograph.truth is not None:
        console.print(f"[bold]it shows[/bold]        {', '.join(photograph.truth)}")
    if photograph.credit:
        console.print("[dim]chosen for what it shows, before a model was asked (--image FILE: yours)[/dim]")
    for name, answer in shown.answers.items():
        print_judged(name, answer, photograph.truth)
    console.print()
    if len({answer.text for answer in shown.answers.values()}) == 1:
        console.print("the same description, word for word\n")
    table = Table("", *(escape(name) for name in shown.answers), box=None, pad_edge=False)
    for question, said in shown.questions.items():
        table.add_row(escape(question), *(escape(text) for text in said.values()))
    console.print(table)
    console.print()
    method = list(shown.answers)[-1]
    console.print(f"[dim]{escape(str(shown.answers[method].report))}[/dim]")
    console.print(escape(f"what {method} looked at: {shown.output}"), soft_wrap=True)
