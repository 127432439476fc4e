"""AIR: adaptive visual reinforcement, in three readings (arXiv 2602.24041).

`AIR.paper()` adds phi(H' Z~') Z~ to the retained visual rows in prefill; `AIR.lineage()` adds a memory at all rows
where a layer is unsure; both act in reinforcing.py. `AIR.transported()` carries crop tokens to the visual tokens they
match, in carrying.py. What the evidence is, is evidence.py; how the model is reached is passes.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from airvlm.hooks.intervention import Intervention
from airvlm.hooks.method import Method
from airvlm.hooks.run import Run
from airvlm.methods.air.recipe import Recipe
from airvlm.methods.air.reinforced import ACTIVATIONS, Reinforcing, window
from airvlm.methods.air.transported import Carrying

__all__ = ["AIR", "window"]


@dataclass(frozen=True)
class AIR(Recipe, Method):
    """Adaptive visual reinforcement. `AIR()` is the transported reading."""

    name: ClassVar[str] = "air"
    publication: ClassVar[str] = "Look Carefully: adaptive visual reinforcement (ICLR 2026, arXiv 2602.24041)"
    mechanism: ClassVar[str] = "crops that agree with the picture's distinctive tokens reinforce them"
    forwards: ClassVar[str] = "1, and one encoding of the crops a picture"

    # carry: blend what the crops say into the visual tokens; ffn: add the term to feed-forward outputs
    reading: Literal["carry", "ffn"] = "carry"
    weight: float = 0.25  # carry: share of the carried token in the blend
    # ffn: norm of the added term over the feed-forward's, per token; None adds the bare sum; 0 is off
    strength: float | None = 0.12
    # ffn: first layer and the one after the last, as (26, 32); None is the last fifth of the decoder
    layers: tuple[int, int] | None = None
    rows: Literal["visual", "all"] = (
        "visual"  # ffn: the prototypes' rows in prefill, or all rows of every pass
    )
    phi: str = "decoder"  # ffn: activation; decoder (the model's own), identity, silu, gelu or relu
    # ffn: act in all layers of the span, or only in the one after the first that is unsure of the next token
    trigger: Literal["none", "entropy"] = "none"
    threshold: float = 0.75  # entropy of the ten likeliest tokens above which a layer is unsure, 0 to 1
    patches: int = 12  # M, crops of a picture
    # overlapping windows in several scales, or random crops drawn from the seed
    plan: Literal["windows", "random"] = "windows"
    # crops of the original; controls: of the picture as the model sees it, of another picture
    source: Literal["original", "shrunk", "other"] = "original"

    def __post_init__(self) -> None:
        super().__post_init__()
        options: dict[str, tuple[str, ...]] = {
            "reading": ("carry", "ffn"),
            "rows": ("visual", "all"),
            "phi": ("decoder", *ACTIVATIONS),
            "trigger": ("none", "entropy"),
            "plan": ("windows", "random"),
            "source": ("original", "shrunk", "other"),
        }
        for field, allowed in options.items():
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} = {getattr(self, field)!r}: choose one of {', '.join(allowed)}")
        if self.patches < 0:
            raise ValueError(f"patches = {self.patches}: the number of crops cannot be negative")
        if self.reading == "carry" and self.rows == "all":
            raise ValueError(
                "reading='carry' writes visual tokens only: for all of them set top_q=1.0, not rows"
            )
        if self.layers is not None and (len(self.layers) != 2 or not 0 <= self.layers[0] < self.layers[1]):
            raise ValueError(f"layers = {self.layers}: give (first, one after the last), counted from 0")

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The equations as printed: the term on the Q retained visual rows, in prefill, in every layer of the span."""
        preset = {"reading": "ffn", "top_q": 100, "eps": 0.1, "tau": 0.06, "rows": "visual", "phi": "decoder"}
        return cls._preset(preset, changes)

    @classmethod
    def lineage(cls, **changes: Any) -> Self:
        """As the paper's figures point to, built on MemVR: a memory at all rows, where a layer is unsure."""
        preset = {
            "reading": "ffn",
            "top_q": 100,
            "eps": 0.1,
            "tau": 0.06,
            "rows": "all",
            "phi": "identity",
            "memory": "prototypes+crops",
            "trigger": "entropy",
        }
        return cls._preset(preset, changes)

    @classmethod
    def transported(cls, **changes: Any) -> Self:
        """Our own, of the same parts: the plan carries each crop's tokens to the visual tokens they match."""
        return cls._preset({"reading": "carry", "weight": 0.25, "eps": 0.03, "top_q": 1.0}, changes)

    @classmethod
    def _preset(cls, preset: dict[str, Any], changes: dict[str, Any]) -> Self:
        rules = {"tau", "keep", "quantile"}
        if rules & set(changes):  # another rule of selection replaces the preset's
            preset = {name: value for name, value in preset.items() if name not in rules}
        return cls(**{**preset, **changes})

    @property
    def off(self) -> bool:
        """Configured to do nothing."""
        return self.strength == 0 or (self.reading == "carry" and self.weight == 0)

    def begin(self, run: Run) -> Intervention:
        return Carrying(run, self) if self.reading == "carry" else Reinforcing(run, self)
