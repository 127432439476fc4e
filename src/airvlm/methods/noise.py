"""Diffusion noise on images, by VCD's published schedule and drawn from a seed for each image.

An image's noise depends on its own pixels and the seed alone, so that results depend neither on the order of the
questions nor on what else is in the batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["add_noise", "noise_schedule"]

STEPS = 1000


def noise_schedule(step: int) -> tuple[float, float]:
    """(signal, noise) weights at a step of 1000: sqrt(abar), sqrt(1 - abar); step 500 is (0.86, 0.51)."""
    if not 0 <= step < STEPS:
        raise ValueError(f"noise_step = {step}: the schedule has the steps 0 to {STEPS - 1}")
    beta = torch.sigmoid(torch.linspace(-6, 6, STEPS, dtype=torch.float64)) * (0.5e-2 - 1e-5) + 1e-5
    abar = float(torch.cumprod(1 - beta, 0)[step])
    return math.sqrt(abar), math.sqrt(1 - abar)


def add_noise(inputs: Mapping[str, Any], step: int, seed: int | None) -> dict[str, Any]:
    """The image inputs with noise on `pixel_values`.

    Args:
        inputs: as the processor makes them: `pixel_values`, and `image_grid_thw` or `image_sizes` where a family has
            them.
        step: of the schedule.
        seed: of the noise; None draws from the global generator, as published.
    """
    signal, weight = noise_schedule(step)

    def one(x: Tensor) -> Tensor:
        return (signal * x.float() + weight * _draw(x, seed)).to(x.dtype)

    given = inputs["pixel_values"]
    new: Any
    if not isinstance(given, Tensor):
        return {**inputs, "pixel_values": [one(x) for x in given]}
    # The noise is drawn on the CPU from the pixels' own content: all of them are read at once.
    pixels = given.detach() if seed is None else given.detach().cpu()
    if pixels.dim() == 2:  # patches of all images in one list (Qwen, GLM): split by image
        counts = inputs["image_grid_thw"].prod(-1).tolist()
        new = torch.cat([one(x) for x in pixels.split(counts)])
    else:  # (..., C, H, W): images or their tiles
        sizes = inputs.get("image_sizes") if pixels.dim() == 4 else None
        sizes = sizes.tolist() if isinstance(sizes, Tensor) else sizes
        new = pixels.clone()
        flat = new.view(-1, *pixels.shape[-3:])
        for i, view in enumerate(flat):
            h, w = (int(n) for n in sizes[i]) if sizes is not None else view.shape[-2:]
            real = view[:, :h, :w]  # where images of unlike sizes are padded, the padding is not the image
            if bool(real.any()):  # a tile that only pads a row is all zeros, and must stay so to be known as such
                real.copy_(one(real))
    return {**inputs, "pixel_values": new.to(given.device)}


def _draw(x: Tensor, seed: int | None) -> Tensor:
    if seed is None:
        return torch.randn_like(x, dtype=torch.float32)
    content = x.detach().float().cpu().contiguous().numpy().tobytes()
    digest = hashlib.blake2b(content, digest_size=8, key=str(seed).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(x.shape, generator=generator).to(x.device)
