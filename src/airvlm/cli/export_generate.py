"""`airvlm export-generate`: a folder that makes transformers' own `generate` run a method."""

from pathlib import Path
from typing import Annotated

import typer

from airvlm.cli import common
from airvlm.cli.options import MethodOptions, option

__all__ = ["export_generate"]


def export_generate(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model's folder, or any other.")],
    by: MethodOptions = MethodOptions(),
    reports: Annotated[
        Path | None, option("--reports", "FILE", "Append what the method did per call, as JSON lines.")
    ] = None,
) -> None:
    """Write a folder that makes transformers' generate run a method.

    Written into a model's folder, it acts in everything that loads the model with --trust-remote-code, for example
    `transformers serve FOLDER --trust-remote-code`. From any other folder it is used by
    model.generate(..., custom_generate=FOLDER, trust_remote_code=True).

    \b
    Examples:
      airvlm export-generate my-llava --method crop-blend --set weight=0.2
    """
    from airvlm.integrations.custom_generate import export

    method = common.choose_method(by.method, by.settings)
    print(f"written: {export(folder, method, reports)} ({'vanilla' if method is None else method.label})")
