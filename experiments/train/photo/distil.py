"""Trial: train a plain CLIP tower to give the tokens of our tower, so that transformers' own class could replace it.

It would replace the EfficientNet tower if its tokens named the objects nearly as well; README.md has the result. It
starts from random weights, since no trained CLIP tower is small enough. An interrupted run is resumed.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import CLIPVisionConfig, CLIPVisionModel, LlavaForConditionalGeneration

from experiments.train.photo.features import read_whole
from experiments.train.photo.labels import Labels
from experiments.train.photo.pooled import PooledNames, mean_average_precision
from experiments.train.photo.recipe import Recipe
from experiments.train.tiny.checkpoint import Log, load, save
from experiments.train.tiny.vision import learning_rate, patch_features

WIDTH = 192
BATCH = 32
RATE = 1e-3
NAMED = 0.05  # weight of the loss on object names, relative to that on the tokens
SCORED = 250  # steps between two scores


class Student(nn.Module):
    """A CLIP tower and a linear map to the teacher's tokens, which the projector's first layer could absorb."""

    def __init__(self, recipe: Recipe, some: Tensor) -> None:
        """`some` are tokens of the teacher (B, N, vision_width), whose mean and scale are copied."""
        super().__init__()
        sizes = {"hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_attention_heads": 6}
        pixels = {"image_size": recipe.image_side, "patch_size": recipe.patch}
        self.tower = CLIPVisionModel(CLIPVisionConfig(num_hidden_layers=6, **sizes, **pixels))
        self.to_tokens = nn.Linear(WIDTH, recipe.vision_width)
        self.register_buffer("mean", some.mean((0, 1)))
        self.register_buffer("std", some.std((0, 1)))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) -> tokens (B, N, vision_width)."""
        return self.to_tokens(patch_features(self.tower, pixels)) * self.std + self.mean


def distil(
    recipe: Recipe,
    model: LlavaForConditionalGeneration,
    pooled: PooledNames,
    labels: Labels,
    tokens: np.ndarray,  # the teacher's (photographs, N, vision_width), of whole photographs
    photos: Path,
    folder: Path,
    log: Log,
) -> None:
    """Train the student and log its mean average precision beside the teacher's."""
    model.requires_grad_(False)
    pooled.requires_grad_(False)

    def names(given: Tensor) -> Tensor:
        projected = model.model.multi_modal_projector(given)
        return pooled(projected, model.model.language_model.embed_tokens.weight)

    def pixels(rows: list[int]) -> Tensor:
        images = [read_whole(photos / f"{labels.stems[row]}.jpg", recipe.image_side) for row in rows]
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 127.5 - 1

    def teacher(rows: list[int]) -> Tensor:
        return torch.from_numpy(tokens[rows].astype(np.float32))

    @torch.no_grad()
    def score(student: Student | None) -> float:
        """Mean average precision on the validation photographs; without a student the teacher's own."""
        rows = list(labels.splits["validation"])
        parts = [rows[k : k + 50] for k in range(0, len(rows), 50)]
        given = (teacher(own) if student is None else student(pixels(own)) for own in parts)
        scores = np.concatenate([names(some).numpy() for some in given])
        return mean_average_precision(scores, labels.present[rows])

    low, high = labels.train_range(recipe.share)
    torch.manual_seed(recipe.seed)
    student = Student(recipe, teacher(list(range(low, low + 512))))
    optimizer = torch.optim.AdamW(student.parameters(), weight_decay=0.05, fused=True)
    start = load(folder / "distil.pt", student, optimizer)
    if not start:
        log.write(stage="distil-teacher", mAP=score(None))

    def draw_batch(step: int) -> tuple[list[int], Tensor]:
        rows = random.Random(f"airvlm distil {recipe.seed} {step}").sample(range(low, high), BATCH)
        return rows, pixels(rows)

    losses = []
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(draw_batch, start)
        for step in range(start, recipe.distil_steps):
            rows, images = coming.result()
            coming = ahead.submit(draw_batch, step + 1)
            optimizer.param_groups[0]["lr"] = learning_rate(step, recipe.distil_steps, RATE)
            given, truth = student(images), torch.from_numpy(labels.present[rows]).float()
            distance = (((given - teacher(rows)) / student.std) ** 2).mean()
            named = F.binary_cross_entropy_with_logits(names(given), truth, reduction="sum") / BATCH
            optimizer.zero_grad()
            (distance + NAMED * named).backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            losses.append((distance.item(), named.item()))
            if step % SCORED == SCORED - 1 or step == recipe.distil_steps - 1:
                save(folder / "distil.pt", student, optimizer, step + 1)
                tokens_lost, names_lost = np.mean(losses, axis=0)
                losses.clear()
                student.eval()
                log.write(stage="distil", step=step + 1, tokens=tokens_lost, names=names_lost, mAP=score(student))
                student.train()
