"""`airvlm ask`: one question about one picture."""

import sys
from typing import Annotated

import typer
from PIL import Image

from airvlm.cli import asking
from airvlm.cli.console import JsonOption, emit, err, out
from airvlm.methods.base import Method
from airvlm.vlm import VLM

__all__ = ["answer_question", "ask"]


def ask(
    image: asking.ImageArgument,
    question: Annotated[str, typer.Argument(help="What to ask about it.")],
    model: asking.ModelOption = None,
    method: asking.MethodOption = "air",
    settings: asking.SetOption = None,
    adapter: asking.AdapterOption = None,
    dtype: asking.DtypeOption = None,
    max_new_tokens: asking.TokensOption = 64,
    allow_urls: asking.UrlsOption = False,
    json: JsonOption = False,
) -> None:
    """Ask a question about a picture.

    The answer is printed as it comes; what the method did goes to standard error.

    [bold]Examples[/bold]

    airvlm ask scene.png "Is there a fork in the image?"

    airvlm ask scene.png "How many dogs are there?" --method none

    airvlm ask photo.jpg "What is this?" -m llava-hf/llava-1.5-7b-hf --method air-paper --set keep=3 --set strength=0.2
    """
    chosen = asking.chosen_method(method, settings)
    picture = asking.picture_and_question(image, question, allow_urls)
    vlm = asking.load(model, adapter, dtype)
    answer_question(vlm, image, picture, question, chosen, max_new_tokens, json)


def answer_question(
    vlm: VLM,
    image: str,
    picture: Image.Image,
    question: str,
    method: Method | None,
    max_new_tokens: int,
    json: bool,
) -> None:
    """Ask, and print the answer as JSON or as it comes."""
    with asking.explained():
        if json:
            answer = vlm.ask(picture, question, method=method, max_new_tokens=max_new_tokens)
            asked = {"image": image, "question": question, "model": vlm.name}
            named = None if method is None else method.to_json()
            emit(asked | {"method": named} | asking.answer_json(answer))
            return
        stream = vlm.stream(picture, question, method=method, max_new_tokens=max_new_tokens)
        while True:
            try:
                sys.stdout.write(next(stream))
                sys.stdout.flush()
            except StopIteration as end:
                answer = end.value
                break
    out().print()
    if answer.report is not None:
        err().print(f"[dim]{answer.report}[/dim]")
