"""Measurements that explain what methods do: six analyses by name, and the drawing of `airvlm visualize`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airvlm.analysis.base import Analysis
    from airvlm.methods.base import Method
    from airvlm.vlm import VLM

__all__ = ["ANALYSES", "run_analysis"]

# name -> what it measures, and on how many images by default
ANALYSES = {
    "tokens": ("what the visual tokens encode: position, image, object; where the prototypes are", 100),
    "layers": ("what each layer does with the image, and what AIR's term changes there", 40),
    "attribution": ("where in the image each object word of an answer comes from", 12),
    "crops": ("which crops are used, their distances, and the prototypes", 8),
    "margins": ("how well distances separate an image's own crops from another image's", 60),
    "agreement": ("which objects are still named when crops are blended in", 60),
}


def run_analysis(
    name: str,
    vlm: VLM,
    method: Method | None = None,
    limit: int | None = None,
    folder: Path | None = None,
    objects: Path | None = None,
    *,
    progress: bool = True,
) -> Analysis:
    """Run one analysis.

    Args:
        name: a key of `ANALYSES`.
        vlm: the model.
        method: whose crops, prototypes and answers are analyzed; None is crop-blend, or vanilla where it is compared.
        limit: number of images.
        folder: of images; None takes emoji scenes, which only the model tiny knows.
        objects: a JSON file of what the images show, {image: [names]}.
        progress: show a progress bar.
    """
    from airvlm.analysis.base import load_images

    if name not in ANALYSES:
        raise ValueError(f"unknown analysis {name!r}; there are {', '.join(ANALYSES)}")
    images = load_images(limit or ANALYSES[name][1], folder, objects)
    run: Any = getattr(import_module(f"airvlm.analysis.{name}"), f"analyze_{name}")
    found: Analysis = run(vlm, images, method, progress=progress)
    return found
