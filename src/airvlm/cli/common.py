"""What the commands that use a model share: read images, load the model, choose a method, print an answer.

torch and transformers are imported where they are used: --help and `info` must not need them.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airvlm.cli.console import Failure, warn
from airvlm.cli.options import GenerationOptions, ModelOptions
from airvlm.tiny.grammar import DESCRIBE

if TYPE_CHECKING:
    from PIL import Image

    from airvlm.methods.base import Method
    from airvlm.vlm import VLM, Answer

__all__ = [
    "answer_json",
    "check_drawing_path",
    "check_question",
    "choose_method",
    "default_model",
    "exit_on_method_error",
    "generation_arguments",
    "load_model",
    "print_stream",
    "read_image",
    "read_images",
    "warn_of_scenes",
]

SCENE_MARK = "airvlm scene"  # the description inside a drawn scene's file
DESCRIPTION_TAG = 0x010E  # Exif: ImageDescription


def check_question(question: str | None) -> str:
    """The question; without one, the prompt for a description."""
    if question is not None and not question.strip():
        raise Failure("the question is empty: say what to ask, or leave it out for a description")
    return question or DESCRIBE


# -- images


def read_images(sources: Sequence[str], *, allow_urls: bool, model: str | None) -> list[Image.Image]:
    """Read the images before a model is loaded, so that a wrong name fails at once.

    Args:
        sources: files, web addresses, data URIs, or - for standard input, once.
        allow_urls: whether web addresses may be downloaded.
        model: the model that will see them; a hint is printed if it is the wrong one for an emoji scene.
    """
    if list(sources).count("-") > 1:
        raise Failure("standard input (-) holds one image; give the others as files")
    images = [read_image(source, allow_urls) for source in sources]
    warn_of_scenes(sources, model)
    return images


def read_image(source: str, allow_urls: bool) -> Image.Image:
    """One image: a file, a web address, a data URI, or standard input (-)."""
    from airvlm.inputs.images import load_image

    if source == "-":
        content = sys.stdin.buffer.read()
        if not content:
            raise Failure("standard input is empty: pipe an image into it, as in: airvlm ask - < photo.jpg")
        return load_image(content)
    if source.lower().startswith(("http://", "https://")) and not allow_urls:
        raise Failure(f"{source} is a web address; add --allow-urls to let images be downloaded")
    return load_image(source, allow_urls=allow_urls)


def warn_of_scenes(sources: Sequence[str], model: str | None) -> None:
    """Print a hint if emoji scenes are shown to the photograph model, which has never seen any."""
    if model not in (None, "photo"):
        return
    for source in sources:
        if source != "-" and Path(source).is_file() and _is_scene(Path(source)):
            warn(f"{source} is an emoji scene, and the model photo knows photographs only; add --model tiny")


def _is_scene(path: Path) -> bool:
    from PIL import Image

    from airvlm.storage.cache import cache_folder

    if path.absolute().parent == cache_folder() / "scenes":
        return True
    try:
        with Image.open(path) as image:
            return str(image.getexif().get(DESCRIPTION_TAG, "")).startswith(SCENE_MARK)
    except (OSError, ValueError):
        return False


def check_drawing_path(path: Path) -> None:
    """Refuse a file that cannot be written before the work is done."""
    if path.suffix.lower() not in {".png", ".jpg", ".jpeg", ".webp"}:
        raise Failure(f"--output {path}: the name must end in .png, .jpg or .webp")
    if not path.absolute().parent.is_dir():
        raise Failure(f"--output {path}: the folder {path.absolute().parent} does not exist")


# -- models


def load_model(options: ModelOptions, device: str | None = None) -> VLM:
    """Load the model that the options name, without progress bars. Other processes can call it: it pickles.

    Args:
        options: of the command.
        device: in place of the options' device.
    """
    from transformers.utils import logging as transformers_logging

    from airvlm.vlm import VLM

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    more: dict[str, Any] = {}
    if options.quantize is not None:
        more["quantization_config"] = _quantization_config(options.quantize)
    if options.attention is not None:
        more["attn_implementation"] = options.attention
    return VLM.load(
        options.model,
        adapter=options.adapter,
        dtype=options.dtype,
        device=device or options.device,
        device_map=options.device_map,
        trust_remote_code=options.trust_remote_code,
        max_crop_batch=options.max_crop_batch,
        allow_missing=options.allow_missing,
        **more,
    )


def _quantization_config(bits: str) -> Any:
    from importlib.util import find_spec

    from transformers import BitsAndBytesConfig

    if find_spec("bitsandbytes") is None:
        raise Failure(f"--quantize {bits} needs bitsandbytes: pip install bitsandbytes accelerate")
    return BitsAndBytesConfig(load_in_4bit=bits == "4bit", load_in_8bit=bits == "8bit")


def default_model(tasks: Sequence[str], model: str | None) -> str | None:
    """The model for these tasks: the one that is named, or `tiny` for tiny-* tasks."""
    if model is not None:
        return model
    tiny = {name.startswith("tiny-") for name in tasks}
    if len(tiny) > 1:
        raise Failure("tiny-* tasks use the model tiny and the others do not: run them separately, or add --model NAME")
    return "tiny" if True in tiny else None


# -- methods


def choose_method(text: str, settings: Sequence[str] | None = None) -> Method | None:
    """`--method air --set keep=3` -> the method; None for vanilla.

    Each `--set` goes to the part of the method that has this option: the method itself, the method inside a control, or
    one method of a composition. An option that several parts have is refused.
    """
    from airvlm.methods.names import parse_method

    try:
        method = parse_method(text)
        values: dict[str, Any] = {}
        for setting in settings or ():
            values |= _parse_setting(setting)
        if not values:
            return method
        if method is None:
            raise ValueError(f"--set {next(iter(values))}: vanilla has no options; choose a method with --method")
        return _set_options(method, values)
    except (ValueError, TypeError) as error:
        raise Failure(str(error)) from error


def _parse_setting(text: str) -> dict[str, Any]:
    from airvlm.methods.names import parse_options

    if "=" not in text:
        raise ValueError(f"--set {text}: write option=value, as in --set weight=0.2")
    return parse_options(text, f"--set {text}")


def _set_options(method: Method, values: dict[str, Any]) -> Method:
    import dataclasses
    import difflib

    by_part: dict[int, dict[str, Any]] = {}
    parts = _parts(method)
    for name, value in values.items():
        owners = [part for part in parts if name in _own_options(part)]
        if len(owners) > 1:
            names = " and ".join(dict.fromkeys(part.name for part in owners))
            raise ValueError(
                f"--set {name}: {names if len({p.name for p in owners}) > 1 else 'several parts'} of {method.label} "
                f"have this option; write it behind the one that you mean, as in {owners[0].name}:{name}={value}"
            )
        if not owners:
            known = [option for part in parts for option in _own_options(part)]
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(dict.fromkeys(known)) or 'none'}"
            raise ValueError(f"{method.label} has no option {name!r}; {hint}")
        by_part.setdefault(id(owners[0]), {})[name] = value

    def replace_options(part: Method) -> Method:
        changes = dict(by_part.get(id(part), {}))
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if field.name == "method":
                changes["method"] = replace_options(value)
            elif field.name == "methods":
                changes["methods"] = tuple(replace_options(one) for one in value)
        return dataclasses.replace(part, **changes) if changes else part

    return replace_options(method)


def _parts(method: Method) -> list[Method]:
    """The method, and the methods inside it."""
    inner = [getattr(method, "method", None), *getattr(method, "methods", ())]
    return [method, *(part for one in inner if one is not None for part in _parts(one))]


def _own_options(method: Method) -> list[str]:
    import dataclasses

    return [field.name for field in dataclasses.fields(method) if field.name not in ("method", "methods")]


@contextmanager
def exit_on_method_error() -> Iterator[None]:
    """End the command in one line, with exit code 3, if a method could not act."""
    from airvlm.runtime.session import MethodNotApplied

    try:
        yield
    except MethodNotApplied as error:
        raise Failure(str(error), code=3) from error


# -- answers


def generation_arguments(options: GenerationOptions) -> dict[str, Any]:
    """The generation options as `VLM.ask` takes them."""
    arguments: dict[str, Any] = {"max_new_tokens": options.max_new_tokens}
    sampled = bool(options.temperature) or options.top_p is not None
    if options.temperature == 0 and options.top_p is not None:
        raise Failure("--top-p has no effect with --temperature 0, which is greedy; leave one of them out")
    if sampled:
        arguments |= {"do_sample": True, "temperature": options.temperature or 1.0}
        if options.top_p is not None:
            arguments["top_p"] = options.top_p
    if options.seed is not None:
        if not sampled:
            raise Failure(f"--seed {options.seed} has no effect on greedy decoding; add --temperature to sample")
        arguments["seed"] = options.seed
    if options.stop:
        if not all(options.stop):
            raise Failure("--stop: the text is empty")
        arguments["stop_strings"] = list(options.stop)
    return arguments


def print_stream(stream: Generator[str, None, Answer], *, show: bool = True) -> Answer:
    """Print the pieces of a stream as they come; return its answer."""
    started = False  # the first token's own blank is not part of the answer
    while True:
        try:
            piece = next(stream)
        except StopIteration as end:
            answer: Answer = end.value
            break
        piece = piece if started else piece.lstrip()
        started = started or bool(piece)
        if show:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if show:
        sys.stdout.write("\n")
        sys.stdout.flush()
    return answer


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer as the commands print it with --json."""
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "finished": answer.finished,
        "seconds": round(answer.seconds, 4),
        "report": None if answer.report is None else answer.report.to_json(),
    }
