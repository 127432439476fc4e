"""Train the upper part of the tower, adapter and projector to recognize objects, from cached stride-16 maps."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlavaForConditionalGeneration

from experiments.train.photo.features import Maps
from experiments.train.photo.labels import Labels
from experiments.train.photo.pooled import PooledNames, mean_average_precision
from experiments.train.photo.recipe import Recipe
from experiments.train.tiny.checkpoint import Log, load, save
from experiments.train.tiny.vision import learning_rate


def draw_rows(
    recipe: Recipe, labels: Labels, whole: Maps, zoom: Maps, draw: random.Random, size: int
) -> list[tuple[int, bool]]:
    """Draw training rows whose maps exist, and whether each is the zoomed view."""
    low, high = labels.train_range(recipe.share)
    high, zoomed = min(high, whole.done), min(zoom.done, high)
    rows = []
    for _ in range(size):
        if zoomed > low and draw.random() < recipe.zoomed_share:
            rows.append((draw.randrange(low, zoomed), True))
        else:
            rows.append((draw.randrange(low, high), False))
    return rows


def cycle_rate(step: int, ends: tuple[int, ...], start: int = 0, warm: int = 100) -> float:
    """The learning rate as a fraction of its peak: up and down in each cycle; later cycles reach three quarters."""
    begins = (start, *ends[:-1])
    begin, end = next(own for own in zip(begins, ends, strict=True) if step < own[1])
    return learning_rate(step - begin, end - begin, 1.0 if begin == start else 0.75, warm)


def is_trainable(name: str) -> bool:
    """Which parameters of the upper part are trained: not its first block, nor depthwise filters.

    These take more than a third of the backward pass and hold few of the weights.
    """
    return not name.startswith("0.") and not name.endswith("depthwise.weight")


def trained_parts(model: LlavaForConditionalGeneration, pooled: PooledNames) -> nn.ModuleDict:
    inner = model.model
    return nn.ModuleDict(
        {
            "upper": inner.vision_tower.upper,
            "adapter": inner.vision_tower.adapter,
            "projector": inner.multi_modal_projector,
            "words": inner.language_model.embed_tokens,
            "pooled": pooled,
        }
    )


def restore_vision(model: LlavaForConditionalGeneration, pooled: PooledNames, folder: Path) -> None:
    """Load what an earlier run of this stage has learned."""
    state = torch.load(folder / "vision.pt", weights_only=True)
    trained_parts(model, pooled).load_state_dict(state["module"])


def train_vision(
    recipe: Recipe,
    model: LlavaForConditionalGeneration,
    pooled: PooledNames,
    labels: Labels,
    whole: Maps,
    zoom: Maps,
    folder: Path,
    log: Log,
) -> None:
    tower, projector = model.model.vision_tower, model.model.multi_modal_projector
    words = model.model.language_model.embed_tokens
    parts = trained_parts(model, pooled)
    fresh = [p for name, p in parts.named_parameters() if not name.startswith("upper")]
    optimizer = torch.optim.AdamW(
        [{"params": fresh}, {"params": list(tower.upper.parameters())}], weight_decay=0.02, fused=True
    )
    start = load(folder / "vision.pt", parts, optimizer)
    tower.to(memory_format=torch.channels_last)  # twice as fast backwards
    losses = []
    for step in range(start, recipe.vision_ends[-1]):
        draw = random.Random(f"airvlm photo vision {recipe.seed} {step}")
        rows = draw_rows(recipe, labels, whole, zoom, draw, recipe.vision_batch)
        rows.sort(key=lambda row: row[1])
        plain, zoomed = ([r for r, z in rows if z is kind] for kind in (False, True))
        kept = torch.cat([view.read(np.array(own)) for view, own in ((whole, plain), (zoom, zoomed)) if own])
        truth = torch.from_numpy(labels.present[plain + zoomed]).float()
        moving = step >= recipe.upper_from
        for name, parameter in tower.upper.named_parameters():
            parameter.requires_grad_(moving and is_trainable(name))
        rate, late = cycle_rate(step, recipe.vision_ends), cycle_rate(step, recipe.vision_ends, recipe.upper_from)
        optimizer.param_groups[0]["lr"] = recipe.vision_rate * rate
        optimizer.param_groups[1]["lr"] = recipe.upper_rate * late if moving else 0.0
        logits = pooled(projector(tower.tokens(kept.to(memory_format=torch.channels_last))), words.weight)
        loss = F.binary_cross_entropy_with_logits(logits, truth, reduction="sum") / len(truth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 25 == 24:
            log.write(stage="vision", step=step, loss=float(np.mean(losses)))
            losses.clear()
        if step % 200 == 199 or step == recipe.vision_ends[-1] - 1:
            save(folder / "vision.pt", parts, optimizer, step + 1)
            log.write(stage="vision-map", step=step, mAP=score(model, pooled, labels, whole))


@torch.no_grad()
def score(model: LlavaForConditionalGeneration, pooled: PooledNames, labels: Labels, whole: Maps) -> float:
    """Mean average precision on the validation photographs."""
    rows, inner = np.array(labels.splits["validation"]), model.model
    scores = [
        pooled(
            inner.multi_modal_projector(inner.vision_tower.tokens(whole.read(rows[k : k + 50]))),
            inner.language_model.embed_tokens.weight,
        ).numpy()
        for k in range(0, len(rows), 50)
    ]
    return mean_average_precision(np.concatenate(scores), labels.present[rows])
