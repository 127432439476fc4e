"""Vision pre-training: the tower learns which object covers each patch and, in the last steps, where the patch is.

The covering object can be predicted without the position of the patch, and the tower then discards it: a linear probe
finds the column of a patch in 17 % of cases. Without the last steps the decoder could not say where an object is.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from airvlm.tiny.world import OBJECTS
from experiments.train.tiny.checkpoint import Log, load, save
from experiments.train.tiny.recipe import Recipe

GROUND_WEIGHT = 0.4  # most patches show no object


def normalize_pixels(pixels: np.ndarray) -> Tensor:
    """(B, S, S, 3) bytes -> (B, 3, S, S) in -1..1, as the processor makes them."""
    return torch.from_numpy(np.array(pixels)).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def learning_rate(step: int, steps: int, peak: float, warm: int = 100) -> float:
    """Linear warm-up over `warm` steps, then a cosine down to 2 % of the peak."""
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def patch_features(tower: nn.Module, pixels: Tensor) -> Tensor:
    """(B, 3, S, S) -> (B, patches, width): the input of the projector."""
    return tower(pixels).last_hidden_state[:, 1:]


def train_vision(recipe: Recipe, tower: nn.Module, folder: Path, log: Log) -> nn.Linear:
    """Train the tower in place. Returns the head that classifies patches."""
    data = folder / "data"
    pixels = np.load(data / "pixels.npy", mmap_mode="r")
    covers = np.load(data / "covers.npy", mmap_mode="r")
    grid = recipe.image_side // recipe.patch
    head, place = (
        nn.Linear(recipe.vision_width, len(OBJECTS) + 1),
        nn.Linear(recipe.vision_width, grid * grid),
    )
    both = nn.ModuleDict({"tower": tower, "head": head, "place": place})
    places = torch.arange(grid * grid).repeat(recipe.vision_batch)
    total = recipe.vision_steps + recipe.place_steps
    weight = torch.ones(len(OBJECTS) + 1)
    weight[0] = GROUND_WEIGHT
    optimizer = torch.optim.AdamW(
        both.parameters(), lr=recipe.vision_rate, weight_decay=0.02, betas=(0.9, 0.98), fused=True
    )
    start = load(folder / "vision.pt", both, optimizer)
    began = time.time()
    for step in range(start, total):
        draw = np.random.default_rng((recipe.seed, 1, step))
        zoomed = draw.random(recipe.vision_batch) < recipe.zoomed_share
        rows = np.sort(2 * draw.integers(0, recipe.scenes, recipe.vision_batch) + zoomed)
        images = normalize_pixels(np.ascontiguousarray(pixels[rows]))
        labels = torch.from_numpy(covers[rows].astype(np.int64))
        if draw.random() < 0.5:
            images, labels = images.flip(-1), labels.flip(-1)
        for group in optimizer.param_groups:
            if step < recipe.vision_steps:
                group["lr"] = learning_rate(step, recipe.vision_steps, recipe.vision_rate)
            else:
                group["lr"] = learning_rate(step - recipe.vision_steps, recipe.place_steps, recipe.vision_rate / 2)
        features = patch_features(tower, images)
        logits = head(features)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=weight)
        if step >= recipe.vision_steps:
            told = functional.cross_entropy(place(features).flatten(0, 1), places)
            loss = loss + recipe.place_weight * told
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(both.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0 or step == total - 1:
            there = labels.flatten() > 0
            right = (logits.flatten(0, 1).argmax(-1) == labels.flatten())[there].float().mean()
            pace = (step + 1 - start) * recipe.vision_batch / (time.time() - began)
            log.write(stage="vision", step=step, loss=loss.item(), patches_right=right.item(), samples_per_second=pace)
        if step % 500 == 499:
            save(folder / "vision.pt", both, optimizer, step + 1)
    save(folder / "vision.pt", both, optimizer, total)
    return head
