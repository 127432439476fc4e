"""margins: how well distances separate an image's own crops from another image's, and crops that show an object.

The paper argues that transport separates better than cosine, by a theorem and a figure. Here both are measured on the
model's own tokens: transport for several eps, and mean, nearest and pooled cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from airvlm import VLM, Method
from airvlm.analysis.base import (
    Analysis,
    LabeledImage,
    auc_interval,
    crop_method,
    crop_tokens,
    new_figure,
    visual_tokens,
)
from airvlm.methods.evidence.crops import Box
from airvlm.methods.evidence.transport import cosine_cost, sinkhorn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["analyze_margins"]

SHOWN = 0.5  # share of an object's box that a crop must contain to show it
Distance = Callable[[Tensor, Tensor], Tensor]  # image (K, d), crops (M, N, d) -> (M,)


def _transport(eps: float) -> Distance:
    return lambda Z, X: sinkhorn(cosine_cost(Z.unsqueeze(0), X), eps).cost


DISTANCES: dict[str, Distance] = {
    **{f"transport, eps {eps:g}": _transport(eps) for eps in (0.01, 0.03, 0.1, 0.3)},
    "mean cosine": lambda Z, X: cosine_cost(Z.unsqueeze(0), X).mean((-1, -2)),
    "nearest cosine": lambda Z, X: cosine_cost(Z.unsqueeze(0), X).amin(-1).mean(-1),
    "pooled cosine": lambda Z, X: 1 - F.cosine_similarity(Z.mean(0), X.mean(1), dim=-1),
}


def analyze_margins(
    vlm: VLM, images: Sequence[LabeledImage], method: Method | None, *, progress: bool = True
) -> Analysis:
    """Own crops against the next image's, by every distance; the method says how many crops."""
    hide, num_crops = None if progress else True, crop_method(method).num_crops
    opened = [one.image for one in images]
    tokens = visual_tokens(vlm, opened)
    crops = [crop_tokens(vlm, image, num_crops) for image in tqdm(opened, desc="crops", disable=hide)]
    # per distance, one array per image
    own: dict[str, list[Any]] = {name: [] for name in DISTANCES}
    other: dict[str, list[Any]] = {name: [] for name in DISTANCES}
    showing: dict[str, list[Any]] = {name: [] for name in DISTANCES}
    lacking: dict[str, list[Any]] = {name: [] for name in DISTANCES}
    for i, one in enumerate(tqdm(images, desc="distances", disable=hide)):
        boxes, mine = crops[i]
        theirs = crops[(i + 1) % len(images)][1]
        shown = [_shown_objects(box, opened[i].size, one) for box in boxes]
        for name, distance in DISTANCES.items():
            d = _distances(distance, tokens[i], mine)
            own[name].append(d)
            other[name].append(_distances(distance, tokens[i], theirs))
            for column in zip(*shown):  # one object: which crops show it
                has = np.array(column)
                if has.any() and not has.all():
                    showing[name].append(d[has])
                    lacking[name].append(d[~has])
    found: dict[str, dict[str, Any]] = {}
    for name in DISTANCES:
        a, b = np.concatenate(own[name]), np.concatenate(other[name])
        deviation = np.sqrt((a.var() + b.var()) / 2)
        found[name] = {
            "own_against_other": auc_interval(own[name], other[name]),
            "margin_in_deviations": float((b.mean() - a.mean()) / deviation) if deviation else 0.0,
            "own_mean": float(a.mean()),
            "other_mean": float(b.mean()),
        }
        if showing[name]:
            found[name]["showing_an_object_against_lacking_it"] = auc_interval(showing[name], lacking[name])

    def best(kind: str) -> str:
        name = max((n for n in found if kind in n), key=lambda n: _auc(found, n))
        return f"{name} ({_auc(found, name):.3f})"

    finding = (
        f"{best('')} separates own from other crops best, by AUC; the best transport is {best('transport')}, the best "
        f"cosine {best('cosine')}."
    )
    question = "How well do distances separate an image's own crops from another image's?"
    numbers = {"n": len(images), "crops": num_crops, "distances": found}
    return Analysis("margins", question, finding, numbers, _draw(found, own, other))


def _distances(distance: Distance, Z: Tensor, crops: Sequence[Tensor]) -> Any:
    """The distance of each crop (M,); crops of equal size are computed together."""
    if len({len(x) for x in crops}) == 1:
        return distance(Z, torch.stack(list(crops))).numpy()
    return np.array([float(distance(Z, x.unsqueeze(0))[0]) for x in crops])


def _auc(found: dict[str, dict[str, Any]], name: str) -> float:
    return float(found[name]["own_against_other"]["value"])


def _shown_objects(box: Box, size: tuple[int, int], one: LabeledImage) -> list[bool]:
    """For each object of the image, whether the crop contains enough of it."""
    W, H = size
    shown = []
    for _, (x0, y0, x1, y1) in one.boxes:
        width = max(0.0, min(box.x1 / W, x1) - max(box.x0 / W, x0))
        height = max(0.0, min(box.y1 / H, y1) - max(box.y0 / H, y0))
        shown.append(width * height >= SHOWN * (x1 - x0) * (y1 - y0))
    return shown


def _draw(found: dict[str, Any], own: dict[str, Any], other: dict[str, Any]) -> Figure:
    columns = (len(found) + 2) // 2
    figure, axes = new_figure(2, columns, (3 * columns, 5.6))
    for axis, name in zip(axes.flat, found):
        a, b = np.concatenate(own[name]), np.concatenate(other[name])
        bins = np.linspace(min(a.min(), b.min()), max(a.max(), b.max()) + 1e-9, 30)
        axis.hist(a, bins, alpha=0.7, label="own crops")
        axis.hist(b, bins, alpha=0.7, label="another image's")
        axis.set_title(f"{name}\nAUC {_auc(found, name):.3f}", fontsize=9)
        axis.set_yticks([])
    axes.flat[0].legend(fontsize=7)
    last = axes.flat[len(found)]
    for y, one in enumerate(found.values()):
        v = one["own_against_other"]
        last.errorbar(v["value"], -y, xerr=[[v["value"] - v["low"]], [v["high"] - v["value"]]], fmt="o", color="C0")
    last.set_yticks([-y for y in range(len(found))], list(found), fontsize=7)
    last.set_title("AUC, 95 % intervals", fontsize=9)
    for axis in axes.flat[len(found) + 1 :]:
        axis.axis("off")
    return figure
