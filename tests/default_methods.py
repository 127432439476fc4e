"""One cheap configuration a method, which every law in test_laws.py is tested on.

A case is the method at work (`on`) and the same method at strength 0 (`off`), which must change nothing. The small
random models have four layers, few tokens and confident logits, so layers and thresholds are set for them.
"""

from dataclasses import dataclass

from airvlm import AIR, AIRMemory, CropBlend
from airvlm.methods.base import Method
from airvlm.methods.memvr import MemVR
from airvlm.methods.vaf import VAF
from airvlm.methods.vcd import VCD


@dataclass(frozen=True)
class Case:
    name: str
    on: Method
    off: Method | None = None  # None: the method has no strength that means nothing
    images_only: bool = True  # leaves rows without an image alone
    reads_features: bool = True  # works when features are given instead of pixels


def _paper(strength: float) -> AIR:
    return AIR(layers=(1, 4), num_prototypes=8, keep=2, num_crops=3, strength=strength)


def _lineage(strength: float) -> AIR:
    return AIRMemory(layers=(1, 4), num_prototypes=8, keep=2, num_crops=3, strength=strength, threshold=0.3)


def _transported(weight: float) -> AIR:
    return CropBlend(num_crops=3, weight=weight)


METHODS: list[Case] = [
    Case("air-paper", _paper(0.5), _paper(0.0)),
    Case("air-lineage", _lineage(0.5), _lineage(0.0)),
    Case("air-transported", _transported(0.5), _transported(0.0)),
]

METHODS += [
    Case("memvr", MemVR(alpha=0.3, threshold=0.3, layers=(1, 4)), MemVR(alpha=0.0)),
    Case("vaf", VAF(enhance=0.8, suppress=0.4, layers=(1, 4)), VAF(enhance=0.0, suppress=0.0)),
    Case("vaf-faithful", VAF(enhance=0.8, suppress=0.4, layers=(1, 4), faithful=True)),
    # no cut: a token at its edge would fall on either side by the order of summation
    Case("vcd", VCD(alpha=0.5, beta=0.0), VCD(alpha=0.0), reads_features=False),
]
