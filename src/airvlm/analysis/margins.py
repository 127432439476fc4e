"""margins: how well a distance tells an image's own crops from another image's, and crops that show an object.

The paper says that transport separates better than cosine, by a theorem and a figure. Here both are measured on the
model's own tokens, for several eps, beside mean, nearest and pooled cosine. Knows nothing of methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from airvlm import VLM
from airvlm.analysis.result import Analysis, auc_interval, canvas
from airvlm.analysis.samples import LabelledImage, crop_tokens, visual_tokens
from airvlm.methods.evidence.crops import Box
from airvlm.methods.evidence.transport import cosine_cost, sinkhorn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["margins"]

EPS = (0.01, 0.03, 0.1, 0.3)
SHOWN = 0.5  # share of an object's box that a crop must hold to show it
Distance = Callable[[Tensor, Tensor], Tensor]  # image (K, d), crops (M, N, d) -> (M,)


def _transport(eps: float) -> Distance:
    return lambda Z, X: sinkhorn(cosine_cost(Z.unsqueeze(0), X), eps).cost


DISTANCES: dict[str, Distance] = {
    **{f"transport, eps {eps:g}": _transport(eps) for eps in EPS},
    "mean cosine": lambda Z, X: cosine_cost(Z.unsqueeze(0), X).mean((-1, -2)),
    "nearest cosine": lambda Z, X: cosine_cost(Z.unsqueeze(0), X).amin(-1).mean(-1),
    "pooled cosine": lambda Z, X: 1 - F.cosine_similarity(Z.mean(0), X.mean(1), dim=-1),
}


def margins(vlm: VLM, samples: Sequence[LabelledImage], *, crops: int = 12, progress: bool = True) -> Analysis:
    """Own crops against the next image's, by every distance."""
    images = [sample.image for sample in samples]
    tokens = visual_tokens(vlm, images)
    cut = [crop_tokens(vlm, image, crops) for image in tqdm(images, desc="crops", disable=not progress)]
    own: dict[str, list[np.ndarray]] = {name: [] for name in DISTANCES}
    other: dict[str, list[np.ndarray]] = {name: [] for name in DISTANCES}
    showing: dict[str, list[np.ndarray]] = {name: [] for name in DISTANCES}
    lacking: dict[str, list[np.ndarray]] = {name: [] for name in DISTANCES}
    for i, sample in enumerate(tqdm(samples, desc="distances", disable=not progress)):
        boxes, mine = cut[i]
        theirs = cut[(i + 1) % len(samples)][1]
        shown = [_shows(box, images[i].size, sample) for box in boxes]
        for name, distance in DISTANCES.items():
            d = _each(distance, tokens[i], mine)
            own[name].append(d)
            other[name].append(_each(distance, tokens[i], theirs))
            for has in zip(*shown) if sample.boxes else ():
                with_it, without = d[np.array(has)], d[~np.array(has)]
                if len(with_it) and len(without):
                    showing[name].append(with_it)
                    lacking[name].append(without)
    found: dict[str, dict[str, Any]] = {}
    for name in DISTANCES:
        a, b = np.concatenate(own[name]), np.concatenate(other[name])
        spread = np.sqrt((a.var() + b.var()) / 2)
        found[name] = {
            "own_against_other": auc_interval(own[name], other[name]),
            "margin_in_deviations": float((b.mean() - a.mean()) / spread) if spread else 0.0,
            "own_mean": float(a.mean()),
            "other_mean": float(b.mean()),
        }
        if showing[name]:
            found[name]["showing_an_object_against_lacking_it"] = auc_interval(showing[name], lacking[name])
    best = max(found, key=lambda name: found[name]["own_against_other"]["value"])
    transport = max((n for n in found if n.startswith("transport")), key=lambda n: _auc(found, n))
    cosine = max((n for n in found if "cosine" in n), key=lambda n: _auc(found, n))
    finding = (
        f"{best} separates own from other crops best (AUC {_auc(found, best):.3f}); the best transport is "
        f"{transport} ({_auc(found, transport):.3f}), the best cosine {cosine} ({_auc(found, cosine):.3f})."
    )
    return Analysis(
        "margins",
        "How well does a distance tell an image's own crops from another image's, and crops that show an object?",
        finding,
        {"n": len(samples), "crops": crops, "distances": found},
        _drawn(found, own, other),
    )


def _each(distance: Distance, Z: Tensor, crops: Sequence[Tensor]) -> np.ndarray:
    """The distance of each crop; those with as many tokens are computed together."""
    if len({len(x) for x in crops}) == 1:
        return distance(Z, torch.stack(list(crops))).numpy()
    return np.array([float(distance(Z, x.unsqueeze(0))[0]) for x in crops])


def _auc(found: dict[str, dict[str, Any]], name: str) -> float:
    return float(found[name]["own_against_other"]["value"])


def _shows(box: Box, size: tuple[int, int], sample: LabelledImage) -> list[bool]:
    """For each object of the image, whether the crop holds enough of it."""
    W, H = size
    told = []
    for _, (x0, y0, x1, y1) in sample.boxes:
        wide = max(0.0, min(box.x1 / W, x1) - max(box.x0 / W, x0))
        high = max(0.0, min(box.y1 / H, y1) - max(box.y0 / H, y0))
        told.append(wide * high >= SHOWN * (x1 - x0) * (y1 - y0))
    return told


def _drawn(found: dict[str, Any], own: dict[str, Any], other: dict[str, Any]) -> Figure:
    names = list(found)
    figure, axes = canvas(2, (len(names) + 2) // 2, (3 * ((len(names) + 2) // 2), 5.6))
    for axis, name in zip(axes.flat, names):
        a, b = np.concatenate(own[name]), np.concatenate(other[name])
        bins = np.linspace(min(a.min(), b.min()), max(a.max(), b.max()) + 1e-9, 30)
        axis.hist(a, bins, alpha=0.7, label="own crops")
        axis.hist(b, bins, alpha=0.7, label="another image's")
        axis.set_title(f"{name}\nAUC {_auc(found, name):.3f}", fontsize=9)
        axis.set_yticks([])
    axes.flat[0].legend(fontsize=7)
    last = axes.flat[len(names)]
    values = [found[n]["own_against_other"] for n in names]
    for y, (name, v) in enumerate(zip(names, values)):
        last.errorbar(v["value"], -y, xerr=[[v["value"] - v["low"]], [v["high"] - v["value"]]], fmt="o", color="C0")
        del name
    last.set_yticks([-y for y in range(len(names))], names, fontsize=7)
    last.set_title("AUC, 95 % intervals", fontsize=9)
    for axis in axes.flat[len(names) + 1 :]:
        axis.axis("off")
    figure.tight_layout()
    return figure
