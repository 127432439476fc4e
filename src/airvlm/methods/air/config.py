"""AIR: adaptive visual reinforcement, in three readings (arXiv 2602.24041).

`AIR.paper()` adds phi(H' Z~') Z~ to the retained visual rows in prefill; `AIR.lineage()` adds a memory at all rows
where a layer is unsure; both act in reinforcing.py. `AIR.transported()` carries crop tokens to the visual tokens they
match, in carrying.py. What the evidence is, is evidence.py; how the model is reached is passes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from airvlm.hooks.fields import check_effect, check_given, setting
from airvlm.hooks.intervention import Intervention
from airvlm.hooks.method import Method, Renamed
from airvlm.hooks.run import Run
from airvlm.methods.air.recipe import Recipe
from airvlm.methods.air.reinforced import Reinforcing, window
from airvlm.methods.air.transported import Carrying

__all__ = ["AIR", "window"]


@dataclass(frozen=True)
class AIR(Recipe, Method):
    """Adaptive visual reinforcement. `AIR()` is the transported reading."""

    name: ClassVar[str] = "air"
    publication: ClassVar[str] = "Look Carefully: adaptive visual reinforcement (ICLR 2026, arXiv 2602.24041)"
    mechanism: ClassVar[str] = "crops that agree with the picture's distinctive tokens reinforce them"
    forwards: ClassVar[str] = "1, and one encoding of the crops a picture"

    renamed: ClassVar[Mapping[str, Renamed]] = {"plan": Renamed("layout"), "rows": Renamed("positions")}

    patches: int = setting(12, "M, the crops of an image", low=0, high=4096, search=(4, 24))
    layout: Literal["windows", "random"] = setting(
        "windows",
        "where crops lie: overlapping windows in several scales, or random crops drawn from the seed",
    )
    source: Literal["original", "shrunk", "other"] = setting(
        "original", "crops of the original; controls: of the image as the model sees it, of another image"
    )
    reading: Literal["carry", "ffn"] = setting(
        "carry",
        "carry (transported): blend what the crops say into the visual tokens; ffn (paper, lineage): add the term to "
        "feed-forward outputs",
    )
    weight: float = setting(
        0.25,
        "share of the projected token in the blend; 0 is off",
        low=0,
        high=1,
        off=0,
        readings=("transported",),
        search=(0.05, 0.5),
    )
    strength: float | None = setting(
        0.12,
        "norm of the added term over the feed-forward's, per token; none adds the bare sum; 0 is off",
        low=0,
        off=0,
        readings=("paper", "lineage"),
        search=(0.02, 0.5),
    )
    layers: tuple[int, int] | None = setting(
        None,
        "decoder layers that are changed: the first and the one after the last, as (26, 32); none is the last fifth",
        span=True,
        readings=("paper", "lineage"),
    )
    positions: Literal["visual", "all"] = setting(
        "visual",
        "token positions that are changed: the prototypes' in prefill, or all of every pass",
        readings=("paper", "lineage"),
    )
    phi: Literal["decoder", "identity", "silu", "gelu", "relu"] = setting(
        "decoder", "activation; decoder is the model's own", readings=("paper", "lineage")
    )
    trigger: Literal["none", "entropy"] = setting(
        "none",
        "act in all layers of the span, or only in the one after the first that is unsure of the next token",
        readings=("paper", "lineage"),
    )
    threshold: float = setting(
        0.75,
        "entropy of the ten likeliest tokens above which a layer is unsure, 0 to 1",
        low=0,
        high=1,
        readings=("lineage",),
        search=(0.3, 0.9),
    )

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        check_effect(self)
        if self.reading == "carry" and self.memory == "prototypes+crops":
            raise ValueError(
                "memory = 'prototypes+crops' has no effect in the transported reading of air: it acts in air-paper and "
                "air-lineage"
            )

    @property
    def reading_name(self) -> str:
        """transported, paper or lineage."""
        return "transported" if self.reading == "carry" else "paper" if self.trigger == "none" else "lineage"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The equations as printed: the term on the Q retained visual rows, in prefill, in every layer of the span."""
        preset = {
            "reading": "ffn",
            "top_q": 100,
            "eps": 0.1,
            "tau": 0.06,
            "positions": "visual",
            "phi": "decoder",
        }
        return cls._preset(preset, changes)

    @classmethod
    def lineage(cls, **changes: Any) -> Self:
        """As the paper's figures point to, built on MemVR: a memory at all rows, where a layer is unsure."""
        preset = {
            "reading": "ffn",
            "top_q": 100,
            "eps": 0.1,
            "tau": 0.06,
            "positions": "all",
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
        air = cls(**{**preset, **changes})
        check_given(air, [cls.renamed[name].to if name in cls.renamed else name for name in changes])
        return air

    def begin(self, run: Run) -> Intervention:
        return Carrying(run, self) if self.reading == "carry" else Reinforcing(run, self)
