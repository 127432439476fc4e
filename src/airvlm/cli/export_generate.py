"""`airvlm export-generate`: a folder that makes transformers' own `generate` run under a method."""

from pathlib import Path
from typing import Annotated

import typer

from airvlm.cli import asking
from airvlm.cli.console import out
from airvlm.cli.options import Choosing

__all__ = ["export_generate"]


def export_generate(
    folder: Annotated[Path, typer.Argument(help="A model's folder, or any other.")],
    by: Choosing = Choosing(),
    reports: Annotated[
        Path | None, typer.Option("--reports", help="A JSON Lines file: what the method did in each call.")
    ] = None,
) -> None:
    """Write a custom_generate folder for transformers.

    In a model's folder it is used by everything that loads the model with --trust-remote-code, `transformers serve`
    among them; from any folder by model.generate(..., custom_generate=FOLDER, trust_remote_code=True, method="air").

    [bold]Examples[/bold]

    airvlm export-generate my-llava --method air --set weight=0.2

    transformers serve my-llava --trust-remote-code
    """
    from airvlm.integrations.custom_generate import export

    method = asking.chosen_method(by.method, by.settings)
    written = export(folder, method, reports)
    out().print(f"wrote {written}: {'vanilla' if method is None else method}", highlight=False, soft_wrap=True)
