"""`airvlm describe`: the question that evaluations of hallucination ask."""

from airvlm.cli import asking
from airvlm.cli.ask import answer_question
from airvlm.cli.console import JsonOption
from airvlm.prompts import DESCRIBE

__all__ = ["describe"]


def describe(
    image: asking.ImageArgument,
    model: asking.ModelOption = None,
    method: asking.MethodOption = "air",
    settings: asking.SetOption = None,
    adapter: asking.AdapterOption = None,
    dtype: asking.DtypeOption = None,
    max_new_tokens: asking.TokensOption = 64,
    allow_urls: asking.UrlsOption = False,
    json: JsonOption = False,
) -> None:
    """Describe a picture in detail.

    [bold]Examples[/bold]

    airvlm describe scene.png

    airvlm describe scene.png --method none --json
    """
    chosen = asking.chosen_method(method, settings)
    picture = asking.picture_and_question(image, DESCRIBE, allow_urls)
    vlm = asking.load(model, adapter, dtype)
    answer_question(vlm, image, picture, DESCRIBE, chosen, max_new_tokens, json)
