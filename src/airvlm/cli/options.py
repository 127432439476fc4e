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
    "output_option",
]

DEFAULT_METHOD = "crop-blend"


def complete_methods(incomplete: str) -> Iterable[str]:
    """Names of methods, for the shell's completion."""
    from airvlm.cli.method_table import read_table

    return [name for name in ["vanilla", *read_table()] if name.startswith(incomplete)]


ImageArgument = Annotated[
    str,
    typer.Argument(
        metavar="IMAGE", help="A file, - for standard input, a data: URI, or a web address with --allow-urls."
    ),
]
QuestionArgument = Annotated[
    str | None, typer.Argument(metavar="QUESTION", help="What to ask. Without a question the image is described.")
]
ImagesOption = Annotated[
    list[str] | None, typer.Option("--image", "-i", metavar="IMAGE", help="One more image. Repeatable.")
]
MethodOption = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="METHOD",
        autocompletion=complete_methods,
        help="A method of `airvlm info methods`, as in air:keep=3, or vanilla for the model as it is.",
    ),
]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="METHOD",
        autocompletion=complete_methods,
        help="A method of `airvlm info methods`, as in air:keep=3, or vanilla for the model as it is. Repeatable.",
        show_default=DEFAULT_METHOD,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="OPTION=VALUE", help="Set an option of the method, as in weight=0.2. Repeatable."),
]
DataOption = Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="A folder of images.")]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Use at most N items.")]
ObjectsOption = Annotated[
    Path | None,
    typer.Option(
        "--objects",
        metavar="FILE",
        help='What the images in --data show: a JSON file such as {"a.jpg": ["cup", "dog"]}.',
    ),
]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]


def output_option(help: str) -> Any:
    """The option for the file or folder that a command writes."""
    return typer.Option("--output", "-o", metavar="PATH", help=help)


VariantOption = Annotated[
    str | None, typer.Option("--variant", metavar="NAME", help="A variant of the task's parser or protocol.")
]


@dataclass(frozen=True)
class MethodOptions:
    """One method and its options."""

    method: MethodOption = DEFAULT_METHOD
    settings: SetOption = None


_model_option: Any = functools.partial(typer.Option, rich_help_panel="Model options")
_generation_option: Any = functools.partial(typer.Option, rich_help_panel="Generation options")


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how it is loaded."""

    model: Annotated[
        str | None,
        _model_option(
            "--model",
            "-m",
            metavar="NAME",
            help="photo (photographs) or tiny (emoji scenes), both embedded; a folder; or a name on the hub.",
            show_default="photo",
        ),
    ] = None
    adapter: Annotated[
        str | None, _model_option("--adapter", metavar="PATH", help="A LoRA to merge (needs airvlm[lora]).")
    ] = None
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16", "auto"] | None,
        _model_option(
            "--dtype",
            metavar="TYPE",
            help="float32, float16, bfloat16 or auto.",
            show_default="float32 on a CPU, else the checkpoint's",
        ),
    ] = None
    device: Annotated[
        str | None,
        _model_option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, mps, ...", show_default="a GPU, or cpu"),
    ] = None
    device_map: Annotated[
        str | None,
        _model_option(
            "--device-map",
            metavar="MAP",
            help="Spread the weights over devices: auto, balanced or sequential (needs airvlm[offload]).",
        ),
    ] = None
    quantize: Annotated[
        Literal["4bit", "8bit"] | None,
        _model_option("--quantize", metavar="BITS", help="4bit or 8bit weights (needs bitsandbytes and accelerate)."),
    ] = None
    trust_remote_code: Annotated[
        bool, _model_option("--trust-remote-code", help="Run code that comes with the checkpoint.")
    ] = False
    allow_missing: Annotated[
        bool, _model_option("--allow-missing", help="Allow missing weights (they are randomly initialized).")
    ] = False


@dataclass(frozen=True)
class GenerationOptions:
    """How an answer is generated."""

    max_new_tokens: Annotated[
        int, _generation_option("--max-new-tokens", metavar="N", min=1, help="Maximum number of generated tokens.")
    ] = 64
    temperature: Annotated[
        float | None,
        _generation_option(
            "--temperature", metavar="T", min=0.0, help="Sample at this temperature.", show_default="greedy"
        ),
    ] = None
    top_p: Annotated[
        float | None,
        _generation_option(
            "--top-p", metavar="P", min=0.0, max=1.0, help="Sample from the likeliest tokens with this total."
        ),
    ] = None
    seed: Annotated[int | None, _generation_option("--seed", metavar="N", min=0, help="Seed of the sampling.")] = None
    stop: Annotated[
        list[str] | None, _generation_option("--stop", metavar="TEXT", help="End the answer at this text. Repeatable.")
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
