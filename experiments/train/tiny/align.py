"""Projector alignment: a patch that shows an object is projected near the embedding of that object's name.

It uses cached features, before the decoder is trained; without it the decoder takes many times as long to learn that
visual tokens mean words.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from airvlm.tiny.world import OBJECTS
from experiments.train.tiny.checkpoint import Log, load, save
from experiments.train.tiny.recipe import Recipe
from experiments.train.tiny.vision import learning_rate, normalize_pixels, patch_features

SHARPNESS = 8.0  # of the softmax over cosines


def cache_features(recipe: Recipe, tower: nn.Module, folder: Path) -> np.ndarray:
    """(V, patches, width) half-precision features of every training view, computed once."""
    path = folder / "features.npy"
    if not path.exists():
        pixels = np.load(folder / "data" / "pixels.npy", mmap_mode="r")
        patches = (recipe.image_side // recipe.patch) ** 2
        fresh = folder / "features.part.npy"
        out = np.lib.format.open_memmap(
            fresh, mode="w+", dtype=np.float16, shape=(len(pixels), patches, recipe.vision_width)
        )
        began = time.time()
        with torch.inference_mode():
            for k in range(0, len(pixels), 256):
                out[k : k + 256] = patch_features(tower, normalize_pixels(pixels[k : k + 256])).half().numpy()
                if k % 12800 == 0:
                    print(f"features of {k} of {len(pixels)} views, {time.time() - began:.0f} s", flush=True)
        out.flush()
        fresh.rename(path)
    return np.load(path, mmap_mode="r")


def name_embeddings(model: LlavaForConditionalGeneration, processor: LlavaProcessor) -> Tensor:
    """(1 + objects, width): row 0 is the background; a name of two words has their mean."""
    table = model.get_input_embeddings().weight.detach()
    rows = [table[processor.tokenizer(" background").input_ids].mean(0)]
    rows += [table[processor.tokenizer(f" {name}").input_ids].mean(0) for name in OBJECTS]
    return torch.stack(rows)


def align(
    recipe: Recipe,
    model: LlavaForConditionalGeneration,
    processor: LlavaProcessor,
    features: np.ndarray,
    folder: Path,
    log: Log,
) -> None:
    covers = np.load(folder / "data" / "covers.npy", mmap_mode="r")
    projector = model.model.multi_modal_projector
    names = name_embeddings(model, processor)
    unit, length = functional.normalize(names, dim=-1), names.norm(dim=-1).mean()
    optimizer = torch.optim.AdamW(projector.parameters(), lr=3e-3)
    weight = torch.ones(len(names))
    weight[0] = 0.4
    for step in range(load(folder / "align.pt", projector, optimizer), recipe.align_steps):
        draw = np.random.default_rng((recipe.seed, 2, step))
        rows = np.sort(draw.integers(0, len(features), 64))
        z = projector(torch.from_numpy(features[rows]).float())
        cosine = functional.normalize(z, dim=-1) @ unit.T
        labels = torch.from_numpy(covers[rows].astype(np.int64)).flatten()
        named = functional.cross_entropy(SHARPNESS * cosine.flatten(0, 1), labels, weight=weight)
        sized = (z.norm(dim=-1) / length).log().square().mean()
        loss = named + sized
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe.align_steps, 3e-3, warm=50)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == recipe.align_steps - 1:
            right = (cosine.flatten(0, 1).argmax(-1) == labels)[labels > 0].float().mean()
            log.write(stage="align", step=step, loss=loss.item(), patches_right=right.item())
    save(folder / "align.pt", projector, optimizer, recipe.align_steps)
