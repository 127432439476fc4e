"""`airvlm analyze`: measurements on a model, each with a drawing and its numbers."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from airvlm.analysis import ANALYSES, run_analysis
from airvlm.cli import common
from airvlm.cli.console import Failure, emit, out
from airvlm.cli.options import (
    DataOption,
    JsonOption,
    LimitOption,
    MethodOptions,
    ModelOptions,
    ObjectsOption,
    output_option,
)

__all__ = ["analyze"]


def analyze(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(ANALYSES)}, or all.")],
    data: DataOption = None,
    objects: ObjectsOption = None,
    limit: LimitOption = None,
    output: Annotated[Path, output_option("The folder for drawings and numbers.")] = Path("analysis"),
    by: MethodOptions = MethodOptions(),
    json: JsonOption = False,
    model: ModelOptions = ModelOptions(),
) -> None:
    """Measure a model's visual tokens, layers, crops and distances.

    Each analysis writes NAME.png and NAME.json; `all` runs the six and writes a page, index.html. Without --data the
    images are emoji scenes, and the model is tiny.

    \b
      tokens       what the visual tokens encode, and where the prototypes are
      layers       what each layer does with the image, and what AIR changes
      attribution  where in the image each object word comes from
      crops        which crops are used, their distances, the prototypes
      margins      how well distances separate own crops from others
      agreement    which objects are still named when crops are blended in

    \b
    Examples:
      airvlm analyze tokens --limit 20
      airvlm analyze crops --method air --set keep=3
      airvlm analyze layers --data photos --model photo --limit 2
      airvlm analyze all --limit 2 --output analysis/tiny
    """
    if name != "all" and name not in ANALYSES:
        raise Failure(f"unknown analysis {name!r}; there are {', '.join(ANALYSES)}, and all")
    if data is None:
        if model.model not in (None, "tiny"):
            raise Failure(f"--model {model.model} needs images: add --data FOLDER (only tiny has scenes of its own)")
        model = dataclasses.replace(model, model="tiny")
    elif objects is None and name in ("agreement", "all"):
        raise Failure("agreement needs to know what the images show: add --objects FILE")
    method = common.choose_method(by.method, by.settings)
    vlm = common.load_model(model)
    results = []
    for each in ANALYSES if name == "all" else [name]:
        result = run_analysis(each, vlm, method, limit, data, objects, progress=sys.stderr.isatty())
        written = result.save(output)
        results.append(result)
        if not json:
            lines = [f"{each}: {result.finding}", *(f"  warning: {warning}" for warning in result.warnings)]
            out().print("\n".join([*lines, f"  {written[0]}, {written[1]}"]), markup=False, soft_wrap=True)
    if name == "all":
        from airvlm.analysis.base import write_page

        page = write_page(results, output, vlm.name)
        if not json:
            out().print(f"page: {page}", markup=False, soft_wrap=True)
    if json:
        emit({result.name: result.to_json() for result in results})
