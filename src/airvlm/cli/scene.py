"""`airvlm scene`: draw an emoji scene, with its ground truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from airvlm.cli.common import DESCRIPTION_TAG, SCENE_MARK, check_drawing_path
from airvlm.cli.console import emit, print_columns
from airvlm.cli.options import JsonOption, option, output_option

__all__ = ["scene"]


def scene(
    seed: Annotated[int, option("--seed", "N", "The same seed draws the same scene.")] = 0,
    context: Annotated[
        str | None, option("--context", "NAME", "kitchen, street, beach, farm, ...", show_default="random")
    ] = None,
    output: Annotated[Path, output_option("The image: .png, .jpg or .webp.")] = Path("scene.png"),
    side: Annotated[int, option("--side", "N", "Width and height.", min=32, max=4096)] = 448,
    json: JsonOption = False,
) -> None:
    """Draw an emoji scene for the model tiny, with its ground truth.

    Scenes are what the embedded model tiny was trained on. One object in eight is not typical of its context: a kitchen
    may also hold a train.

    \b
    Examples:
      airvlm scene --seed 5 --context kitchen --output kitchen.png
      airvlm ask kitchen.png --model tiny
    """
    from PIL import Image

    from airvlm.tiny.drawing import draw
    from airvlm.tiny.grammar import count_phrase, place_phrase
    from airvlm.tiny.world import compose

    check_drawing_path(output)
    composed = compose(seed, context)
    mark = Image.Exif()
    mark[DESCRIPTION_TAG] = f"{SCENE_MARK}, seed {seed}"
    draw(composed, side).save(output, exif=mark)
    if json:
        emit({"output": str(output), **composed.to_json()})
        return
    print(f"written: {output} ({composed.context}, {composed.color} background)")
    rows = []
    for name in composed.names:
        objects = [placed for placed in composed.objects if placed.name == name]
        rows.append((count_phrase(name, len(objects)), place_phrase(objects)))
    print_columns(rows, indent=2)
