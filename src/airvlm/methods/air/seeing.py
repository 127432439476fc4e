"""What AIR's readings share: the evidence of each row, and the report of what became of it.

Knows nothing of where the evidence is added: carrying.py and reinforcing.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from airvlm.hooks.additions import Counts, Tally
from airvlm.hooks.intervention import Call, Intervention, Step
from airvlm.hooks.run import Run
from airvlm.methods.air.sight import Seen, Sight
from airvlm.methods.air.views import Glance
from airvlm.report import Crop, Report, Sinkhorn

if TYPE_CHECKING:
    from airvlm.methods.air.config import AIR

__all__ = ["Seeing"]


class Seeing(Intervention):
    """Looks at the pictures of each prefill; a subclass acts on what is seen."""

    def __init__(self, run: Run, air: AIR) -> None:
        super().__init__(run)
        self.air = air
        glance = Glance(air.patches, air.layout, air.seed)
        self.sight = Sight(run, air, glance, air.source, carrying=air.reading == "carry")
        self.seen: list[list[Seen]] = []  # by row of the caller's batch
        self.tally = Tally()
        self.injection = 0.0  # seconds
        self.highest: Tensor | None = None  # (rows,) the largest entropy seen, where a trigger looks

    def call(self, call: Call) -> None:
        self.tally.clear()
        self.highest = None
        if not self.air.off:
            self.sight.call(call)

    def look(self, step: Step, embeds: Tensor) -> bool:
        """Take in the pictures of a pass; whether the sequence shows any."""
        if step.visual is not None:
            self.seen = self.sight.see(step, embeds)
        elif step.fresh:
            self.seen = [[] for _ in range(step.rows)]
        return any(self.seen)

    def report(self) -> Report:
        counts = self.tally.rows(len(self.seen))
        highest = None if self.highest is None else self.highest.tolist()
        rows = tuple(
            self._report(counts[r], seen, None if highest is None else highest[r])
            for r, seen in enumerate(self.seen)
        )
        seconds = {**self.sight.seconds, "injection": self.injection}
        whole = [picture for seen in self.seen for picture in seen]
        return self._report(
            Counts.joined(counts),
            whole,
            None if highest is None else max(highest),
            rows=rows,
            seconds=seconds,
        )

    def _report(self, counts: Counts, seen: list[Seen], highest: float | None, **more: Any) -> Report:
        evidence = [picture.evidence for picture in seen]
        return Report(
            method=self.air.to_json(),
            fired=counts.tokens > 0,
            reason=None if counts.tokens else self._reason(seen, highest),
            layers=tuple(sorted(counts.layers)),
            tokens=counts.tokens,
            passes=counts.passes,
            crops=tuple(
                tuple(
                    Crop((box[0], box[1], box[2], box[3]), distance, kept)
                    for box, distance, kept in zip(
                        e.boxes, e.distances.tolist(), e.kept.tolist(), strict=True
                    )
                )
                for e in evidence
            ),
            norm_ratio=counts.ratio,
            sinkhorn=Sinkhorn(
                max(int(e.iterations) for e in evidence), all(bool(e.converged) for e in evidence)
            )
            if evidence
            else None,
            silent=self.air.off is not None,
            **more,
        )

    def _reason(self, seen: list[Seen], highest: float | None) -> str:
        air = self.air
        if air.off:
            return air.off
        if not seen:
            return "there is no picture in this row"
        crops_needed = air.reading == "carry" or air.memory == "crops"
        if air.patches == 0 and crops_needed:
            return "patches = 0: there are no crops to look at"
        if crops_needed and not any(s.evidence.count for s in seen):
            nearest = min(float(s.evidence.distances.min()) for s in seen)
            rule = f"within tau = {air.tau:g}" if air.tau is not None else f"among the {air.keep} to keep"
            return f"no crop is {rule}; the nearest has d = {nearest:.4g}"
        if highest is not None:
            return f"no layer's entropy passed {air.threshold:g}; the highest was {highest:.3g}"
        return "nothing was left to add"
