"""AIR: adaptive visual reinforcement, in three readings (arXiv 2602.24041).

`AIR.paper()` adds phi(H' Z~') Z~ at the prototypes' token positions in prefill; `AIR.lineage()` adds a memory at all
positions where a layer is unsure; both are reinforced.py. `AIR.transported()` blends what the crops say into the visual
tokens they match: transported.py. The evidence that all of them use is evidence.py. A field acts in all readings unless
it names those in which it does; set in another, it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from airvlm.hooks.fields import check_given, setting
from airvlm.hooks.intervention import Context, Intervention
from airvlm.hooks.method import Method, Renamed
from airvlm.methods.air.prototypes import how_many
from airvlm.methods.air.reinforced import Reinforced
from airvlm.methods.air.transported import Transported

__all__ = ["AIR"]


@dataclass(frozen=True)
class AIR(Method):
    """Adaptive visual reinforcement. `AIR()` is the transported reading."""

    name: ClassVar[str] = "air"
    publication: ClassVar[str] = "Look Carefully: adaptive visual reinforcement (ICLR 2026, arXiv 2602.24041)"
    mechanism: ClassVar[str] = "crops that agree with the image's distinctive tokens reinforce them"
    forwards: ClassVar[str] = "1, and one encoding of the crops per image"

    renamed: ClassVar[Mapping[str, Renamed]] = {"plan": Renamed("layout"), "rows": Renamed("positions")}

    reading: Literal["carry", "ffn"] = setting(
        "carry",
        "carry (transported): blend what the crops say into the visual tokens; ffn (paper, lineage): add the term to "
        "feed-forward outputs",
    )

    # the crops
    patches: int = setting(12, "M, the crops of an image", low=0, high=4096)
    layout: Literal["windows", "random"] = setting(
        "windows",
        "where crops lie: overlapping windows in several scales, or random crops drawn from the seed",
    )
    source: Literal["original", "shrunk", "other"] = setting(
        "original", "crops of the original; controls: of the image as the model sees it, of another image"
    )
    seed: int = setting(0, "of random crops, of the random order and of the noise")

    # the evidence: prototypes, transport, which crops are kept
    top_q: int | float = setting(
        1.0, "Q, the prototypes: a count, or a fraction of the image's K tokens", low=0, search=(0.1, 1.0)
    )
    eps: float = setting(
        0.1, "entropic regulariser of the transport; small is sharp", above=0, search=(0.01, 0.3)
    )
    distance: Literal["ot", "cosine"] = setting("ot", "of a crop: ot is <T, C>, cosine the mean of C")
    tau: float | None = setting(
        None, "keep crops whose distance is at most tau (at most one of tau, keep, quantile)", low=0
    )
    keep: int | None = setting(None, "keep this many nearest crops", low=0, search=(1, 12))
    quantile: float | None = setting(
        None, "keep crops up to this quantile of their distances; with no rule all are kept", low=0, high=1
    )
    order: Literal["nearest", "farthest", "random"] = setting(
        "nearest", "which crops make up the number kept; farthest and random are controls"
    )
    memory: Literal["crops", "prototypes+crops", "average"] = setting(
        "crops",
        "Z~: the kept crops' tokens, with the prototypes before them (paper, lineage), or (a control) the mean visual "
        "token",
    )
    noise: float = setting(
        0.0, "control: Gaussian noise on the kept crops' tokens, in units of their own deviation", low=0
    )

    # transported: blend into the visual tokens
    weight: float = setting(
        0.4,
        "share of the projected token in the blend; 0 is off",
        low=0,
        high=1,
        off=0,
        readings=("transported",),
        search=(0.1, 1.0),
    )
    carry: Literal["plan", "softmax", "geometry"] = setting(
        "plan",
        "which crop tokens a prototype takes: by the transport plan, by softmax of -C/eps, or by where crops lie",
        readings=("transported",),
        search=("plan", "softmax", "geometry"),
    )
    temperature: float | None = setting(
        None,
        "of the softmax that mixes crops by a prototype's own cost; eps if none",
        above=0,
        readings=("transported",),
    )

    # paper and lineage: add to feed-forward outputs
    strength: float | None = setting(
        0.12,
        "norm of the added term over the feed-forward's, per token; none adds the bare sum; 0 is off",
        low=0,
        off=0,
        readings=("paper", "lineage"),
        search=(0.05, 1.0),
    )
    layers: tuple[int, int] | None = setting(
        None,
        "decoder layers that are changed: the first and the one after the last, as (26, 32); none is the last fifth",
        span=True,
        readings=("paper", "lineage"),
        search=(0.0, 0.8),
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
        super().__post_init__()
        chosen = [n for n in ("tau", "keep", "quantile") if getattr(self, n) is not None]
        if len(chosen) > 1:
            raise ValueError(
                f"{' and '.join(chosen)} are both set: give at most one of tau, keep and quantile"
            )
        how_many(self.top_q, 1)
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
        """The equations as printed: the term on the Q retained visual tokens, in prefill, in all layers of the span."""
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
        """As the paper's figures point to, built on MemVR: a memory at all positions, where a layer is unsure."""
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
        """Our own, of the same parts: the plan projects each crop's tokens onto the visual tokens they match."""
        return cls._preset({"reading": "carry", "weight": 0.4, "eps": 0.1, "top_q": 1.0}, changes)

    @classmethod
    def _preset(cls, preset: dict[str, Any], changes: dict[str, Any]) -> Self:
        rules = {"tau", "keep", "quantile"}
        if rules & set(changes):  # another rule of selection replaces the preset's
            preset = {name: value for name, value in preset.items() if name not in rules}
        air = cls(**{**preset, **changes})
        check_given(air, [cls.renamed[name].to if name in cls.renamed else name for name in changes])
        return air

    def start(self, context: Context) -> Intervention:
        return Transported(self, context) if self.reading == "carry" else Reinforced(self, context)
