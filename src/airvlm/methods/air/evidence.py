"""Evidence: what a picture's crops say about its tokens.

From a picture's visual tokens Z and its crops' tokens: the prototypes, the transport distance of each crop, which
crops are kept, the memory Z~ of their tokens, and the image of each prototype under the plan. Pictures of one
shape are solved together. Knows nothing of models, hooks or how crops were made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from airvlm.methods.air.crops import Box
from airvlm.methods.air.prototypes import how_many, prototypes
from airvlm.methods.air.recipe import Recipe
from airvlm.methods.air.transport import cosine_cost, sinkhorn
from airvlm.methods.air.views import Views

__all__ = ["Evidence", "gather"]

ELEMENTS = 2**25  # costs solved at once; more pictures than fit are solved in turns


@dataclass(frozen=True)
class Evidence:
    """One picture's evidence. Q prototypes of its K tokens, M crops of N tokens."""

    boxes: tuple[Box, ...]  # of the crops, in the image's own pixels
    prototypes: Tensor  # (Q,) positions among the K tokens, ascending
    distances: Tensor  # (M,) float32
    kept: Tensor  # (M,) bool
    count: int  # crops kept
    memory: Tensor | None  # (S, d) Z~; None where the tokens are carried instead
    carried: Tensor | None  # (Q, d) float32, what the crops say each prototype should be; None with a memory
    covered: Tensor | None  # (Q,) bool, prototypes that a kept crop speaks about; None when it is all of them
    iterations: Tensor  # () most Sinkhorn updates of any crop
    converged: Tensor  # () bool


@torch.no_grad()
def gather(Z: Sequence[Tensor], views: Sequence[Views], recipe: Recipe, *, carrying: bool) -> list[Evidence]:
    """The evidence of every picture: its tokens Z (K, d) and its crops' tokens.

    carrying: compute what is carried to each prototype; otherwise the memory of the kept tokens.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, (own, crop) in enumerate(zip(Z, views, strict=True)):
        # Geometry depends on where the boxes lie too.
        place = (crop.boxes, crop.size) if recipe.carry == "geometry" else ()
        groups.setdefault((own.shape, crop.tokens.shape, crop.mask is None, place), []).append(i)
    found: dict[int, Evidence] = {}
    for (shape, (M, N, _), *_), members in groups.items():
        share = max(1, ELEMENTS // max(1, M * N * max(1, how_many(recipe.top_q, shape[0]))))
        for start in range(0, len(members), share):
            part = members[start : start + share]
            solved = _solve([Z[i] for i in part], [views[i] for i in part], recipe, carrying)
            found |= dict(zip(part, solved, strict=True))
    return [found[i] for i in range(len(Z))]


def _solve(Z: list[Tensor], views: list[Views], recipe: Recipe, carrying: bool) -> list[Evidence]:
    """Pictures of one shape, together: P of them."""
    device = Z[0].device
    tokens = _together(Z)  # (P, K, d)
    P, K, _ = tokens.shape
    X = _together([v.tokens for v in views]).to(device)  # (P, M, N, d)
    M = X.shape[1]
    mask = (
        None if views[0].mask is None else _together([v.mask for v in views if v.mask is not None]).to(device)
    )
    chosen = prototypes(tokens, how_many(recipe.top_q, K))
    H = chosen.gather(tokens)  # (P, Q, d)
    if recipe.memory == "average":
        return _average(views, tokens, chosen.indices, carrying)
    C = cosine_cost(H.unsqueeze(1), X)  # (P, M, Q, N)
    iterations = torch.zeros(P, dtype=torch.long, device=device)
    converged = torch.ones(P, dtype=torch.bool, device=device)
    plan = None
    if recipe.distance == "ot" or (carrying and recipe.carry == "plan"):
        solved = sinkhorn(C, recipe.eps, mask_columns=mask)
        plan, d = solved.plan, solved.cost
        if M:
            iterations, converged = solved.iterations.amax(-1), solved.converged.all(-1)
    if recipe.distance == "cosine":
        d = _mean(C, mask)
    kept = recipe.kept(d)  # (P, M)
    carried = covered = None
    counts = kept.sum(-1)
    spoken = counts
    if carrying:
        carried, covered = _carry(C, plan, X, mask, kept, recipe, views[0], K, chosen.indices)
        spoken = covered.sum(-1)
    numbers, spoken_of = torch.stack([counts, spoken]).tolist()  # the one sync of a prefill's evidence
    return [
        Evidence(
            boxes=views[p].boxes,
            prototypes=chosen.indices[p],
            distances=d[p],
            kept=kept[p],
            count=numbers[p],
            memory=None
            if carrying
            else _memory(H[p], X[p], None if mask is None else mask[p], kept[p], recipe),
            carried=_own(carried[p], P) if carried is not None and spoken_of[p] else None,
            covered=covered[p] if covered is not None and spoken_of[p] < covered.shape[1] else None,
            iterations=iterations[p],
            converged=converged[p],
        )
        for p in range(P)
    ]


def _own(part: Tensor, P: int) -> Tensor:
    """An image's part of what was solved together, without the rest: it is kept longer."""
    return part.clone() if P > 1 else part


def _together(tensors: list[Tensor]) -> Tensor:
    """One tensor of them all; of a single one, as in most prefills, no copy."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)


def _mean(C: Tensor, mask: Tensor | None) -> Tensor:
    """Mean cost of each crop: (P, M, Q, N) -> (P, M)."""
    if mask is None:
        return C.mean((-1, -2))
    weight = mask.unsqueeze(-2).expand_as(C)
    return (C * weight).sum((-1, -2)) / weight.sum((-1, -2)).clamp_min(1)


def _memory(H: Tensor, X: Tensor, mask: Tensor | None, kept: Tensor, recipe: Recipe) -> Tensor:
    """Z~ of one picture: (S, d), the kept crops' tokens one after another."""
    rows = X[kept] if mask is None else X[mask & kept.unsqueeze(-1)]
    rows = rows.reshape(-1, X.shape[-1])
    if recipe.noise and len(rows):
        rows = _noised(rows, recipe)
    return torch.cat([H.to(rows.dtype), rows]) if recipe.memory == "prototypes+crops" else rows


def _noised(rows: Tensor, recipe: Recipe) -> Tensor:
    generator = torch.Generator().manual_seed(recipe.seed)
    noise = torch.randn(rows.shape, generator=generator).to(rows.device)
    return (rows.float() + recipe.noise * rows.float().std() * noise).to(rows.dtype)


def _average(views: list[Views], tokens: Tensor, indices: Tensor, carrying: bool) -> list[Evidence]:
    """Control: the mean of all visual features in place of what crops say; no crop takes part."""
    M = len(views[0].tokens)
    mean = tokens.float().mean(1, keepdim=True)  # (P, 1, d)
    zero = torch.zeros((), dtype=torch.long, device=tokens.device)
    return [
        Evidence(
            boxes=views[p].boxes,
            prototypes=indices[p],
            distances=torch.full((M,), math.nan),
            kept=torch.zeros(M, dtype=torch.bool),
            count=0,
            memory=None if carrying else mean[p].to(tokens.dtype),
            carried=mean[p].expand(indices.shape[1], -1) if carrying else None,
            covered=None,
            iterations=zero,
            converged=zero == 0,
        )
        for p in range(len(views))
    ]


def _carry(
    C: Tensor,
    plan: Tensor | None,
    X: Tensor,
    mask: Tensor | None,
    kept: Tensor,
    recipe: Recipe,
    view: Views,
    K: int,
    indices: Tensor,
) -> tuple[Tensor, Tensor]:
    """What the crops say about each prototype: (P, Q, d), and where they say anything: (P, Q)."""
    P, M, Q, N = C.shape
    if recipe.carry == "plan":
        assert plan is not None
        R = plan
    elif recipe.carry == "softmax":
        scores = C / -recipe.eps
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(-2), -torch.inf)
        R = scores.softmax(-1)
    else:
        shown = landing(view, K, N).to(C)  # (M, K, N)
        R = shown.expand(P, M, K, N).gather(2, indices[:, None, :, None].expand(P, M, Q, N))
    mass = R.sum(-1, keepdim=True)  # (P, M, Q, 1)
    R = R / mass.clamp_min(1e-30)  # each row a mean over the crop's tokens
    own = (R * C).sum(-1)  # (P, M, Q) the row's own transport cost
    speaks = kept.unsqueeze(-1) & (mass.squeeze(-1) > 0)  # (P, M, Q)
    scores = (own / -(recipe.temperature or recipe.eps)).masked_fill(~speaks, -torch.inf)
    covered = speaks.any(1)  # (P, Q)
    weights = scores.masked_fill(~covered.unsqueeze(1), 0.0).softmax(1) if M else scores
    R = (R * weights.unsqueeze(-1)).transpose(1, 2).reshape(P, Q, M * N)
    rows = X.reshape(P, M * N, X.shape[-1]).float()
    if recipe.noise and rows.numel():
        rows = torch.stack([_noised(own_rows, recipe) for own_rows in rows])
    return R @ rows, covered


def landing(view: Views, K: int, N: int) -> Tensor:
    """Which of a picture's K cells each crop token shows: (M, K, N), 1 where token n of crop m lands on cell k.

    Both token sets must be square grids in reading order over the whole picture and the whole crop.
    """
    g, c = math.isqrt(K), math.isqrt(N)
    if g * g != K or c * c != N:
        raise ValueError(
            f"carry='geometry' needs square grids of tokens; this model has {K} for the picture and {N} for a crop. "
            "Use carry='plan'."
        )
    W, H = view.size
    centre = (torch.arange(c) + 0.5) / c
    shown = torch.zeros(len(view.boxes), K, N)
    for m, box in enumerate(view.boxes):
        x = (box[0] + centre * (box[2] - box[0])) / W * g
        y = (box[1] + centre * (box[3] - box[1])) / H * g
        cell = y.long().clamp(0, g - 1)[:, None] * g + x.long().clamp(0, g - 1)[None, :]  # (c, c)
        shown[m, cell.flatten(), torch.arange(N)] = 1.0
    return shown
