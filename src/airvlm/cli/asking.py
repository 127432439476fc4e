"""What the commands that talk to a model share: loading it, choosing a method, showing an answer.

Knows nothing of any one command.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields as fields_of
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from PIL import Image
from transformers.utils import logging as transformers_logging

from airvlm.cli.console import Failure
from airvlm.hooks.method import Method
from airvlm.hooks.run import NeverFired
from airvlm.images.load import load_picture
from airvlm.methods import parse_method
from airvlm.vlm import VLM, Answer

__all__ = [
    "answer_json",
    "chosen_method",
    "explained",
    "load",
    "picture_and_question",
]


def picture_and_question(image: str, question: str, allow_urls: bool) -> Image.Image:
    """The picture, read before a model is loaded: what cannot be asked should fail at once."""
    if not question.strip():
        raise Failure("the question is empty: say what to ask about the picture")
    return load_picture(image, allow_urls=allow_urls)


def load(
    model: str | None,
    adapter: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> VLM:
    """The model, loaded without chatter; a plain function, so that workers elsewhere can call it."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    return VLM.load(model, adapter=adapter, dtype=dtype, device=device, trust_remote_code=trust_remote_code)


def chosen_method(name: str, settings: Sequence[str] | None = None) -> Method | None:
    """`--method air --set keep=3` -> the method; None for none or vanilla."""
    fields = [setting.strip() for setting in settings or ()]
    for setting in fields:
        if "=" not in setting:
            raise Failure(f"--set {setting}: write field=value, as in --set top_q=64")
    spelled = "vanilla" if name == "none" else name
    if spelled == "vanilla" and fields:
        raise Failure(f"--set {fields[0]}: there is no method to set it on; add --method air")
    text = spelled if not fields else spelled + ("," if ":" in spelled else ":") + ",".join(fields)
    try:
        method = parse_method(text)
    except (ValueError, TypeError) as error:
        raise Failure(_culprit(spelled, fields) or str(error)) from error
    if method is not None:
        check_kinds(method)
    return method


def _culprit(name: str, settings: Sequence[str]) -> str | None:
    """The setting whose value a method cannot even compare, named."""
    for setting in settings:
        try:
            parse_method(f"{name}:{setting}")
        except TypeError:
            return f"--set {setting}: a value of another kind is needed (see: airvlm methods {name})"
        except ValueError:
            continue
    return None


def check_kinds(method: Method) -> None:
    """Refuse a field whose value is not of its declared kind, before it fails deep inside a model."""
    hints = get_type_hints(type(method))
    for field in fields_of(method):
        value = getattr(method, field.name)
        if not _fits(value, hints[field.name]):
            raise Failure(f"{field.name} = {value!r}: a value of another kind is needed, {hints[field.name]}")


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if hint in (int, float):
        return isinstance(value, (int, float) if hint is float else int) and not isinstance(value, bool)
    kind = origin or hint
    return not isinstance(kind, type) or isinstance(value, kind)


@contextmanager
def explained() -> Iterator[None]:
    """A method that could not act ends the command in one line, with a code of its own."""
    try:
        yield
    except NeverFired as error:
        raise Failure(str(error), code=3) from error


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer as the commands print it."""
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "finished": answer.finished,
        "seconds": round(answer.seconds, 4),
        "report": None if answer.report is None else answer.report.to_json(),
    }
