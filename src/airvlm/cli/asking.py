"""What the commands that talk to a model share: reading images, loading the model, choosing a method, decoding.

Knows nothing of any one command. torch and transformers are imported where they are used: --help must not need them.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airvlm.cli.console import Failure
from airvlm.cli.options import Asking, Loading

if TYPE_CHECKING:
    from PIL import Image

    from airvlm.methods.base import Method
    from airvlm.vlm import VLM, Answer

__all__ = [
    "answer_json",
    "check_question",
    "chosen_method",
    "decoding",
    "explained",
    "label_of",
    "load",
    "load_for",
    "loading_options",
    "model_for",
    "read_image",
    "read_images",
    "spoken",
]


def check_question(question: str) -> None:
    """An empty question is refused before a model is loaded."""
    if not question.strip():
        raise Failure("the question is empty: say what to ask about the image")


def read_images(image: str, how: Asking) -> list[Image.Image]:
    """The images, read before a model is loaded: what cannot be asked should fail at once."""
    sources = [image, *(how.more_images or ())]
    if sources.count("-") > 1:
        raise Failure("standard input (-) holds one image; give the others as files")
    return [read_image(source, how.allow_urls) for source in sources]


def read_image(source: str, allow_urls: bool) -> Image.Image:
    """One image: a file, an address, or standard input (-)."""
    from airvlm.inputs.images import load_image

    if source == "-":
        content = sys.stdin.buffer.read()
        if not content:
            raise Failure("standard input is empty: pipe an image into it, as in: airvlm describe - < a.png")
        return load_image(content)
    if source.lower().startswith(("http://", "https://")) and not allow_urls:
        raise Failure(f"{source} is a web address; add --allow-urls to let images be fetched")
    return load_image(source, allow_urls=allow_urls)


def load(
    model: str | None,
    adapter: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    *,
    device_map: str | None = None,
    quantise: str | None = None,
    trust_remote_code: bool = False,
    allow_missing: bool = False,
) -> VLM:
    """The model, loaded without chatter; a plain function, so that workers elsewhere can call it."""
    from transformers.utils import logging as transformers_logging

    from airvlm.vlm import VLM

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    options: dict[str, Any] = {"device": device, "device_map": device_map}
    if quantise is not None:
        options["quantization_config"] = _quantised(quantise)
    if allow_missing:
        options["allow_missing"] = True
    return VLM.load(model, adapter=adapter, dtype=dtype, trust_remote_code=trust_remote_code, **options)


def load_for(how: Loading) -> VLM:
    """The model that a command's options name."""
    return load(how.model, how.adapter, how.dtype, how.device, **loading_options(how))


def model_for(tasks: Sequence[str], model: str | None) -> str | None:
    """The model that tasks are asked of: the one that is named, or else the tiny one for scenes of its own world."""
    if model is not None:
        return model
    tiny = {name.startswith("tiny-") for name in tasks}
    if len(tiny) > 1:
        raise Failure("tiny-* tasks are for the model `tiny`, the others are not: run them apart, or add --model NAME")
    return "tiny" if True in tiny else None


def loading_options(how: Loading) -> dict[str, Any]:
    """What `load` is told by keyword: everything but the model, its adapter, its dtype and its device."""
    return {
        "device_map": how.device_map,
        "quantise": how.quantise,
        "trust_remote_code": how.trust_remote_code,
        "allow_missing": how.allow_missing,
    }


def _quantised(bits: str) -> Any:
    from importlib.util import find_spec

    from transformers import BitsAndBytesConfig

    if find_spec("bitsandbytes") is None:
        raise Failure(f"--quantise {bits} needs bitsandbytes: pip install 'airvlm[quantise]'")
    return BitsAndBytesConfig(load_in_4bit=bits == "4bit", load_in_8bit=bits == "8bit")


def decoding(how: Asking) -> dict[str, Any]:
    """The options of decoding as `VLM.ask` takes them."""
    options: dict[str, Any] = {"max_new_tokens": how.max_new_tokens}
    sampled = bool(how.temperature) or how.top_p is not None
    if how.temperature == 0 and how.top_p is not None:
        raise Failure("--top-p with --temperature 0: greedy decoding draws nothing; leave one of them out")
    if sampled:
        options |= {"do_sample": True, "temperature": how.temperature or 1.0}
        if how.top_p is not None:
            options["top_p"] = how.top_p
    if how.seed is not None:
        if not sampled:
            raise Failure(f"--seed {how.seed}: greedy decoding draws nothing; add --temperature to sample")
        options["seed"] = how.seed
    if how.stop:
        if not all(how.stop):
            raise Failure("--stop: the text to stop at is empty")
        options["stop_strings"] = list(how.stop)
    return options


def label_of(name: str) -> str:
    """What tables call the method: as it was typed, with today's names."""
    from airvlm.methods import names

    return names.label_of(name)


def chosen_method(name: str, settings: Sequence[str] | None = None) -> Method | None:
    """`--method air --set keep=3` -> the method; None for none or vanilla."""
    from airvlm.methods import parse_method

    fields = [setting.strip() for setting in settings or ()]
    for setting in fields:
        if "=" not in setting:
            raise Failure(f"--set {setting}: write field=value, as in --set top_q=64")
    spelled = "vanilla" if name == "none" else name
    if spelled == "vanilla" and fields:
        raise Failure(f"--set {fields[0]}: there is no method to set it on; add --method air")
    text = spelled if not fields else spelled + ("," if ":" in spelled else ":") + ",".join(fields)
    try:
        return parse_method(text)
    except (ValueError, TypeError) as error:
        raise Failure(str(error)) from error


@contextmanager
def explained() -> Iterator[None]:
    """A method that could not act ends the command in one line, with a code of its own."""
    from airvlm.runtime.session import MethodNotApplied

    try:
        yield
    except MethodNotApplied as error:
        raise Failure(str(error), code=3) from error


def spoken(stream: Generator[str, None, Answer], *, show: bool = True) -> Answer:
    """The answer of a stream, its text written to standard output as it comes."""
    begun = False  # the first token's own space is not part of the answer
    while True:
        try:
            piece = next(stream)
        except StopIteration as end:
            answer: Answer = end.value
            break
        piece = piece if begun else piece.lstrip()
        begun = begun or bool(piece)
        if show:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if show:
        sys.stdout.write("\n")
    return answer


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer as the commands print it."""
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "finished": answer.finished,
        "seconds": round(answer.seconds, 4),
        "report": None if answer.report is None else answer.report.to_json(),
    }
