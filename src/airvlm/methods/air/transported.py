"""AIR, transported: what the crops say of a visual token is blended into it, where the decoder reads it.

In prefill only; nothing is added in decoding. What the crops say is evidence.py's `carried`.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from airvlm.hooks.intervention import Step
from airvlm.methods.air.reinforcement import norm
from airvlm.methods.air.seeing import Seeing

__all__ = ["INPUT", "Carrying"]

INPUT = -1  # the decoder's input, in reports, where a layer would stand


class Carrying(Seeing):
    """Blends carried tokens into the prototypes' rows of the decoder's input."""

    def embeds(self, step: Step, inputs_embeds: Tensor) -> Tensor | None:
        if self.air.off or step.decode:
            self.seen = self.seen or [[] for _ in range(step.rows)]
            return None
        if not self.look(step, inputs_embeds) or step.visual is None:
            return None
        started = time.perf_counter()
        places: list[Tensor] = []  # row of the batch (n,)
        positions: list[Tensor] = []
        carried: list[Tensor] = []
        for row, pictures in enumerate(self.seen):
            for seen in pictures:
                e = seen.evidence
                if e.carried is None:
                    continue
                at, values = seen.positions[e.prototypes], e.carried
                if e.covered is not None:  # geometry may leave places that no kept crop shows
                    at, values = at[e.covered], values[e.covered]
                places.append(torch.full_like(at, row * step.expand))
                positions.append(at)
                carried.append(values)
        if not places:
            return None
        place, at, c = torch.cat(places), torch.cat(positions), torch.cat(carried)  # (n,), (n,), (n, d)
        z = inputs_embeds[place, at].float()
        w = self.air.weight
        change = w * (c - z)
        new = inputs_embeds.clone()
        for copy in range(step.expand):
            new[place + copy, at] = (z + change).to(new.dtype)
        self._count(change, z, place // step.expand, step.rows)
        self.injection += time.perf_counter() - started
        return new

    def _count(self, change: Tensor, z: Tensor, row: Tensor, rows: int) -> None:
        ratio = (norm(change) / norm(z).clamp_min(1e-30)).squeeze(-1)  # (n,)
        # Spread into one line a row, so that the tally can sum lines: token i stands in column i.
        lines = torch.zeros(rows, len(ratio), device=ratio.device)
        lines[row, torch.arange(len(ratio), device=ratio.device)] = ratio
        self.tally.add(INPUT, lines, rows)
