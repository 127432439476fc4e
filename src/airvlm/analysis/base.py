"""What the analyses share: labeled images, visual tokens, intervals, results, and the page of all results."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jinja2 import Environment
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from airvlm import VLM, __version__, tiny
from airvlm.inputs.images import load_image
from airvlm.methods import CropBlend, Method
from airvlm.methods.evidence.base import CropMethod
from airvlm.methods.evidence.crops import Box, crop_boxes
from airvlm.storage.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Analysis",
    "LabeledImage",
    "auc",
    "auc_interval",
    "crop_method",
    "crop_tokens",
    "load_images",
    "mean_interval",
    "new_figure",
    "square_grid",
    "visual_tokens",
    "write_page",
]

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"}
CHUNK = 48  # images per encoder call
RESAMPLES, AUC_RESAMPLES = 1000, 200


# -- images


@dataclass(frozen=True)
class LabeledImage:
    """An image, and what is known of it."""

    name: str
    path: Path
    objects: tuple[str, ...] | None = None  # what it shows; None if nobody said
    boxes: tuple[tuple[str, tuple[float, float, float, float]], ...] = ()  # names and boxes, as shares of the sides

    @property
    def image(self) -> Image.Image:
        return load_image(self.path)


def load_images(limit: int, folder: Path | None = None, objects: Path | None = None) -> list[LabeledImage]:
    """The images to analyze: emoji scenes with names and boxes, or those of a folder.

    Args:
        limit: at most so many.
        folder: of images; None takes the emoji scenes.
        objects: a JSON file {image: [names]}. Images that it does not name are left out.
    """
    if folder is None:
        return [
            LabeledImage(s.id, s.path, s.names, tuple((o.name, o.box) for o in s.objects))
            for s in tiny.scenes("calibration")[:limit]
        ]
    if not folder.is_dir():
        raise ValueError(f"--data {folder}: there is no such folder")
    known: dict[str, Any] = {} if objects is None else json.loads(objects.read_text(encoding="utf-8"))
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
    if objects is not None:
        paths = [p for p in paths if p.name in known or p.stem in known]
    paths = paths[:limit]
    if len(paths) < 2:
        named = "" if objects is None else f" that {objects} names"
        raise ValueError(f"--data {folder} has {len(paths)} images{named}; an analysis compares at least two")
    labels = [(path, known.get(path.name, known.get(path.stem))) for path in paths]
    return [LabeledImage(p.stem, p, None if names is None else tuple(names)) for p, names in labels]


@torch.no_grad()
def visual_tokens(vlm: VLM, images: Sequence[Image.Image]) -> list[Tensor]:
    """Each image as the decoder reads it: (N, d) in float32."""
    found: list[Tensor] = []
    for start in range(0, len(images), CHUNK):
        pixels = vlm.parts.pixels(vlm.processor, list(images[start : start + CHUNK]))
        found += [tokens.float() for tokens in vlm.parts.encode(pixels)]
    return found


def crop_tokens(vlm: VLM, image: Image.Image, num_crops: int = 12) -> tuple[list[Box], list[Tensor]]:
    """The boxes of an image's crops, and each crop's tokens (N, d)."""
    boxes = crop_boxes(image.size, num_crops)
    return boxes, visual_tokens(vlm, [image.crop(box) for box in boxes])


def crop_method(method: Method | None) -> CropMethod:
    """The method, if it uses crops; else crop-blend."""
    return method if isinstance(method, CropMethod) else CropBlend()


def square_grid(count: int) -> tuple[int, int] | None:
    """Rows and columns of tokens in a square grid; None if the number is not a square."""
    side = math.isqrt(count)
    return (side, side) if side * side == count else None


# -- statistics


def mean_interval(values: Any, seed: int = 0) -> dict[str, float]:
    """The mean of finite values with its 95 % bootstrap interval."""
    x = np.asarray(values, dtype=float)
    x = x[np.isfinite(x)]
    if not len(x):
        return {"value": math.nan, "low": math.nan, "high": math.nan, "n": 0}
    means = x[np.random.default_rng(seed).integers(0, len(x), (RESAMPLES, len(x)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"value": float(x.mean()), "low": float(low), "high": float(high), "n": len(x)}


def auc(low: NDArray[Any], high: NDArray[Any]) -> float:
    """How often a value of `low` is below one of `high`, ties counting half: 0.5 separates nothing."""
    low, high = np.ravel(low), np.sort(np.ravel(high))
    if not len(low) or not len(high):
        return math.nan
    right = np.searchsorted(high, low, side="right")
    ties = right - np.searchsorted(high, low, side="left")
    return float((len(high) - right + 0.5 * ties).mean() / len(high))


def auc_interval(low: Sequence[Any], high: Sequence[Any], seed: int = 0) -> dict[str, float]:
    """The AUC of values in groups (one list per image), with the 95 % interval of resampled images."""
    rng, n = np.random.default_rng(seed), len(low)
    resampled = []
    for _ in range(AUC_RESAMPLES):
        chosen = rng.integers(0, n, n)
        resampled.append(auc(np.concatenate([low[i] for i in chosen]), np.concatenate([high[i] for i in chosen])))
    a, b = np.nanpercentile(resampled, [2.5, 97.5])
    return {"value": auc(np.concatenate(low), np.concatenate(high)), "low": float(a), "high": float(b), "n": n}


# -- results


@dataclass(frozen=True)
class Analysis:
    """The result of one analysis."""

    name: str
    question: str  # in one sentence
    finding: str  # what the numbers say, in a sentence or two
    numbers: dict[str, Any]
    figure: Figure = field(repr=False)
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        facts = {"analysis": self.name, "question": self.question, "finding": self.finding}
        return {**facts, "warnings": list(self.warnings), **_plain(self.numbers)}

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write NAME.png and NAME.json."""
        folder.mkdir(parents=True, exist_ok=True)
        image, numbers = folder / f"{self.name}.png", folder / f"{self.name}.json"
        self.figure.savefig(image, dpi=130, bbox_inches="tight")
        write_atomically(numbers, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        return image, numbers


def new_figure(rows: int, columns: int, size: tuple[float, float], **more: Any) -> tuple[Figure, Any]:
    """A figure that pyplot does not know of, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="tight")
    return figure, figure.subplots(rows, columns, **more)


def _plain(value: Any) -> Any:
    """JSON-ready values: numbers rounded, null in place of what is not finite."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float | np.floating):
        return round(float(value), 5) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>airvlm: analyses of {{ model }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #20242a; }
img { max-width: 100%; } .warning { color: #9a3412; } pre { overflow-x: auto; font-size: .8rem; }
</style></head><body>
<h1>{{ model }}</h1><p>airvlm {{ version }}, <code>airvlm analyze all</code></p>
{% for one in analyses %}<section><h2 id="{{ one.name }}">{{ one.name }}</h2>
<p>{{ one.question }}</p><p><strong>{{ one.finding }}</strong></p>
{% for warning in one.warnings %}<p class="warning">{{ warning }}</p>{% endfor %}
<img alt="{{ one.question }}" src="data:image/png;base64,{{ png(one) }}">
<details><summary>numbers</summary><pre>{{ numbers(one) }}</pre></details></section>{% endfor %}
</body></html>
"""


def write_page(analyses: Sequence[Analysis], folder: Path, model: str) -> Path:
    """Write all results to one file, index.html, that needs no other."""

    def png(one: Analysis) -> str:
        file = io.BytesIO()
        one.figure.savefig(file, format="png", dpi=110, bbox_inches="tight")
        return base64.b64encode(file.getvalue()).decode()

    def numbers(one: Analysis) -> str:
        return json.dumps(one.to_json(), indent=1)

    page = Environment(autoescape=True).from_string(TEMPLATE)
    path = folder / "index.html"
    text = page.render(model=model, version=__version__, analyses=analyses, png=png, numbers=numbers)
    write_atomically(path, text)
    return path
