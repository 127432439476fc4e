"""Controls of the methods that use crops: the same method with crops that should not help.

`RandomCrops(CropBlend(keep=6))`, on the command line `random-crops(crop-blend:keep=6)`. If a control does as well as
the method that it wraps, the method's gain does not come from what the control took away. A control that would change
nothing raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airvlm.inputs.images import LoadedImage
from airvlm.methods.base import Method, option
from airvlm.methods.crop_blend import CropBlend
from airvlm.methods.evidence.base import CropControl, CropMethod
from airvlm.methods.evidence.crops import CropQueue
from airvlm.models.parts import ModelParts
from airvlm.runtime.intervention import Context, Intervention

__all__ = [
    "CropControlMethod",
    "FarthestCrops",
    "MeanToken",
    "NoisyCrops",
    "OtherImage",
    "RandomCrops",
    "ShrunkCrops",
    "Wrapper",
]


@dataclass(frozen=True)
class Wrapper(Method):
    """Base of methods that change what another method does."""

    site: ClassVar[str] = "control"
    cost: ClassVar[str] = "that of the wrapped method"

    method: Method = option(CropBlend(), "the method that is wrapped")  # noqa: RUF009  # a field

    @property
    def needs_images(self) -> bool:  # type: ignore[override]  # the wrapped method decides
        return self.method.needs_images

    @property
    def needs_pixels(self) -> bool:  # type: ignore[override]  # likewise
        return self.method.needs_pixels

    @property
    def decoding(self) -> tuple[str, ...]:  # type: ignore[override]  # likewise
        return self.method.decoding


@dataclass(frozen=True)
class CropControlMethod(Wrapper):
    """Base of the controls that change a method's crops."""

    selects: ClassVar[bool] = False  # changes which crops are selected: needs a method that selects

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.method
        if isinstance(inner, Wrapper):
            problem = f"{inner.name} is a control itself; wrap the method inside it"
        elif not isinstance(inner, CropMethod):
            problem = f"{inner.name} uses no crops, so there is nothing to control"
        elif inner.disabled_reason is not None:
            problem = f"{inner.name} does nothing, because {inner.disabled_reason}"
        elif inner.num_crops == 0 or inner.evidence_spec().keep == 0:
            problem = f"{inner.name} uses no crops with these options, so there is nothing to control"
        elif self.selects and inner.keeps_all_crops:
            problem = (
                f"{inner.name} keeps all {inner.num_crops} crops here, so selecting others changes nothing. Give it a "
                f"rule, as in {self.name}({inner.name}:keep={max(1, inner.num_crops // 2)})"
            )
        else:
            return
        raise ValueError(f"{self.name}({inner.label}): {problem}")

    def crop_control(self) -> CropControl:
        """How the evidence is changed."""
        raise NotImplementedError

    def further_views(self, parts: ModelParts, processor: Any, images: Sequence[LoadedImage]) -> CropQueue | None:
        assert isinstance(self.method, CropMethod)
        return self.method.further_views(parts, processor, images, self.crop_control())

    def start(self, context: Context) -> Intervention:
        assert isinstance(self.method, CropMethod)
        intervention = self.method.start(context, self.crop_control())
        intervention.reported_as = self
        return intervention


@dataclass(frozen=True)
class RandomCrops(CropControlMethod):
    """As many crops, chosen at random."""

    name: ClassVar[str] = "random-crops"
    summary: ClassVar[str] = "control: as many crops, chosen at random"
    selects: ClassVar[bool] = True

    seed: int = option(0, "seed of the choice")

    def crop_control(self) -> CropControl:
        return CropControl({"order": "random", "seed": self.seed})


@dataclass(frozen=True)
class FarthestCrops(CropControlMethod):
    """As many crops, the farthest ones."""

    name: ClassVar[str] = "farthest-crops"
    summary: ClassVar[str] = "control: as many crops, the farthest ones"
    selects: ClassVar[bool] = True

    def crop_control(self) -> CropControl:
        return CropControl({"order": "farthest"})


@dataclass(frozen=True)
class NoisyCrops(CropControlMethod):
    """The kept crops' tokens with Gaussian noise."""

    name: ClassVar[str] = "noisy-crops"
    summary: ClassVar[str] = "control: Gaussian noise on the crops' tokens"

    std: float = option(1.0, "standard deviation of the noise, in units of the tokens' own", above=0)
    seed: int = option(0, "seed of the noise")

    def crop_control(self) -> CropControl:
        return CropControl({"noise": self.std, "seed": self.seed})


@dataclass(frozen=True)
class MeanToken(CropControlMethod):
    """The mean of all visual tokens in place of the crops."""

    name: ClassVar[str] = "mean-token"
    summary: ClassVar[str] = "control: the mean of all visual tokens in place of the crops"

    def crop_control(self) -> CropControl:
        return CropControl({"mean_token": True})


@dataclass(frozen=True)
class OtherImage(CropControlMethod):
    """The crops of another image of the batch."""

    name: ClassVar[str] = "other-image"
    summary: ClassVar[str] = "control: crops of another image of the batch"
    mixes_rows: ClassVar[bool] = True

    def crop_control(self) -> CropControl:
        return CropControl(source="other")


@dataclass(frozen=True)
class ShrunkCrops(CropControlMethod):
    """Crops of the image at the size at which the model sees it."""

    name: ClassVar[str] = "shrunk-crops"
    summary: ClassVar[str] = "control: crops of the image as the model sees it, without additional detail"

    def crop_control(self) -> CropControl:
        return CropControl(source="shrunk")
