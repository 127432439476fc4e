"""AIR, transported: what the crops say of a visual token is blended into it, where the decoder reads it.

What they say is the barycentric projection: for each crop the transport plan's row-normalised mean of its tokens, the
crops mixed by softmax of each prototype's own transport cost. In prefill only; nothing is added in decoding. In place
of the plan, a softmax without the column constraint or the geometry of the crops may match (`carry`).
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from airvlm.hooks.intervention import INPUT, Step, norm
from airvlm.methods.air.crops import CropTokens
from airvlm.methods.air.evidence import Matches, WithEvidence, noised

if TYPE_CHECKING:
    from airvlm.methods.air.config import AIR

__all__ = ["Transported", "landing", "project"]


def project(m: Matches, air: AIR) -> tuple[Tensor, Tensor]:
    """What the crops say about each prototype: (P, Q, d), and where they say anything: (P, Q)."""
    C, X = m.C, m.X
    P, M, Q, N = C.shape
    if air.carry == "plan":
        assert m.plan is not None
        R = m.plan
    elif air.carry == "softmax":
        scores = C / -air.eps
        if m.mask is not None:
            scores = scores.masked_fill(~m.mask.unsqueeze(-2), -torch.inf)
        R = scores.softmax(-1)
    else:
        shown = landing(m.crops, m.K, N).to(C)  # (M, K, N)
        R = shown.expand(P, M, m.K, N).gather(2, m.prototypes[:, None, :, None].expand(P, M, Q, N))
    mass = R.sum(-1, keepdim=True)  # (P, M, Q, 1)
    R = (
        R / mass.clamp_min(1e-30) if air.carry == "geometry" else R.div_(mass.clamp_min(1e-30))
    )  # means over a crop
    own = C.mul_(R).sum(
        -1
    )  # (P, M, Q) the row's own transport cost; C is not needed again, and as large as R
    speaks = m.kept.unsqueeze(-1) & (mass.squeeze(-1) > 0)  # (P, M, Q)
    scores = (own / -(air.temperature or air.eps)).masked_fill(~speaks, -torch.inf)
    covered = speaks.any(1)  # (P, Q)
    weights = scores.masked_fill(~covered.unsqueeze(1), 0.0).softmax(1) if M else scores
    R = R.mul_(weights.unsqueeze(-1))  # (P, M, Q, N)
    if air.noise and X.numel():
        X = torch.stack([noised(rows.float(), air) for rows in X.flatten(1, 2)]).view(X.shape)
    out = R.new_zeros(P, Q, X.shape[-1])
    for crop in range(M):  # one at a time: half precision is widened for no more than one
        out.baddbmm_(R[:, crop], X[:, crop].float())
    return out, covered


def landing(crops: CropTokens, K: int, N: int) -> Tensor:
    """Which of an image's K cells each crop token shows: (M, K, N), 1 where token n of crop m lands on cell k.

    Both token sets must be square grids in reading order over the whole image and the whole crop.
    """
    g, c = math.isqrt(K), math.isqrt(N)
    if g * g != K or c * c != N:
        raise ValueError(
            f"carry='geometry' needs square grids of tokens; this model has {K} for the image and {N} for a crop. "
            "Use carry='plan'."
        )
    W, H = crops.size
    centre = (torch.arange(c) + 0.5) / c
    shown = torch.zeros(len(crops.boxes), K, N)
    for m, box in enumerate(crops.boxes):
        x = (box[0] + centre * (box[2] - box[0])) / W * g
        y = (box[1] + centre * (box[3] - box[1])) / H * g
        cell = y.long().clamp(0, g - 1)[:, None] * g + x.long().clamp(0, g - 1)[None, :]  # (c, c)
        shown[m, cell.flatten(), torch.arange(N)] = 1.0
    return shown


class Transported(WithEvidence):
    """Blends the projection into the prototypes' tokens of the decoder's input."""

    project = staticmethod(project)

    def embeds(self, step: Step, inputs_embeds: Tensor) -> Tensor | None:
        if step.decode or not self.match(step, inputs_embeds) or step.visual is None:
            return None
        started = time.perf_counter()
        rows: list[Tensor] = []  # batch row of the caller (n,)
        positions: list[Tensor] = []
        projected: list[Tensor] = []
        for row, images in enumerate(self.matched):
            for image in images:
                e = image.evidence
                if e.projected is None:
                    continue
                at, values = image.positions[e.prototypes], e.projected
                if e.covered is not None:  # geometry may leave places that no kept crop shows
                    at, values = at[e.covered], values[e.covered]
                rows.append(torch.full_like(at, row))
                positions.append(at)
                projected.append(values)
        if not rows:
            return None
        row_of, at, c = torch.cat(rows), torch.cat(positions), torch.cat(projected)  # (n,), (n,), (n, d)
        first = row_of * step.expand
        z = inputs_embeds[first, at].float()
        change = self.method.weight * (c - z)
        new = inputs_embeds.clone()
        for copy in range(step.expand):
            new[first + copy, at] = (z + change).to(new.dtype)
        # One line a batch row, token i in column i, so that lines can be summed.
        ratio = (norm(change) / norm(z).clamp_min(1e-30)).squeeze(-1)  # (n,)
        lines = torch.zeros(step.rows, len(ratio), device=ratio.device)
        lines[row_of, torch.arange(len(ratio), device=ratio.device)] = ratio
        self.changes.add(INPUT, lines, step.rows)
        self.seconds["injection"] += time.perf_counter() - started
        return new
