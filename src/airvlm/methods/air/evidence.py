"""Evidence: what the crops of an image say about its visual tokens, and the evidence of every image in a batch.

From an image's visual tokens Z and its crops' tokens: the prototypes, the transport distance of each crop, which crops
are kept, the memory Z~ of their tokens, or what a reading projects onto each prototype. Images of one shape are solved
together, and kept for the next question. Knows nothing of where the evidence is added: transported.py, reinforced.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from airvlm.hooks.intervention import Call, Context, Intervention, Step
from airvlm.hooks.row_images import AnyImage, ImageTokens
from airvlm.images.cache import cache_of, serial, weights_state
from airvlm.methods.air.crops import Box, Cropping, CropTokens, encode_crops
from airvlm.methods.air.prototypes import how_many, prototypes
from airvlm.methods.air.transport import cosine_cost, sinkhorn
from airvlm.report import Crop, Sinkhorn

if TYPE_CHECKING:
    from airvlm.methods.air.config import AIR

__all__ = ["Evidence", "Matches", "Projection", "ShownEvidence", "WithEvidence", "gather", "kept_crops"]

# the fields of AIR that evidence depends on, beside those of the crops
EVIDENCE_FIELDS = tuple(
    "reading top_q eps distance tau keep quantile order memory noise carry temperature seed".split()
)
ELEMENTS = 2**25  # costs solved at once; more images than fit are solved in turns


@dataclass(frozen=True)
class Evidence:
    """One image's evidence. Q prototypes of its K tokens, M crops of N tokens."""

    boxes: tuple[Box, ...]  # of the crops, in the image's own pixels
    prototypes: Tensor  # (Q,) positions among the K tokens, ascending
    distances: Tensor  # (M,) float32, on the CPU
    kept: Tensor  # (M,) bool, on the CPU
    count: int  # crops kept
    memory: Tensor | None  # (S, d) Z~; None where they are projected instead
    projected: (
        Tensor | None
    )  # (Q, d) float32, what the crops say each prototype should be; None with a memory
    covered: Tensor | None  # (Q,) bool, prototypes that a kept crop speaks about; None when it is all of them
    iterations: Tensor  # () most Sinkhorn updates of any crop, on the CPU
    converged: Tensor  # () bool, on the CPU


@dataclass(frozen=True)
class Matches:
    """The prototypes of P images of one shape, matched with their crops' tokens: what a projection is made of."""

    C: Tensor  # (P, M, Q, N) costs
    plan: Tensor | None  # (P, M, Q, N) transport plans, where they were solved
    X: Tensor  # (P, M, N, d) the crops' tokens
    mask: Tensor | None  # (P, M, N) False where a crop has fewer than N tokens
    kept: Tensor  # (P, M) bool
    prototypes: Tensor  # (P, Q) positions among the K tokens
    K: int
    crops: CropTokens  # of the first image: where the crops lie


Projection = Callable[
    [Matches, "AIR"], tuple[Tensor, Tensor]
]  # (P, Q, d), and where it says anything: (P, Q)


@torch.no_grad()
def gather(
    Z: Sequence[Tensor], crops: Sequence[CropTokens], air: AIR, project: Projection | None = None
) -> list[Evidence]:
    """The evidence of every image: its tokens Z (K, d) and its crops' tokens.

    project: what the kept crops say each prototype should be; without it, the memory of their tokens.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, (own, crop) in enumerate(zip(Z, crops, strict=True)):
        # Geometry depends on where the boxes lie too.
        place = (crop.boxes, crop.size) if air.carry == "geometry" else ()
        groups.setdefault((own.shape, crop.tokens.shape, crop.mask is None, place), []).append(i)
    found: dict[int, Evidence] = {}
    for (shape, (M, N, _), *_), members in groups.items():
        share = max(1, ELEMENTS // max(1, M * N * max(1, _count(air, shape[0]))))
        for start in range(0, len(members), share):
            part = members[start : start + share]
            solved = _solve([Z[i] for i in part], [crops[i] for i in part], air, project)
            found |= dict(zip(part, solved, strict=True))
    return [found[i] for i in range(len(Z))]


def _solve(Z: list[Tensor], crops: list[CropTokens], air: AIR, project: Projection | None) -> list[Evidence]:
    """Images of one shape, together: P of them."""
    device = Z[0].device
    tokens = _together(Z)  # (P, K, d)
    P, K, _ = tokens.shape
    X = _together([v.tokens for v in crops]).to(device)  # (P, M, N, d)
    M = X.shape[1]
    mask = (
        None if crops[0].mask is None else _together([v.mask for v in crops if v.mask is not None]).to(device)
    )
    indices, H = _prototypes(tokens, air)  # (P, Q), (P, Q, d)
    if air.memory == "average":
        return _average(crops, tokens, indices, project is not None)
    C = cosine_cost(H.unsqueeze(1), X)  # (P, M, Q, N)
    iterations = torch.zeros(P, dtype=torch.long, device=device)
    converged = torch.ones(P, dtype=torch.bool, device=device)
    plan = None
    if air.distance == "ot" or (project is not None and air.carry == "plan"):
        solved = sinkhorn(C, air.eps, mask_columns=mask)
        plan, d = solved.plan, solved.cost
        if M:
            iterations, converged = solved.iterations.amax(-1), solved.converged.all(-1)
    if air.distance == "cosine":
        d = _mean(C, mask)
    kept = kept_crops(d, air)  # (P, M)
    projected = covered = None
    counts = kept.sum(-1)
    spoken = counts
    if project is not None:
        projected, covered = project(Matches(C, plan, X, mask, kept, indices, K, crops[0]), air)
        spoken = covered.sum(-1)
    # The one read-back of a prefill's evidence: all that a report will tell, and how much was kept.
    told = torch.cat([torch.stack([counts, spoken, iterations, converged], -1), kept, d], -1).cpu()
    numbers, spoken_of = told[:, 0].long().tolist(), told[:, 1].long().tolist()
    chosen_crops, d_host = told[:, 4 : 4 + M].bool(), told[:, 4 + M :]
    exists = None if mask is None or project is not None else mask.cpu()  # a mask on a device is waited for
    return [
        Evidence(
            boxes=crops[p].boxes,
            prototypes=indices[p],
            distances=d_host[p],
            kept=chosen_crops[p],
            count=numbers[p],
            memory=None
            if project is not None
            else _memory(H[p], X[p], None if exists is None else exists[p], chosen_crops[p], air),
            projected=_own(projected[p], P) if projected is not None and spoken_of[p] else None,
            covered=covered[p] if covered is not None and spoken_of[p] < covered.shape[1] else None,
            iterations=told[p, 2].long(),
            converged=told[p, 3].bool(),
        )
        for p in range(P)
    ]


def _count(air: AIR, K: int) -> int:
    """Q of an image's K tokens."""
    return K if isinstance(air.top_q, float) and air.top_q == 1 else how_many(air.top_q, K)


def _prototypes(tokens: Tensor, air: AIR) -> tuple[Tensor, Tensor]:
    """Positions (P, Q) of the prototypes among the tokens (P, K, d), and the prototypes (P, Q, d)."""
    P, K, _ = tokens.shape
    Q = _count(air, K)
    if Q == K:  # every token is one: nothing to choose
        return torch.arange(K, device=tokens.device).expand(P, K), tokens
    chosen = prototypes(tokens, Q)
    return chosen.indices, chosen.gather(tokens)


def kept_crops(d: Tensor, air: AIR) -> Tensor:
    """Which crops are kept, by their distances d (..., M): the count by the rule, its members by `order`."""
    M = d.shape[-1]
    if air.tau is not None:
        count = (d <= air.tau).sum(-1, keepdim=True)
    elif air.keep is not None:
        count = torch.full_like(d[..., :1], min(air.keep, M), dtype=torch.long)
    elif air.quantile is not None and M:
        limit = torch.quantile(d, air.quantile, dim=-1, keepdim=True)
        count = (d <= limit + 1e-7).sum(-1, keepdim=True)
    else:
        count = torch.full_like(d[..., :1], M, dtype=torch.long)
    if air.order == "random":
        drawn = torch.randperm(M, generator=torch.Generator().manual_seed(air.seed)).to(d.device)
        rank = drawn.expand(d.shape)
    else:
        ordered = d.argsort(dim=-1, descending=air.order == "farthest", stable=True)
        rank = ordered.argsort(dim=-1)
    return rank < count


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


def _memory(H: Tensor, X: Tensor, mask: Tensor | None, kept: Tensor, air: AIR) -> Tensor:
    """Z~ of one image: (S, d), the kept crops' tokens one after another."""
    rows = X[kept] if mask is None else X[mask & kept.unsqueeze(-1)]
    rows = rows.reshape(-1, X.shape[-1])
    if air.noise and len(rows):
        rows = noised(rows, air)
    return torch.cat([H.to(rows.dtype), rows]) if air.memory == "prototypes+crops" else rows


def noised(rows: Tensor, air: AIR) -> Tensor:
    generator = torch.Generator().manual_seed(air.seed)
    noise = torch.randn(rows.shape, generator=generator).to(rows.device)
    return (rows.float() + air.noise * rows.float().std() * noise).to(rows.dtype)


def _average(crops: list[CropTokens], tokens: Tensor, indices: Tensor, transported: bool) -> list[Evidence]:
    """Control: the mean of all visual features in place of what crops say; no crop takes part."""
    M = len(crops[0].tokens)
    mean = tokens.float().mean(1, keepdim=True)  # (P, 1, d)
    zero = torch.zeros((), dtype=torch.long)
    return [
        Evidence(
            boxes=crops[p].boxes,
            prototypes=indices[p],
            distances=torch.full((M,), math.nan),
            kept=torch.zeros(M, dtype=torch.bool),
            count=0,
            memory=None if transported else mean[p].to(tokens.dtype),
            projected=mean[p].expand(indices.shape[1], -1) if transported else None,
            covered=None,
            iterations=zero,
            converged=zero == 0,
        )
        for p in range(len(crops))
    ]


# -- the evidence of a run


@dataclass(frozen=True)
class ShownEvidence:
    """An image in a batch row, with its evidence."""

    positions: Tensor  # (K,) of its tokens in the row
    evidence: Evidence


class WithEvidence(Intervention):
    """Gathers the evidence of each prefill's images; a reading acts on it."""

    method: AIR
    project: Projection | None = None  # of a reading that needs one

    def __init__(self, method: AIR, context: Context) -> None:
        super().__init__(method, context)
        self.cropping = Cropping(method.patches, method.layout, method.seed, shrunk=method.source == "shrunk")
        if context.images.given is not None and context.processor is None:
            raise ValueError(
                f"{method.name} encodes crops of the images with the model's processor: pass it as the second "
                "argument, method(model, processor, images=...)"
            )
        self.matched: list[list[ShownEvidence]] = []  # by row of the caller's batch
        self.seconds = {"crops": 0.0, "transport": 0.0, "injection": 0.0}
        self._images: dict[str, AnyImage] = {}  # of the run, by content

    def on_call(self, call: Call) -> None:
        self.context.images.start_call(call.arguments)

    def match(self, step: Step, embeds: Tensor) -> bool:
        """Match the images of a pass with the decoder's input embeds (B, L, d); whether the sequence shows any."""
        if step.visual is not None:
            own = embeds[:: step.expand]
            shown = self.context.images.shown(step)
            for image in (image for part in shown for image in part.images):
                self._images.setdefault(image.key, image.pixels)
            Z = [own[part.row, part.positions] for part in shown]  # (K, d) a part
            self.matched = [[] for _ in range(step.rows)]
            for part, evidence in zip(shown, self._evidence(shown, Z), strict=True):
                self.matched[part.row].append(ShownEvidence(part.positions, evidence))
        elif step.fresh:
            self.matched = [[] for _ in range(step.rows)]
        return any(self.matched)

    def _evidence(self, shown: list[ImageTokens], Z: list[Tensor]) -> list[Evidence]:
        """The evidence of images and their tokens; where it is not kept, it is gathered for all of them together."""

        def gathered(missing: list[int]) -> list[Evidence]:
            started = time.perf_counter()
            crops = self._crops([shown[i] for i in missing])
            encoded = time.perf_counter()
            found = gather([Z[i] for i in missing], crops, self.method, self.project)
            self.seconds["crops"] += encoded - started
            self.seconds["transport"] += time.perf_counter() - encoded
            return found

        # What acted before (another method, say) may have changed the tokens, which the keys cannot know.
        cache = cache_of(self.context.anatomy.model)
        return cache.get_with_tokens("evidence", self._keys(shown), Z, gathered)

    def _keys(self, shown: list[ImageTokens]) -> list[Hashable]:
        """All that evidence depends on, but for the tokens themselves."""
        processor = getattr(self.context.processor, "image_processor", self.context.processor)
        # as text: top_q = 1 is one prototype and 1.0 is all of them, and the two are equal
        settings = repr([getattr(self.method, name) for name in EVIDENCE_FIELDS])
        common = (settings, self.cropping, serial(processor), weights_state(self.context.anatomy.model))
        return [
            (
                tuple(image.key for image in part.images),
                tuple(self._source(image.key) for image in part.images),
                len(part.positions),
                *common,
            )
            for part in shown
        ]

    def _crops(self, shown: list[ImageTokens]) -> list[CropTokens]:
        wanted = [[self._source(image.key) for image in part.images] for part in shown]
        keys = list(dict.fromkeys(key for part in wanted for key in part))
        images = [self._images[key] for key in keys]
        found = encode_crops(self.context.anatomy, self.context.processor, images, keys, self.cropping)
        known = dict(zip(keys, found, strict=True))
        return [CropTokens.joined([known[key] for key in part]) for part in wanted]

    def _source(self, key: str) -> str:
        """The image whose crops are taken: its own, or for a control another's."""
        if self.method.source != "other":
            return key
        keys = list(self._images)
        if len(keys) < 2:
            raise ValueError(
                "source='other' takes another image's crops: give a batch with two unlike images"
            )
        return keys[(keys.index(key) + 1) % len(keys)]

    # -- the report

    def _of(self, row: int | None) -> list[Evidence]:
        rows = self.matched if row is None else self.matched[row : row + 1]
        return [image.evidence for own in rows for image in own]

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        evidence = self._of(row)
        if not evidence:
            return {}
        most = max(int(e.iterations) for e in evidence)
        return {
            "crops": tuple(_crop_reports(e) for e in evidence),
            "sinkhorn": Sinkhorn(most, all(bool(e.converged) for e in evidence)),
        }

    def reason(self, row: int | None) -> str:
        air, evidence = self.method, self._of(row)
        crops_needed = self.project is not None or air.memory == "crops"
        if air.patches == 0 and crops_needed:
            return "patches = 0: there are no crops"
        if crops_needed and evidence and not any(e.count for e in evidence):
            nearest = min(float(e.distances.min()) for e in evidence)
            rule = f"within tau = {air.tau:g}" if air.tau is not None else f"among the {air.keep} to keep"
            return f"no crop is {rule}; the nearest has d = {nearest:.4g}"
        return super().reason(row)


def _crop_reports(e: Evidence) -> tuple[Crop, ...]:
    found = zip(e.boxes, e.distances.tolist(), e.kept.tolist(), strict=True)
    return tuple(Crop((box[0], box[1], box[2], box[3]), distance, kept) for box, distance, kept in found)
