"""`airvlm bake`: a checkpoint whose weights compute what a method does, for engines that know no hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from airvlm.cli import common
from airvlm.cli.console import Failure
from airvlm.cli.options import MethodOptions, ModelOptions

__all__ = ["bake"]


def bake(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the checkpoint is written.")],
    by: MethodOptions = MethodOptions(),
    model: ModelOptions = ModelOptions(),
) -> None:
    """Write a checkpoint with a method in its weights, for any engine.

    Only methods that are a change of weights can be baked: nullu.

    \b
    Examples:
      airvlm bake my-llava --method nullu:artifact=nullu.safetensors --model llava-hf/llava-1.5-7b-hf
    """
    method = common.choose_method(by.method, by.settings)
    if method is None:
        raise Failure("vanilla is the model as it is: there is nothing to bake")
    if folder.exists() and any(folder.iterdir()):
        raise Failure(f"{folder} is not empty: choose another folder")
    from airvlm.methods.base import Method

    if type(method).bake is Method.bake:
        raise Failure(f"{method.name} is not a change of weights and cannot be baked into a model")
    if model.quantize is not None:
        raise Failure("quantized weights cannot be changed: bake the model first, then quantize it")
    vlm = common.load_model(model)
    try:
        method.bake(vlm.model)
    except TypeError as error:
        raise Failure(str(error)) from error
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    print(f"written: {folder} ({vlm.name} with {method.label})")
