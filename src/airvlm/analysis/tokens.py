"""tokens: what the visual tokens encode, and where the prototypes are.

Measured are the share of the tokens' variance that is position (the same in every image) and, where boxes are known,
object; their norms; and tokens that are far longer than the rest. Where tokens mostly encode their position, prototypes
are chosen by position, not by content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from airvlm import VLM, Method
from airvlm.analysis.base import (
    Analysis,
    LabeledImage,
    crop_method,
    mean_interval,
    new_figure,
    square_grid,
    visual_tokens,
)
from airvlm.methods.evidence.prototypes import select_prototypes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["analyze_tokens"]

OUTLIER = 6.0  # median absolute deviations above the median norm
MOSTLY = 0.5  # share of variance above which position says more than content
MANY = 0.005  # share of outliers that is worth a warning


def analyze_tokens(
    vlm: VLM, images: Sequence[LabeledImage], method: Method | None, *, progress: bool = True
) -> Analysis:
    """Variance by position and object, norms, outliers, prototypes. Images with an unusual token count are left out."""
    tokens = visual_tokens(vlm, [one.image for one in images])
    usual = max({len(z) for z in tokens}, key=[len(z) for z in tokens].count)
    used = [one for one, z in zip(images, tokens) if len(z) == usual]
    Z = torch.stack([z for z in tokens if len(z) == usual])  # (P, K, d)
    P, K, _ = Z.shape
    total = float((Z - Z.mean((0, 1))).square().sum()) or 1.0
    by_position = float(P * (Z - Z.mean((0, 1))).mean(0).square().sum() / total)
    rest = Z - Z.mean(0)  # what is left without position; part of it is common to all tokens of an image
    by_image = float(K * rest.mean(1).square().sum() / total)
    norms = torch.linalg.vector_norm(Z, dim=-1)  # (P, K)
    median = norms.median()
    outliers = norms > median + OUTLIER * (norms - median).abs().median().clamp_min(1e-9)
    method = crop_method(method)
    Q = method.evidence_spec().count_prototypes(K)
    chosen = select_prototypes(Z, Q).indices  # (P, Q)
    frequency = torch.zeros(K).index_add_(0, chosen.flatten().cpu(), torch.full((P * Q,), 1 / P))
    numbers: dict[str, Any] = {
        "n": P,
        "left_out": len(images) - P,
        "tokens": K,
        "variance_by_position": by_position,
        "variance_by_image": by_image,
        "norm": {"median": float(median), "max": float(norms.max()), "min": float(norms.min())},
        "outliers_per_image": mean_interval(outliers.sum(-1).float().numpy()),
        "method": method.label,
        "prototypes": Q,
        "positions_that_are_always_prototypes": int((frequency > 0.95).sum()),
    }
    sides = square_grid(K)
    labels = _label_tokens(used, sides) if sides is not None else None
    finding = f"{by_position:.0%} of the variance is position, {by_image:.0%} is common to an image"
    if labels is not None:
        numbers |= _by_object(rest, labels, chosen, total)
        finding += (
            f", {numbers['variance_by_object']:.0%} object; {numbers['tokens_on_objects']['value']:.0%} of the tokens "
            f"are on objects"
        )
        if Q < K:
            finding += f", and {numbers['prototypes_on_objects']['value']:.0%} of {method.name}'s {Q} prototypes"
    warnings = []
    if by_position > MOSTLY and Q < K:
        warnings.append(
            f"{by_position:.0%} of the tokens' variance is position, so prototypes follow position, not content; use "
            "all tokens with this model (num_prototypes=none)"
        )
    share = float(outliers.float().mean())
    if share > MANY:
        first = "; they become prototypes first" if Q < K else ""
        warnings.append(f"{share:.1%} of the tokens are outliers (far longer than the rest){first}")
    figure = _draw(norms.numpy(), frequency.numpy(), sides, numbers)
    question = "What do the visual tokens encode, and where are the prototypes?"
    return Analysis("tokens", question, finding + ".", numbers, figure, tuple(warnings))


def _label_tokens(images: Sequence[LabeledImage], sides: tuple[int, int]) -> list[list[str]] | None:
    """For each image and token the object at its center, "" for none; None if boxes are not known."""
    if not all(one.boxes for one in images):
        return None
    rows, columns = sides
    labels = []
    for one in images:
        own = [""] * (rows * columns)
        for name, (x0, y0, x1, y1) in one.boxes:  # later ones are on top
            for k in range(rows * columns):
                x, y = (k % columns + 0.5) / columns, (k // columns + 0.5) / rows
                if x0 <= x < x1 and y0 <= y < y1:
                    own[k] = name
        labels.append(own)
    return labels


def _by_object(rest: Tensor, labels: list[list[str]], chosen: Tensor, total: float) -> dict[str, Any]:
    flat = rest.reshape(-1, rest.shape[-1])
    names = np.array([name for own in labels for name in own])
    explained = 0.0
    for name in np.unique(names):
        group = flat[torch.from_numpy(names == name)]
        explained += float(len(group) * group.mean(0).square().sum())
    on_object = np.array([[name != "" for name in own] for own in labels])
    return {
        "variance_by_object": explained / total,
        "prototypes_on_objects": mean_interval(np.take_along_axis(on_object, chosen.numpy(), axis=1).mean(axis=1)),
        "tokens_on_objects": mean_interval(on_object.mean(axis=1)),
    }


def _draw(norms: Any, frequency: Any, sides: tuple[int, int] | None, numbers: dict[str, Any]) -> Figure:
    figure, (left, middle, right) = new_figure(1, 3, (11, 3.2))
    shares = {
        name: 100 * numbers[f"variance_by_{name}"]
        for name in ("position", "image", "object")
        if f"variance_by_{name}" in numbers
    }
    left.bar(list(shares), list(shares.values()))
    left.set_title("% of the tokens' variance", fontsize=10)
    middle.hist(norms.ravel(), 50)
    middle.set_yscale("log")
    middle.set_title("norms of visual tokens", fontsize=10)
    if sides is not None:
        figure.colorbar(right.imshow(frequency.reshape(sides), vmin=0, vmax=1), ax=right)
    else:
        right.plot(frequency)
    right.set_title("how often a position is a prototype", fontsize=10)
    return figure
