"""What each patch shows: a head on the features of single patches, trained on labels of whole photographs.

    python -m experiments.train.smol.patch_head FEATURES OBJECTS OUT [--steps N]

A photograph shows an object if any of its patches does (noisy-or over patches). Its evidence makes the soft words that
the projector learns first.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from experiments.train.smol.data import WIDTH, Photos, mean_average_precision, note

HIDDEN = 768


class PatchHead(nn.Module):
    """Features of patches (..., 768) -> evidence for each object (..., 80), as log-odds."""

    def __init__(self, objects: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, objects)
        )
        nn.init.constant_(self.layers[-1].bias, -6.0)

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)


def pool(evidence: Tensor) -> Tensor:
    """Log-odds that any patch shows an object: (n, P, C) -> (n, C)."""
    log_none = -nn.functional.softplus(evidence).sum(1)  # log of the product of 1 - p
    return torch.log1p(-log_none.exp().clamp_max(1 - 1e-6)) - log_none


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("features", "objects", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    photos = Photos(given.features, given.objects)
    draw = np.random.default_rng(0)
    head = PatchHead(len(photos.names))
    given.out.mkdir(parents=True, exist_ok=True)
    optimizer = torch.optim.AdamW(head.parameters(), lr=given.rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, given.rate, given.steps, pct_start=0.05)
    held_out = list(photos.validation)
    truth = photos.labels(held_out)
    began = time.time()

    @torch.no_grad()
    def evaluate() -> float:
        head.eval()
        scores = torch.cat([pool(head(photos.read(held_out[i : i + 50]))) for i in range(0, len(held_out), 50)])
        head.train()
        return mean_average_precision(scores, truth)

    for step in range(1, given.steps + 1):
        rows = draw.integers(photos.train.start, photos.train.stop, given.batch)
        features = photos.read(rows)
        loss = nn.functional.binary_cross_entropy_with_logits(pool(head(features)), photos.labels(rows))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == given.steps:
            found = {"step": step, "loss": loss.item(), "mAP": evaluate(), "photos": len(photos.train)}
            note(given.out, "patch head", **found, minutes=(time.time() - began) / 60)
            torch.save({"head": head.state_dict(), "names": photos.names}, given.out / "patch_head.pt")


if __name__ == "__main__":
    main()
