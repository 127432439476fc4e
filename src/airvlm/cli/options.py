"""The options of the commands, each declared once, and those that go together as groups.

A command takes a group as a parameter, as in `how: Asking = Asking()`; `grouped` shows typer the options inside it.
Knows nothing of what any command does with them.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

__all__ = [
    "Asking",
    "BatchOption",
    "Choosing",
    "CurveOption",
    "Evaluating",
    "ImageArgument",
    "JsonOption",
    "Loading",
    "MethodsOption",
    "OutputOption",
    "QuestionArgument",
    "RayAddressOption",
    "RayOption",
    "ReadmeOption",
    "ShardOption",
    "VariantOption",
    "grouped",
]

ImageArgument = Annotated[
    str,
    typer.Argument(help="An image: a file, - for standard input, a data: URI, or an address with --allow-urls."),
]
QuestionArgument = Annotated[str, typer.Argument(help="What to ask about it.")]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option("--method", help="A method, fields after a colon: air-paper:keep=3,strength=0.2. Repeat it."),
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Where to write the drawing.")]
VariantOption = Annotated[
    str | None, typer.Option("--variant", help="A named variant of the task's parser or protocol.")
]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, help="Questions that run together.")]
CurveOption = Annotated[
    bool,
    typer.Option(
        "--curve/--no-curve",
        help="Draw the trivial control's curve, for columns at equal recall (or yes-ratio).",
    ),
]
ShardOption = Annotated[str | None, typer.Option("--shard", help="Do part i of n only, as in 0/4.")]
RayOption = Annotated[int, typer.Option("--ray", min=0, help="Spread over N workers of a Ray cluster.")]
RayAddressOption = Annotated[
    str | None,
    typer.Option("--ray-address", help="Of a running cluster, or auto; else one is started here."),
]
ReadmeOption = Annotated[bool, typer.Option("--markdown", help="The table of the README.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")
]


@dataclass(frozen=True)
class Choosing:
    """One method."""

    method: Annotated[str, typer.Option("--method", help="One of `airvlm methods`; none for the model as it is.")] = (
        "air"
    )
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set a field of the method, as in --set top_q=64. May be repeated."),
    ] = None


@dataclass(frozen=True)
class Loading:
    """Which model, and how it is loaded."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="photo or tiny (both inside the package), a folder, or a name on the model hub. Default: photo.",
        ),
    ] = None
    adapter: Annotated[
        str | None, typer.Option("--adapter", help="A LoRA to put on the model (needs airvlm\\[lora]).")
    ] = None
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32, float16, bfloat16 or auto.")] = None
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps, ...")] = None
    device_map: Annotated[
        str | None,
        typer.Option(
            "--device-map",
            help="Spread the weights over devices: auto, balanced, sequential (needs airvlm\\[offload]).",
        ),
    ] = None
    quantise: Annotated[
        Literal["4bit", "8bit"] | None,
        typer.Option("--quantise", "--quantize", help="Load the weights in fewer bits (needs airvlm\\[quantise])."),
    ] = None
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let the model's own repository run its code.")
    ] = False
    allow_missing: Annotated[
        bool,
        typer.Option("--allow-missing", help="Load a checkpoint that lacks weights, which is an error else."),
    ] = False


@dataclass(frozen=True)
class Asking(Loading):
    """A question about images, and how its answer is decoded."""

    more_images: Annotated[
        list[str] | None,
        typer.Option("--image", "-i", help="One more image, after the first. May be repeated."),
    ] = None
    allow_urls: Annotated[bool, typer.Option("--allow-urls", help="Let images come from http(s) addresses.")] = False
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Most tokens that an answer may have.")
    ] = 64
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="Sample at this temperature; 0, or nothing, is greedy."),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", min=0.0, max=1.0, help="Sample from the likeliest tokens of this mass."),
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of the sampling: the same seed, the same answer.")
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End the answer with this text. May be repeated.")
    ] = None


@dataclass(frozen=True)
class Evaluating(Loading):
    """The questions of tasks, and where their answers are kept."""

    split: Annotated[
        Literal["test", "validation", "calibration"],
        typer.Option("--split", help="Which part of a task's items."),
    ] = "test"
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N items of each task.")] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", min=1, help="Most tokens of an answer. Default: the task's own."),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option("--data", help="The benchmark's files and images; built-in tasks need none."),
    ] = None
    objects: Annotated[
        Path | None,
        typer.Option(
            "--objects",
            help="Labels of your own images in --data, for chair and pope: JSON of image -> [object names].",
        ),
    ] = None
    variant: VariantOption = None
    out_folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Where answers are kept; the same command on the same folder resumes. Default: airvlm-runs/MODEL.",
        ),
    ] = None


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command as typer reads it: each group among its parameters stands for the options inside."""
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
