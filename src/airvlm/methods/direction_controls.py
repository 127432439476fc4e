"""Controls of steering methods: the same method with directions that should not help.

`RandomDirections(VISTA())`, on the command line `random-directions(vista)`. If a control does as well as the method
that it wraps, the gain does not come from where the states are moved. A control that would change nothing raises.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from airvlm.methods.artifacts import ArtifactMethod
from airvlm.methods.base import Method, option
from airvlm.methods.composed import CombinedIntervention
from airvlm.methods.controls import Wrapper
from airvlm.methods.nullu import NullSpaceMethod, ProjectionIntervention
from airvlm.methods.rudder import RUDDER
from airvlm.methods.templates.steering import SteeringIntervention, SteeringMethod, unit
from airvlm.runtime.intervention import Context, Intervention, norm

__all__ = ["OppositeDirections", "OtherDirections", "RandomDirections"]


@dataclass(frozen=True)
class DirectionControlMethod(Wrapper):
    """Base of the controls that change a steering method's directions."""

    method: Method = option(RUDDER(), "the method that is wrapped")  # noqa: RUF009  # a field

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.method
        if not isinstance(inner, SteeringMethod):
            problem: str | None = f"{inner.name} does not steer along directions, so there is nothing to control"
        elif inner.disabled_reason is not None:
            problem = f"{inner.name} does nothing, because {inner.disabled_reason}"
        elif getattr(inner, "strength", 1) == 0:
            problem = f"the strength of {inner.name} is 0: no state is moved"
        else:
            problem = self.problem_with(inner)
        if problem is not None:
            raise ValueError(f"{self.name}({inner.label}): {problem}")

    def problem_with(self, inner: SteeringMethod) -> str | None:
        """Why this control would change nothing in a method that steers."""
        return None

    def direction(self, intervention: SteeringIntervention, layer: int, v: Tensor) -> Tensor:
        """The directions (1 or batch_size, d) that are used instead of v."""
        raise NotImplementedError

    def start(self, context: Context) -> Intervention:
        whole = self.method.start(context)
        whole.reported_as = self
        parts = whole.parts if isinstance(whole, CombinedIntervention) else [whole]
        for part in parts:
            if isinstance(part, SteeringIntervention):
                self.install(part)
        return whole

    def install(self, part: SteeringIntervention) -> None:
        """Change the directions of one intervention."""
        part.control = lambda layer, v: self.direction(part, layer, v)


@dataclass(frozen=True)
class RandomDirections(DirectionControlMethod):
    """Random directions of the same length; for projections, a random basis of the same rank."""

    name: ClassVar[str] = "random-directions"
    summary: ClassVar[str] = "control: random directions of the same length"

    seed: int = option(0, "seed of the directions")

    def draw(self, layer: int, *shape: int) -> Tensor:
        """Random numbers that depend on the seed and the layer alone."""
        seed = zlib.crc32(f"{self.seed} {layer}".encode())
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    def direction(self, intervention: SteeringIntervention, layer: int, v: Tensor) -> Tensor:
        return unit(self.draw(layer, 1, v.shape[-1])).to(v.device) * norm(v)

    def install(self, part: SteeringIntervention) -> None:
        if isinstance(part, ProjectionIntervention):
            part.bases = {layer: torch.linalg.qr(self.draw(layer, *V.shape)).Q for layer, V in part.bases.items()}
        else:
            super().install(part)


@dataclass(frozen=True)
class OppositeDirections(DirectionControlMethod):
    """The directions turned round: what helps should now harm."""

    name: ClassVar[str] = "opposite-directions"
    summary: ClassVar[str] = "control: the opposite directions"

    def problem_with(self, inner: SteeringMethod) -> str | None:
        return f"{inner.name} projects, which has no opposite" if isinstance(inner, NullSpaceMethod) else None

    def direction(self, intervention: SteeringIntervention, layer: int, v: Tensor) -> Tensor:
        return -v


@dataclass(frozen=True)
class OtherDirections(DirectionControlMethod):
    """The directions of the next row with an image: needs a batch of two or more."""

    name: ClassVar[str] = "other-directions"
    summary: ClassVar[str] = "control: the directions of another image of the batch"
    mixes_rows: ClassVar[bool] = True

    def problem_with(self, inner: SteeringMethod) -> str | None:
        return f"{inner.name} has the same directions for every image" if isinstance(inner, ArtifactMethod) else None

    def direction(self, intervention: SteeringIntervention, layer: int, v: Tensor) -> Tensor:
        shown = intervention.has_image_on_cpu
        rows = [] if shown is None else shown.nonzero().flatten().tolist()
        if len(rows) < 2:
            raise ValueError(f"{self.name}({self.method.label}) needs a batch of two or more rows with an image")
        order = list(range(len(v)))
        for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
            order[row] = other
        return v[order]
