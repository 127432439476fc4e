"""CropMethod: base of the methods that show a model crops of its image again, and of the controls on them."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from airvlm.inputs.cache import cache_of, provenance
from airvlm.inputs.images import LoadedImage
from airvlm.methods.base import Method, option
from airvlm.methods.evidence.crops import CropPlan, CropQueue, CropTokens, check_crop_size
from airvlm.methods.evidence.matching import Evidence, EvidenceSpec, gather_evidence
from airvlm.models.parts import ModelParts
from airvlm.report import Crop, Sinkhorn
from airvlm.runtime.intervention import Context, ForwardPass, GenerateCall, Intervention
from airvlm.runtime.row_images import AnyImage, ImageTokens

__all__ = ["CropControl", "CropIntervention", "CropMethod", "ShownEvidence"]


@dataclass(frozen=True)
class CropControl:
    """How a control changes the evidence of the method that it wraps."""

    changes: dict[str, Any] = field(default_factory=dict)  # of the EvidenceSpec
    source: Literal["own", "shrunk", "other"] = "own"  # the image that crops are cut from


NO_CONTROL = CropControl()


@dataclass(frozen=True)
class CropMethod(Method):
    """Base of methods that use crops of the image."""

    num_crops: int = option(12, "M, the number of crops per image", low=0, high=4096)
    crop_layout: Literal["windows", "random"] = option(
        "windows", "overlapping windows in several scales, or random crops"
    )
    crop_seed: int = option(0, "seed of random crops")

    def evidence_spec(self) -> EvidenceSpec:
        """What is computed of an image and its crops."""
        raise NotImplementedError

    @property
    def crop_size(self) -> int | None:
        """Side in pixels at which crops are encoded; None is the model's. An option where it can be chosen."""
        return None

    @property
    def keeps_all_crops(self) -> bool:
        """Whether the options select every crop, so that there is nothing to select differently."""
        spec = self.evidence_spec()
        if spec.keep is not None:
            return spec.keep >= self.num_crops
        return spec.quantile == 1 or (spec.quantile is None and spec.tau is None)

    def crop_plan(self, control: CropControl = NO_CONTROL) -> CropPlan:
        """Which crops are cut."""
        shrunk = control.source == "shrunk"
        return CropPlan(self.num_crops, self.crop_layout, self.crop_seed, shrunk=shrunk, side=self.crop_size)

    def further_views(
        self,
        parts: ModelParts,
        processor: Any,
        images: Sequence[LoadedImage],
        control: CropControl = NO_CONTROL,
    ) -> CropQueue | None:
        if self.disabled_reason is not None or self.num_crops == 0 or not images:
            return None
        return CropQueue(parts, processor, {image.key: image.rgb for image in images}, self.crop_plan(control))

    def start(self, context: Context, control: CropControl = NO_CONTROL) -> CropIntervention:
        """What acts during one session, with the evidence changed by a control."""
        raise NotImplementedError


@dataclass(frozen=True)
class ShownEvidence:
    """An image in a batch row, with its evidence."""

    positions: Tensor  # (K,) of its tokens in the row
    evidence: Evidence


class CropIntervention(Intervention):
    """Gathers the evidence of each prefill's images; subclasses act on it."""

    method: CropMethod

    def __init__(self, method: CropMethod, context: Context, control: CropControl) -> None:
        super().__init__(method, context)
        self.source = control.source
        self.spec = replace(method.evidence_spec(), **control.changes)
        self.plan = method.crop_plan(control)
        check_crop_size(context.parts, self.plan)
        if context.images.given_images is not None and context.processor is None:
            raise ValueError(
                f"{method.name} encodes crops with the model's processor: pass it as the second argument, "
                "method(model, processor, images=...)"
            )
        self.matched: list[list[ShownEvidence]] = []  # per row of the caller's batch
        self.seconds = {"crops": 0.0, "transport": 0.0, "injection": 0.0}
        self._images: dict[str, AnyImage] = {}  # all images of the session, by content key

    def on_call(self, call: GenerateCall) -> None:
        self.context.images.start_call(call.arguments)

    def match(self, fp: ForwardPass, embeds: Tensor) -> bool:
        """Gather the evidence of a pass from the decoder's input (B, L, d). False if the sequence shows no image."""
        if fp.visual is not None:
            own = embeds[:: fp.beams]
            shown = self.context.images.locate(fp)
            for image in (image for part in shown for image in part.images):
                self._images.setdefault(image.key, image.pixels)
            Z = [own[part.row, part.positions] for part in shown]  # (K, d) each
            self.matched = [[] for _ in range(fp.batch_size)]
            for part, evidence in zip(shown, self._gather(shown, Z), strict=True):
                self.matched[part.row].append(ShownEvidence(part.positions, evidence))
        elif fp.is_prefill:
            self.matched = [[] for _ in range(fp.batch_size)]
        return any(self.matched)

    def _gather(self, shown: list[ImageTokens], Z: list[Tensor]) -> list[Evidence]:
        """The evidence of images and their tokens. What is not in the cache is gathered for all of them together."""
        model, processor = self.context.parts.model, self.context.processor
        sources = [tuple(self._source_key(image.key) for image in part.images) for part in shown]
        cache, made_by = cache_of(model), provenance(model, processor)
        keys: list[Hashable] = [
            (tuple(image.key for image in part.images), source, len(part.positions), self.spec, self.plan, made_by)
            for part, source in zip(shown, sources, strict=True)
        ]

        def compute(missing: list[int]) -> list[Evidence]:
            started = time.perf_counter()
            images = {key: self._images[key] for i in missing for key in sources[i]}
            tokens = CropQueue(self.context.parts, processor, images, self.plan, made_by).finish()
            own = [[tokens[key] for key in sources[i]] for i in missing]
            crops = [part[0] if len(part) == 1 else CropTokens.join(part) for part in own]
            encoded = time.perf_counter()
            found = gather_evidence([Z[i] for i in missing], crops, self.spec)
            # those that were encoded with their images count here, too
            self.seconds["crops"] += encoded - started + cache.take_seconds("crops")
            self.seconds["transport"] += time.perf_counter() - encoded
            return found

        # The tokens are part of the key: another method may have changed them before.
        return cache.get_with_tokens("evidence", keys, Z, compute)

    def _source_key(self, key: str) -> str:
        """The image whose crops are used: its own, or another one's under a control."""
        if self.source != "other":
            return key
        keys = list(self._images)
        if len(keys) < 2:
            raise ValueError("other-image uses another image's crops: give a batch with two different images")
        return keys[(keys.index(key) + 1) % len(keys)]

    # -- the report

    def evidence_of(self, row: int | None) -> list[Evidence]:
        """The evidence of one row's images, or of the batch."""
        rows = self.matched if row is None else self.matched[row : row + 1]
        return [image.evidence for own in rows for image in own]

    def details(self, row: int | None, acted: bool) -> dict[str, Any]:
        evidence = self.evidence_of(row)
        if not evidence:
            return {}
        most = max(int(e.iterations) for e in evidence)
        return {
            "crops": tuple(_crop_reports(e) for e in evidence),
            "sinkhorn": Sinkhorn(most, all(bool(e.converged) for e in evidence)),
        }

    def inactive_reason(self, row: int | None) -> str:
        spec, evidence = self.spec, self.evidence_of(row)
        if spec.mean_token or spec.memory_prototypes:
            return super().inactive_reason(row)
        if self.plan.num_crops == 0:
            return "num_crops = 0: there are no crops"
        if evidence and not any(e.count for e in evidence):
            nearest = min(float(e.distances.min()) for e in evidence)
            if spec.keep is not None:
                return f"keep = {spec.keep}: no crop is kept; the nearest has distance {nearest:.4g}"
            return (
                f"no crop is within tau = {spec.tau:g}; the nearest has distance {nearest:.4g}. keep=3 would use the "
                f"three nearest crops, tau={_round_up(nearest):g} the nearest one"
            )
        return super().inactive_reason(row)


def _round_up(distance: float) -> float:
    """A tau with two digits that includes this distance."""
    return round(distance + 0.005, 2)


def _crop_reports(e: Evidence) -> tuple[Crop, ...]:
    found = zip(e.boxes, e.distances.tolist(), e.kept.tolist(), strict=True)
    return tuple(Crop((box[0], box[1], box[2], box[3]), distance, kept) for box, distance, kept in found)
