"""What the crops of an image say about its visual tokens.

From an image's visual tokens Z and its crops' tokens: the prototypes, the transport distance of each crop, the crops
that are kept, and either the memory of their tokens or their projection onto each prototype. Images of one shape are
solved together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from airvlm.methods.evidence.crops import Box, CropTokens
from airvlm.methods.evidence.prototypes import select_prototypes
from airvlm.methods.evidence.transport import cosine_cost, sinkhorn

__all__ = ["Evidence", "EvidenceSpec", "gather_evidence", "locate_cells", "project", "select_crops"]

MAX_COSTS = 2**25  # costs solved at once; more images than fit are solved one after another


@dataclass(frozen=True)
class EvidenceSpec:
    """Everything that evidence depends on beside the tokens. The fields of the second half are changed by controls."""

    num_prototypes: int | None  # Q; None is all tokens
    eps: float  # entropic regularizer of the transport
    distance: Literal["ot", "cosine"] = "ot"  # of a crop: <T, C>, or the mean of C
    tau: float | None = None  # keep crops up to this distance
    keep: int | None = None  # keep this many crops
    quantile: float | None = None  # keep crops up to this quantile of their distances; without a rule all are kept
    match: Literal["transport", "softmax", "geometry"] | None = None  # how crops are projected; None: a memory
    memory_prototypes: bool = False  # the memory starts with the prototypes

    order: Literal["nearest", "farthest", "random"] = "nearest"  # which crops make up the number kept
    noise: float = 0.0  # Gaussian noise on the kept crops' tokens, in units of their own deviation
    mean_token: bool = False  # the mean visual token in place of the crops
    seed: int = 0  # of the random order and of the noise

    def count_prototypes(self, K: int) -> int:
        """Q of an image's K tokens."""
        return K if self.num_prototypes is None else min(self.num_prototypes, K)


@dataclass(frozen=True)
class Evidence:
    """One image's evidence: Q prototypes of its K tokens, M crops of N tokens."""

    boxes: tuple[Box, ...]  # of the crops, in the image's own pixels
    prototypes: Tensor  # (Q,) positions among the K tokens, ascending
    distances: Tensor  # (M,) float32, on the CPU
    kept: Tensor  # (M,) bool, on the CPU
    count: int  # crops kept
    memory: Tensor | None  # (S, d) Z~, the kept crops' tokens; None where they are projected
    projected: Tensor | None  # (Q, d) float32, what the crops say about each prototype; None with a memory
    covered: Tensor | None  # (Q,) bool, prototypes that a kept crop says something about; None: all of them
    iterations: Tensor  # () most Sinkhorn updates of any crop, on the CPU
    converged: Tensor  # () bool, on the CPU


@torch.no_grad()
def gather_evidence(Z: Sequence[Tensor], crops: Sequence[CropTokens], spec: EvidenceSpec) -> list[Evidence]:
    """The evidence of every image.

    Args:
        Z: each image's visual tokens (K, d).
        crops: each image's crops.
        spec: what to compute.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, (own, crop) in enumerate(zip(Z, crops, strict=True)):
        # Geometry also depends on where the boxes are.
        place = (crop.boxes, crop.size) if spec.match == "geometry" else ()
        groups.setdefault((own.shape, crop.tokens.shape, crop.mask is None, place), []).append(i)
    found: dict[int, Evidence] = {}
    for (shape, (M, N, _), *_), members in groups.items():
        share = max(1, MAX_COSTS // max(1, M * N * max(1, spec.count_prototypes(shape[0]))))
        for start in range(0, len(members), share):
            part = members[start : start + share]
            solved = _solve([Z[i] for i in part], [crops[i] for i in part], spec)
            found |= dict(zip(part, solved, strict=True))
    return [found[i] for i in range(len(Z))]


def _solve(Z: list[Tensor], crops: list[CropTokens], spec: EvidenceSpec) -> list[Evidence]:
    """Images of one shape together: P of them."""
    device = Z[0].device
    tokens = _stack(Z)  # (P, K, d)
    P, K, _ = tokens.shape
    X = _stack([own.tokens for own in crops]).to(device)  # (P, M, N, d)
    M = X.shape[1]
    mask = None if crops[0].mask is None else _stack([own.mask for own in crops if own.mask is not None]).to(device)
    Q = spec.count_prototypes(K)
    if Q == K:  # every token is one: nothing to choose
        indices, H = torch.arange(K, device=device).expand(P, K), tokens
    else:
        chosen = select_prototypes(tokens, Q)
        indices, H = chosen.indices, chosen.gather(tokens)  # (P, Q), (P, Q, d)
    if spec.mean_token:
        return _mean_token(crops, tokens, indices, spec)

    C = cosine_cost(H.unsqueeze(1), X)  # (P, M, Q, N)
    iterations = torch.zeros(P, dtype=torch.long, device=device)
    converged = torch.ones(P, dtype=torch.bool, device=device)
    plan = None
    if spec.distance == "ot" or spec.match == "transport":
        solved = sinkhorn(C, spec.eps, mask_columns=mask)
        plan, d = solved.plan, solved.cost
        if M:
            iterations, converged = solved.iterations.amax(-1), solved.converged.all(-1)
    if spec.distance == "cosine":
        d = _mean_cost(C, mask)
    kept = select_crops(d, spec)  # (P, M)
    counts = kept.sum(-1)
    projected = covered = None
    if spec.match is not None:
        cells = locate_cells(crops[0], K, C.shape[-1]).to(C) if spec.match == "geometry" else None
        projected, covered = project(C, plan, X, mask, kept, spec, indices, cells)
    num_covered = counts if covered is None else covered.sum(-1)

    # The only read-back: everything that a report tells, and how much was kept.
    host = torch.cat([torch.stack([counts, num_covered, iterations, converged], -1), kept, d], -1).cpu()
    kept_on_cpu, mask_on_cpu = host[:, 4 : 4 + M].bool(), None if mask is None or projected is not None else mask.cpu()
    evidence = []
    for p in range(P):
        count, cover = int(host[p, 0]), int(host[p, 1])
        memory = None
        if projected is None:
            memory = _memory(H[p], X[p], None if mask_on_cpu is None else mask_on_cpu[p], kept_on_cpu[p], spec)
        own = None
        if projected is not None and cover:
            own = projected[p].clone() if P > 1 else projected[p]  # a view would keep the whole batch in memory
        evidence.append(
            Evidence(
                boxes=crops[p].boxes,
                prototypes=indices[p],
                distances=host[p, 4 + M :],
                kept=kept_on_cpu[p],
                count=count,
                memory=memory,
                projected=own,
                covered=covered[p] if covered is not None and cover < Q else None,
                iterations=host[p, 2].long(),
                converged=host[p, 3].bool(),
            )
        )
    return evidence


def select_crops(d: Tensor, spec: EvidenceSpec) -> Tensor:
    """Which crops are kept, by their distances d (..., M): how many by the rule, which ones by `order`."""
    M = d.shape[-1]
    if spec.keep is not None:
        count = torch.full_like(d[..., :1], min(spec.keep, M), dtype=torch.long)
    elif spec.quantile is not None and M:
        limit = torch.quantile(d, spec.quantile, dim=-1, keepdim=True)
        count = (d <= limit + 1e-7).sum(-1, keepdim=True)
    elif spec.tau is not None:
        count = (d <= spec.tau).sum(-1, keepdim=True)
    else:
        count = torch.full_like(d[..., :1], M, dtype=torch.long)
    if spec.order == "random":
        drawn = torch.randperm(M, generator=torch.Generator().manual_seed(spec.seed)).to(d.device)
        rank = drawn.expand(d.shape)
    else:
        rank = d.argsort(dim=-1, descending=spec.order == "farthest", stable=True).argsort(dim=-1)
    return rank < count


def project(
    C: Tensor,
    plan: Tensor | None,
    X: Tensor,
    mask: Tensor | None,
    kept: Tensor,
    spec: EvidenceSpec,
    prototypes: Tensor,
    cells: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What the kept crops say about each prototype: (P, Q, d), and whether they say anything: (P, Q).

    Each crop's tokens are averaged by the rows of its transport plan (or of what `match` puts in its place), and the
    crops are mixed by softmax of -cost / eps, where the cost is the prototype's own.

    Args:
        C: costs (P, M, Q, N); overwritten.
        plan: transport plans (P, M, Q, N), for match = "transport"; overwritten.
        X: the crops' tokens (P, M, N, d).
        mask: (P, M, N), False where a crop has fewer than N tokens.
        kept: (P, M) bool.
        spec: `match`, `eps` and the noise are used.
        prototypes: (P, Q) positions among the K tokens, for match = "geometry".
        cells: (M, K, N) where each crop token is in the image, for match = "geometry".
    """
    P, M, Q, N = C.shape
    if spec.match == "transport":
        assert plan is not None
        R = plan
    elif spec.match == "softmax":
        scores = C / -spec.eps
        R = (scores if mask is None else scores.masked_fill(~mask.unsqueeze(-2), -torch.inf)).softmax(-1)
    else:
        assert cells is not None
        K = cells.shape[1]
        R = cells.expand(P, M, K, N).gather(2, prototypes[:, None, :, None].expand(P, M, Q, N))
    mass = R.sum(-1, keepdim=True)  # (P, M, Q, 1)
    R = R.div_(mass.clamp_min(1e-30))  # means over a crop
    cost = C.mul_(R).sum(-1)  # (P, M, Q) each prototype's own; C is as large as R and not needed again
    speaks = kept.unsqueeze(-1) & (mass.squeeze(-1) > 0)  # (P, M, Q)
    covered = speaks.any(1)  # (P, Q)
    scores = (cost / -spec.eps).masked_fill(~speaks, -torch.inf)
    weights = scores.masked_fill(~covered.unsqueeze(1), 0.0).softmax(1) if M else scores
    R = R.mul_(weights.unsqueeze(-1))  # (P, M, Q, N)
    if spec.noise and X.numel():
        X = torch.stack([add_noise(rows.float(), spec) for rows in X.flatten(1, 2)]).view(X.shape)
    out = R.new_zeros(P, Q, X.shape[-1])
    for crop in range(M):  # one at a time: half precision is widened for no more than one
        out.baddbmm_(R[:, crop], X[:, crop].float())
    return out, covered


def locate_cells(crops: CropTokens, K: int, N: int) -> Tensor:
    """Which of an image's K cells each crop token shows: (M, K, N), 1 where token n of crop m falls into cell k.

    Both token sets must be square grids in reading order over the whole image and the whole crop.
    """
    g, c = math.isqrt(K), math.isqrt(N)
    if g * g != K or c * c != N:
        raise ValueError(
            f"match='geometry' needs square grids of tokens; this model has {K} for the image and {N} for a crop. Use "
            "match='transport'."
        )
    W, H = crops.size
    center = (torch.arange(c) + 0.5) / c
    shown = torch.zeros(len(crops.boxes), K, N)
    for m, box in enumerate(crops.boxes):
        x = (box[0] + center * (box[2] - box[0])) / W * g
        y = (box[1] + center * (box[3] - box[1])) / H * g
        cell = y.long().clamp(0, g - 1)[:, None] * g + x.long().clamp(0, g - 1)[None, :]  # (c, c)
        shown[m, cell.flatten(), torch.arange(N)] = 1.0
    return shown


def add_noise(rows: Tensor, spec: EvidenceSpec) -> Tensor:
    """Tokens (n, d) with Gaussian noise in units of their own deviation."""
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(spec.seed)).to(rows.device)
    return (rows.float() + spec.noise * rows.float().std() * noise).to(rows.dtype)


def _memory(H: Tensor, X: Tensor, mask: Tensor | None, kept: Tensor, spec: EvidenceSpec) -> Tensor:
    """Z~ of one image, (S, d): the prototypes H if they belong to it, then the kept crops' tokens."""
    rows = X[kept] if mask is None else X[mask & kept.unsqueeze(-1)]
    rows = rows.reshape(-1, X.shape[-1])
    if spec.noise and len(rows):
        rows = add_noise(rows, spec)
    return torch.cat([H.to(rows.dtype), rows]) if spec.memory_prototypes else rows


def _mean_token(crops: list[CropTokens], tokens: Tensor, indices: Tensor, spec: EvidenceSpec) -> list[Evidence]:
    """Control: the mean of all visual tokens (P, K, d) in place of what crops say; no crop is used."""
    M = len(crops[0].tokens)
    mean = tokens.float().mean(1, keepdim=True)  # (P, 1, d)
    zero = torch.zeros((), dtype=torch.long)
    projects = spec.match is not None
    return [
        Evidence(
            boxes=own.boxes,
            prototypes=indices[p],
            distances=torch.full((M,), math.nan),
            kept=torch.zeros(M, dtype=torch.bool),
            count=0,
            memory=None if projects else mean[p].to(tokens.dtype),
            projected=mean[p].expand(indices.shape[1], -1) if projects else None,
            covered=None,
            iterations=zero,
            converged=zero == 0,
        )
        for p, own in enumerate(crops)
    ]


def _stack(tensors: list[Tensor]) -> Tensor:
    """One tensor of them all; no copy of a single one, as in most prefills."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)


def _mean_cost(C: Tensor, mask: Tensor | None) -> Tensor:
    """Mean cost of each crop: (P, M, Q, N) -> (P, M)."""
    if mask is None:
        return C.mean((-1, -2))
    weight = mask.unsqueeze(-2).expand_as(C)
    return (C * weight).sum((-1, -2)) / weight.sum((-1, -2)).clamp_min(1)
