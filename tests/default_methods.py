"""One cheap configuration a method, which every law in test_laws.py is tested on.

A case is the method at work (`on`) and the same method at strength 0 (`off`), which must change nothing. The small
random models have four layers, few tokens and confident logits, so layers and thresholds are set for them.
"""

from dataclasses import dataclass

from airvlm.methods.base import Method
from airvlm.methods.memvr import MemVR


@dataclass(frozen=True)
class Case:
    name: str
    on: Method
    off: Method | None = None  # None: the method has no strength that means nothing
    images_only: bool = True  # leaves rows without a picture alone
    compile: bool = (
        False  # also tested on compiled models: one method of each kind of hook, as compiling is slow
    )
    reads_features: bool = True  # works when features are given instead of pixels


METHODS: list[Case] = []

METHODS += [
    Case("memvr", MemVR(alpha=0.3, threshold=0.3, window=(-1, 3)), MemVR(alpha=0.0)),
]
