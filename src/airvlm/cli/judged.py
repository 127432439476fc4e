"""A description beside what an image shows: which objects it invents, which it leaves out, and how that is printed.

Knows nothing of models, nor of where the truth comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.text import Text

from airvlm.cli.console import out

if TYPE_CHECKING:  # torch takes seconds to import: --help does not need it
    from airvlm.vlm import Answer

__all__ = ["checked", "judged", "missed", "named", "print_judged", "wrong"]


def named(text: str) -> list[str]:
    """Objects that the text names, each once."""
    from airvlm.tasks.words.objects import mentions

    return list(dict.fromkeys(mention.category for mention in mentions(text)))


def wrong(text: str, truth: Sequence[str]) -> list[str]:
    """Objects that the text names and the image does not show."""
    return [name for name in named(text) if name not in truth]


def missed(text: str, truth: Sequence[str]) -> list[str]:
    """Objects of the image that the text does not name."""
    told = named(text)
    return [name for name in truth if name not in told]


def checked(text: str, truth: Sequence[str]) -> Text:
    """The text with objects that are there in green, and those that are not in red."""
    from airvlm.tasks.words.marks import marks
    from airvlm.tasks.words.objects import mentions

    result = Text(text)
    for mark in marks(text, mentions(text), truth):
        result.stylize("green" if mark.present else "bold red", mark.start, mark.end)
    return result


def judged(text: str, truth: Sequence[str] | None) -> dict[str, list[str]]:
    """What is wrong and what is missed, as JSON; nothing where nobody knows."""
    return {} if truth is None else {"wrong": wrong(text, truth), "missed": missed(text, truth)}


def print_judged(name: str, answer: Answer, truth: Sequence[str] | None) -> None:
    """A method's description, judged where the truth is known."""
    console = out()
    console.print()
    console.print(f"[bold]{escape(name)}[/bold] [dim]({answer.tokens} tokens, {answer.seconds:.2f} s)[/dim]")
    if truth is None:
        console.print(escape(answer.text))
        return
    console.print(checked(answer.text, truth))
    false, left_out = wrong(answer.text, truth), missed(answer.text, truth)
    if left_out:
        console.print(f"[bright_black]not mentioned: {', '.join(left_out)}[/bright_black]")
    console.print(f"[red]not there: {', '.join(false)}[/red]" if false else "[green]nothing invented[/green]")
