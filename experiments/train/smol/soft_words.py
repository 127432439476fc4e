"""Visual tokens that look like words: the projector learns to write what each patch shows as word embeddings.

    python -m experiments.train.smol.soft_words FEATURES OBJECTS LANGUAGE_MODEL OUT [--steps N]

The target of a patch is a mixture of the language model's embeddings of the objects' names, weighted by the patch
head's evidence; what is left is the embedding of " nothing". The loss is the squared error of the embedding and that of
the weights read back from it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from experiments.train.smol.data import WIDTH, Photos, mean_average_precision, note
from experiments.train.smol.patch_head import PatchHead

SHIFT = 2.0  # added to the log-odds: noisy-or spreads the evidence for one object over many patches
PATCHES_PER_PHOTO = 50


class Words:
    """Embeddings of the objects' names (mean over a name's tokens) and of " nothing"."""

    def __init__(self, names: list[str], tokenizer: PreTrainedTokenizerBase, embeddings: Tensor) -> None:
        self.names = names
        self.objects = torch.stack([embeddings[tokenizer(f" {name}")["input_ids"]].mean(0) for name in names])
        self.nothing = embeddings[tokenizer(" nothing")["input_ids"]].mean(0)
        self._inverse = torch.linalg.pinv(self.objects - self.nothing)

    def mix(self, weights: Tensor) -> Tensor:
        """Weights (..., 80) of the objects -> tokens (..., 576); the weights of a token sum to at most 1."""
        return self.nothing + weights @ (self.objects - self.nothing)

    def read(self, tokens: Tensor) -> Tensor:
        """Tokens (..., 576) -> the weights (..., 80) that explain them best."""
        return (tokens - self.nothing) @ self._inverse


def soft_weights(evidence: Tensor) -> Tensor:
    """Log-odds (..., 80) of the patch head -> weights of a mixture."""
    weights = torch.sigmoid(evidence + SHIFT)
    return weights / weights.sum(-1, keepdim=True).clamp_min(1.0)


def load_patch_head(path: Path) -> PatchHead:
    kept = torch.load(path, weights_only=True)
    head = PatchHead(len(kept["names"]))
    head.load_state_dict(kept["head"])
    return head.eval().requires_grad_(False)


def fold_scaling(layer: nn.Linear, mean: Tensor, std: Tensor) -> None:
    """Let a layer trained on standardized features take them as they are."""
    with torch.no_grad():
        layer.weight /= std
        layer.bias -= layer.weight @ mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("features", "objects", "language_model", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2e-3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    photos = Photos(given.features, given.objects)
    draw = np.random.default_rng(0)
    embeddings = LlamaForCausalLM.from_pretrained(given.language_model).get_input_embeddings().weight.detach()
    words = Words(photos.names, AutoTokenizer.from_pretrained(given.language_model), embeddings)
    head = load_patch_head(given.out / "patch_head.pt")
    width = embeddings.shape[1]
    projector = nn.Sequential(nn.Linear(WIDTH, width), nn.GELU(), nn.Linear(width, width))
    with torch.no_grad():
        projector[2].weight *= 0.1
        projector[2].bias.copy_(words.nothing)
    sample = photos.read(draw.integers(photos.train.start, photos.train.stop, 200)).flatten(0, 1)
    mean, std = sample.mean(0), sample.std(0)
    optimizer = torch.optim.AdamW(projector.parameters(), lr=given.rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, given.rate, given.steps, pct_start=0.1)
    held_out = list(photos.validation)
    truth = photos.labels(held_out)
    began = time.time()

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        found, kept, error, spread = [], [], 0.0, 0.0
        for first in range(0, len(held_out), 50):
            features = photos.read(held_out[first : first + 50])
            wanted = soft_weights(head(features))
            got = words.read(projector((features - mean) / std))
            found.append(got.clamp_min(0).square().sum(1))
            kept.append(wanted.square().sum(1))
            error += (got - wanted).square().sum().item()
            spread += (wanted - wanted.mean((0, 1))).square().sum().item()
        return {
            "mAP": mean_average_precision(torch.cat(found), truth),
            "mAP of the targets": mean_average_precision(torch.cat(kept), truth),
            "explained": 1 - error / spread,
        }

    for step in range(1, given.steps + 1):
        features = photos.read(draw.integers(photos.train.start, photos.train.stop, given.batch))
        features = features[:, torch.randperm(features.shape[1])[:PATCHES_PER_PHOTO]].flatten(0, 1)
        with torch.no_grad():
            wanted = soft_weights(head(features))
        tokens = projector((features - mean) / std)
        in_words = (words.read(tokens) - wanted).square().sum(-1).mean()
        in_space = (tokens - words.mix(wanted)).square().sum(-1).mean()
        loss = in_space + 4 * in_words
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == given.steps:
            found = {"step": step, "words": in_words.item(), "space": in_space.item()}
            if step % 100 == 0 or step == given.steps:
                found |= evaluate()
            note(given.out, "soft words", **found, minutes=(time.time() - began) / 60)
    fold_scaling(projector[0], mean, std)
    state = {
        f"linear_{k + 1}.{part}": getattr(projector[2 * k], part).detach()
        for k in (0, 1)
        for part in ("weight", "bias")
    }
    torch.save({"projector": state}, given.out / "soft_words.pt")


if __name__ == "__main__":
    main()
