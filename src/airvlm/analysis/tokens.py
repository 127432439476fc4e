"""tokens: what the visual tokens hold, and where the prototypes lie.

The share of their variance that is place (the same in every image) and, where boxes are known, object; their norms,
and tokens far longer than the rest. A model whose tokens mostly say where they are gets prototypes by place, not by
content. Knows nothing of methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from airvlm import VLM
from airvlm.analysis.result import Analysis, canvas, interval
from airvlm.analysis.samples import LabelledImage, grid, visual_tokens
from airvlm.methods.evidence.prototypes import how_many, prototypes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["tokens"]

ARTEFACT = 6.0  # median absolute deviations above the median norm
MOSTLY = 0.5  # share of variance at which place says more than content


def tokens(vlm: VLM, samples: Sequence[LabelledImage], *, top_q: float = 0.375, progress: bool = True) -> Analysis:
    """Variance by place and object, norms, artefacts, prototypes."""
    found = visual_tokens(vlm, [sample.image for sample in samples])
    usual = max({len(z) for z in found}, key=[len(z) for z in found].count)
    kept = [(sample, z) for sample, z in zip(samples, found) if len(z) == usual]
    Z = torch.stack([z for _, z in kept])  # (P, K, d)
    P, K, _ = Z.shape
    centred = Z - Z.mean((0, 1))
    total = float(centred.square().sum())
    by_place = float(P * centred.mean(0).square().sum() / total) if total else 0.0
    # what is left after place is what an image has of its own; part of that is whole images being alike
    rest = Z - Z.mean(0)
    by_image = float(K * rest.mean(1).square().sum() / total) if total else 0.0
    norms = torch.linalg.vector_norm(Z, dim=-1)  # (P, K)
    middle = norms.median()
    spread = (norms - middle).abs().median().clamp_min(1e-9)
    artefacts = norms > middle + ARTEFACT * spread  # (P, K)
    chosen = prototypes(Z, how_many(top_q, K)).indices  # (P, Q)
    often = torch.zeros(K)
    for row in chosen:
        often[row] += 1 / P
    numbers: dict[str, Any] = {
        "n": P,
        "left_out": len(samples) - P,
        "tokens": K,
        "variance_by_place": by_place,
        "variance_by_image": by_image,
        "norm": {"median": float(middle), "max": float(norms.max()), "min": float(norms.min())},
        "artefact_tokens_per_image": interval(artefacts.sum(-1).float().numpy()),
        "prototypes": chosen.shape[1],
        "places_that_are_always_prototypes": int((often > 0.95).sum()),
    }
    sides = grid(K)
    labels = _labels([sample for sample, _ in kept], sides) if sides is not None else None
    if labels is not None:
        numbers |= _by_object(rest, labels, chosen, total)
    warnings = []
    if by_place > MOSTLY:
        warnings.append(
            f"{by_place:.0%} of the tokens' variance is place: prototypes (top_q) follow place, not content; "
            "use all tokens (top_q=1.0) with this model"
        )
    if float(artefacts.float().mean()) > 0.005:
        warnings.append(
            f"{float(artefacts.float().mean()):.1%} of the tokens are artefacts (far longer than the rest): they are "
            "taken for prototypes first"
        )
    finding = f"{by_place:.0%} of the variance is place, {by_image:.0%} the image as a whole"
    if "variance_by_object" in numbers:
        finding += (
            f", {numbers['variance_by_object']:.0%} object; {numbers['prototypes_on_objects']['value']:.0%} of the "
            f"prototypes lie on objects, which cover {numbers['tokens_on_objects']['value']:.0%} of the tokens"
        )
    return Analysis(
        "tokens",
        "What do the visual tokens hold, and where do the prototypes lie?",
        finding + ".",
        numbers,
        _drawn(norms.numpy(), often.numpy(), sides, numbers),
        tuple(warnings),
    )


def _labels(samples: Sequence[LabelledImage], sides: tuple[int, int]) -> list[list[str]] | None:
    """For each image and token the object under its centre, "" for none."""
    if not all(sample.boxes for sample in samples):
        return None
    rows, columns = sides
    told = []
    for sample in samples:
        own = [""] * (rows * columns)
        for name, (x0, y0, x1, y1) in sample.boxes:  # later ones lie on top
            for k in range(rows * columns):
                x, y = (k % columns + 0.5) / columns, (k // columns + 0.5) / rows
                if x0 <= x < x1 and y0 <= y < y1:
                    own[k] = name
        told.append(own)
    return told


def _by_object(rest: torch.Tensor, labels: list[list[str]], chosen: torch.Tensor, total: float) -> dict[str, Any]:
    flat = rest.reshape(-1, rest.shape[-1])
    names = np.array([name for own in labels for name in own])
    explained = 0.0
    for name in np.unique(names):
        group = flat[torch.from_numpy(names == name)]
        explained += float(len(group) * group.mean(0).square().sum())
    on = np.array([[name != "" for name in own] for own in labels])
    taken = np.take_along_axis(on, chosen.numpy(), axis=1)
    return {
        "variance_by_object": explained / total if total else 0.0,
        "prototypes_on_objects": interval(taken.mean(axis=1)),
        "tokens_on_objects": interval(on.mean(axis=1)),
    }


def _drawn(norms: np.ndarray, often: np.ndarray, sides: tuple[int, int] | None, numbers: dict[str, Any]) -> Figure:
    figure, (left, middle, right) = canvas(1, 3, (11, 3.2))
    shares = {"place": numbers["variance_by_place"], "image": numbers["variance_by_image"]}
    if "variance_by_object" in numbers:
        shares["object"] = numbers["variance_by_object"]
    left.bar(list(shares), [100 * v for v in shares.values()])
    left.set_title("% of the tokens' variance", fontsize=10)
    middle.hist(norms.ravel(), 50)
    middle.set_yscale("log")
    middle.set_title("norms of visual tokens", fontsize=10)
    if sides is not None:
        drawn = right.imshow(often.reshape(sides), vmin=0, vmax=1)
        figure.colorbar(drawn, ax=right)
    else:
        right.plot(often)
    right.set_title("how often a place is a prototype", fontsize=10)
    figure.tight_layout()
    return figure
