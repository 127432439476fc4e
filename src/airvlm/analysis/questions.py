"""The analyses by name, each with the images it needs. Knows nothing of how results are shown."""

from __future__ import annotations

from pathlib import Path

from airvlm import AIR, VLM, Method
from airvlm.analysis.result import Analysis
from airvlm.analysis.samples import load_samples

__all__ = ["answer"]


def answer(
    name: str,
    vlm: VLM,
    method: Method | None,
    count: int,
    images: Path | None = None,
    objects: Path | None = None,
    *,
    progress: bool = True,
) -> Analysis:
    """One analysis on the first `count` images."""
    samples = load_samples(vlm, count, images, objects)
    if name == "margins":
        from airvlm.analysis.margins import margins

        return margins(vlm, samples, progress=progress)
    if name == "layers":
        from airvlm.analysis.layers import layers

        return layers(vlm, samples, progress=progress)
    if name == "heat":
        from airvlm.analysis.heat import heat

        return heat(vlm, samples, method, progress=progress)
    if name == "tokens":
        from airvlm.analysis.tokens import tokens

        return tokens(vlm, samples, progress=progress)
    air = method if isinstance(method, AIR) else AIR()
    if name == "crops":
        from airvlm.analysis.gallery import crops

        return crops(vlm, samples, air, progress=progress)
    if name == "agreement":
        from airvlm.analysis.agreement import agreement

        return agreement(vlm, samples, air, progress=progress)
    raise ValueError(f"no analysis {name!r}")
