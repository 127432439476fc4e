"""The options of the commands, each declared once, and the groups of options that several commands share.

A command takes a group as one parameter, as in `model: ModelOptions = ModelOptions()`; `expand_groups` shows typer the
options inside it.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

__all__ = [
    "DEFAULT_METHOD",
    "DataOption",
    "GenerationOptions",
    "ImageArgument",
    "ImagesOption",
    "JsonOption",
    "LimitOption",
    "MarkdownOption",
    "MethodOptions",
    "MethodsOption",
    "ModelOptions",
    "ObjectsOption",
    "QuestionArgument",
    "SetOption",
    "expand_groups",
    "methods_option",
    "option",
    "output_option",
]

DEFAULT_METHOD = "crop-blend"


def option(names: str, metavar: str | None, help: str, **more: Any) -> Any:
    """An option of a command.

    Args:
        names: separated by blanks.
        metavar: what its value is called; None for a flag.
        help: one sentence.
        more: passed to `typer.Option`.
    """
    return typer.Option(*names.split(), metavar=metavar, help=help, **more)


def complete_methods(incomplete: str) -> Iterable[str]:
    """Names of methods, for the shell's completion."""
    from airvlm.cli.method_table import read_table

    return [name for name in ["vanilla", *read_table()] if name.startswith(incomplete)]


IMAGE_HELP = "A file, - for standard input, a data: URI, or a web address with --allow-urls."
METHOD_HELP = "A method of `airvlm info methods`, as in air:keep=3, or vanilla for the model as it is."
ImageArgument = Annotated[str, typer.Argument(metavar="IMAGE", help=IMAGE_HELP)]
QuestionArgument = Annotated[
    str | None, typer.Argument(metavar="QUESTION", help="What to ask. Without a question the image is described.")
]
ImagesOption = Annotated[list[str] | None, option("--image -i", "IMAGE", "One more image. Repeatable.")]
MethodOption = Annotated[str, option("--method", "METHOD", METHOD_HELP, autocompletion=complete_methods)]


def methods_option(show_default: str = DEFAULT_METHOD, help: str = METHOD_HELP) -> Any:
    """The repeatable --method; `show_default` names the methods that are taken without it."""
    return option(
        "--method", "METHOD", f"{help} Repeatable.", autocompletion=complete_methods, show_default=show_default
    )


MethodsOption = Annotated[list[str] | None, methods_option()]
SetOption = Annotated[
    list[str] | None,
    option("--set", "OPTION=VALUE", "Set an option of the method, as in weight=0.2. Repeatable."),
]
DataOption = Annotated[Path | None, option("--data", "FOLDER", "A folder of images.")]
LimitOption = Annotated[int | None, option("--limit", "N", "Use at most N items.", min=1)]
ObjectsOption = Annotated[
    Path | None,
    option("--objects", "FILE", 'What the images in --data show: a JSON file such as {"a.jpg": ["cup", "dog"]}.'),
]
MarkdownOption = Annotated[bool, option("--markdown", None, "Print a Markdown table.")]
JsonOption = Annotated[bool, option("--json", None, "Print one JSON object on standard output, nothing else.")]


def output_option(help: str) -> Any:
    """The option for the file or folder that a command writes."""
    return option("--output -o", "PATH", help)


@dataclass(frozen=True)
class MethodOptions:
    """One method and its options."""

    method: MethodOption = DEFAULT_METHOD
    settings: SetOption = None


_model_option: Any = functools.partial(option, rich_help_panel="Model options")
_generation_option: Any = functools.partial(option, rich_help_panel="Generation options")
_MODEL_HELP = "photo (photographs), tiny (emoji scenes), smol (fetches its parts), a folder, or a name on the hub."
_MAP_HELP = "Spread the weights over devices: auto, balanced or sequential (needs airvlm[offload])."
_ATTENTION_HELP = "sdpa, eager or flash_attention_2. On a CPU, eager is the faster one in bfloat16."
_TYPES = "float32, float16, bfloat16 or auto."
_TYPE_DEFAULT = "float32 on a CPU, else the checkpoint's"


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how it is loaded."""

    model: Annotated[str | None, _model_option("--model -m", "NAME", _MODEL_HELP, show_default="photo")] = None
    adapter: Annotated[str | None, _model_option("--adapter", "PATH", "A LoRA to merge (needs airvlm[lora]).")] = None
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16", "auto"] | None,
        _model_option("--dtype", "TYPE", _TYPES, show_default=_TYPE_DEFAULT),
    ] = None
    attention: Annotated[
        Literal["sdpa", "eager", "flash_attention_2"] | None,
        _model_option("--attention", "KIND", _ATTENTION_HELP, show_default="transformers' choice"),
    ] = None
    device: Annotated[
        str | None, _model_option("--device", "DEVICE", "cpu, cuda, cuda:1, mps, ...", show_default="a GPU, or cpu")
    ] = None
    device_map: Annotated[str | None, _model_option("--device-map", "MAP", _MAP_HELP)] = None
    quantize: Annotated[
        Literal["4bit", "8bit"] | None,
        _model_option("--quantize", "BITS", "4bit or 8bit weights (needs bitsandbytes and accelerate)."),
    ] = None
    trust_remote_code: Annotated[
        bool, _model_option("--trust-remote-code", None, "Run code that comes with the checkpoint.")
    ] = False
    max_crop_batch: Annotated[
        int | None,
        _model_option("--max-crop-batch", "N", "Crops that are encoded at once: less needs less memory.", min=1),
    ] = None
    allow_missing: Annotated[
        bool, _model_option("--allow-missing", None, "Allow missing weights (they are randomly initialized).")
    ] = False


@dataclass(frozen=True)
class GenerationOptions:
    """How an answer is generated."""

    max_new_tokens: Annotated[
        int, _generation_option("--max-new-tokens", "N", "Maximum number of generated tokens.", min=1)
    ] = 64
    temperature: Annotated[
        float | None,
        _generation_option("--temperature", "T", "Sample at this temperature.", min=0.0, show_default="greedy"),
    ] = None
    top_p: Annotated[
        float | None,
        _generation_option("--top-p", "P", "Sample from the likeliest tokens with this total.", min=0.0, max=1.0),
    ] = None
    seed: Annotated[int | None, _generation_option("--seed", "N", "Seed of the sampling.", min=0)] = None
    stop: Annotated[
        list[str] | None, _generation_option("--stop", "TEXT", "End the answer at this text. Repeatable.")
    ] = None


def expand_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command as typer reads it: in place of each group the options inside it."""
    # commands may postpone their annotations, so as to import nothing for a type
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {name: p.default for name, p in signature.parameters.items() if is_dataclass(p.default)}
    parameters = []
    for name, parameter in signature.parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        for field in fields(groups[name]):
            default = getattr(groups[name], field.name)
            parameters.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=field.type))

    @functools.wraps(command)
    def flat(**given: Any) -> Any:
        filled = {
            name: replace(group, **{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**given, **filled)

    flat.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect reads it
    return flat
