"""Joint training of projector and decoder on descriptions and questions, packed after one image.

Every exchange of a sample attends to the image and to itself, never to its neighbors, at the positions it would have
alone, so that packing changes the cost and nothing else.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from airvlm.tiny import grammar
from experiments.train.tiny.checkpoint import Log, load, save
from experiments.train.tiny.data import View
from experiments.train.tiny.questions import absent_object, other_question
from experiments.train.tiny.recipe import Recipe
from experiments.train.tiny.vision import learning_rate

POOL = 8  # steps whose samples are drawn together, so that each batch takes samples of one length


@dataclass
class Packed:
    ids: list[int]
    segments: list[int]  # 0 for the image's prefix, k for the k-th exchange
    positions: list[int]
    weights: list[float]  # weight of predicting this token; 0 for tokens of the prompt
    probes: list[tuple[int, float]]  # index of the word of the object in question, and whether it is present


class Packer:
    """Makes samples from views, with the tokenizer and the shares of the recipe."""

    def __init__(self, recipe: Recipe, processor: LlavaProcessor) -> None:
        self.recipe = recipe
        self.words = processor.tokenizer
        self.image = self.words.convert_tokens_to_ids("<image>")
        self.patches = (recipe.image_side // recipe.patch) ** 2
        before = self.words("USER: ").input_ids
        self.prefix = [*before, *[self.image] * self.patches]
        self.image = slice(len(before), len(before) + self.patches)

    def exchanges(self, view: View, draw: random.Random, questioned: bool) -> list[grammar.Exchange]:
        scene = view.scene
        said = [grammar.Exchange(grammar.DESCRIBE, grammar.description(scene, draw), "describe") for _ in range(2)]
        said += [other_question(scene, draw) for _ in range(2)]
        for _ in range(10 if questioned else 0):
            if draw.random() < 0.5:
                said.append(grammar.existence_question(draw.choice(scene.names), True, draw))
            else:
                said.append(grammar.existence_question(absent_object(scene, draw, view.unsure), False, draw))
        return said

    def pack(self, exchanges: list[grammar.Exchange]) -> Packed:
        n = len(self.prefix)
        out = Packed(list(self.prefix), [0] * n, list(range(n)), [0.0] * n, [])
        for k, exchange in enumerate(exchanges, 1):
            asked = self.words(f"\n{exchange.question} ASSISTANT:").input_ids
            told = self.words(f" {exchange.answer}</s>").input_ids
            if exchange.kind == "existence":
                upto = exchange.question[: exchange.question.index(exchange.subject) + len(exchange.subject)]
                word = len(out.ids) + len(self.words(f"\n{upto}").input_ids) - 1
                out.probes.append((word, float(exchange.answer == "Yes")))
            closed = exchange.answer in ("Yes", "No")
            out.ids += asked + told
            out.segments += [k] * (len(asked) + len(told))
            out.positions += range(n, n + len(asked) + len(told))
            out.weights += [0.0] * len(asked) + [self.recipe.answer_weight if closed else 1.0] * len(told)
        return out


class Batch(NamedTuple):
    picks: list[int]  # indices of views
    samples: list[Packed]  # what is packed after each
    weight: float  # average weight of such a batch: a token counts the same in short and in long samples


def draw_batches(recipe: Recipe, packer: Packer, views: list[View], number: int) -> list[Batch]:
    """The batches of steps ``number * POOL`` and following."""
    draw = random.Random(f"airvlm joint {recipe.seed} {number}")
    batches = []
    questioned = [draw.random() < recipe.questioned_share for _ in range(POOL)]
    for asked in (True, False):
        size = recipe.joint_batch // 2 if asked else recipe.joint_batch
        samples = []
        for _ in range(size * questioned.count(asked)):
            pick = 2 * draw.randrange(recipe.scenes) + (draw.random() < recipe.joint_zoomed_share)
            samples.append((pick, packer.pack(packer.exchanges(views[pick], draw, asked))))
        samples.sort(key=lambda sample: len(sample[1].ids))
        weight = sum(sum(packed.weights) for _, packed in samples) / max(1, questioned.count(asked))
        for k in range(0, len(samples), size):
            picks, packed = zip(*samples[k : k + size], strict=True)
            batches.append(Batch(list(picks), list(packed), weight))
    draw.shuffle(batches)
    return batches


def collate(samples: list[Packed], pad: int) -> dict[str, Tensor]:
    longest = max(len(s.ids) for s in samples)

    def table(name: str, fill: float, dtype: torch.dtype) -> Tensor:
        rows = [getattr(s, name) + [fill] * (longest - len(s.ids)) for s in samples]
        return torch.tensor(rows, dtype=dtype)

    segments = table("segments", -1, torch.long)
    see = (segments[:, None, :] == segments[:, :, None]) | (segments[:, None, :] == 0)
    see &= torch.ones(longest, longest, dtype=torch.bool).tril()
    return {
        "ids": table("ids", pad, torch.long),
        "positions": table("positions", 0, torch.long),
        "weights": table("weights", 0.0, torch.float),
        "mask": torch.where(see, 0.0, torch.finfo(torch.float).min)[:, None],
        "probe_rows": torch.tensor([b for b, s in enumerate(samples) for _ in s.probes], dtype=torch.long),
        "probe_places": torch.tensor([p for s in samples for p, _ in s.probes], dtype=torch.long),
        "probe_truth": torch.tensor([t for s in samples for _, t in s.probes], dtype=torch.float),
    }


def train_joint(
    recipe: Recipe,
    model: LlavaForConditionalGeneration,
    processor: LlavaProcessor,
    features: np.ndarray,
    views: list[View],
    folder: Path,
    log: Log,
) -> None:
    packer = Packer(recipe, processor)
    projector, decoder = model.model.multi_modal_projector, model.model.language_model
    probe = nn.Linear(recipe.width, 1)
    parts = nn.ModuleDict({"projector": projector, "decoder": decoder, "probe": probe})
    optimizer = torch.optim.AdamW(parts.parameters(), weight_decay=0.01, betas=(0.9, 0.98), fused=True)
    start = load(folder / "joint.pt", parts, optimizer)
    batches = draw_batches(recipe, packer, views, start // POOL)
    began, seen, sums = time.time(), 0, torch.zeros(6)
    for step in range(start, recipe.joint_steps):
        if step % POOL == 0:
            batches = draw_batches(recipe, packer, views, step // POOL)
        picks, samples, weight = batches[step % POOL]
        batch = collate(samples, packer.words.pad_token_id)
        z = projector(torch.from_numpy(features[picks]).float())
        embeds = decoder.embed_tokens(batch["ids"])
        embeds = torch.cat([embeds[:, : packer.image.start], z, embeds[:, packer.image.stop :]], dim=1)
        done = decoder(
            inputs_embeds=embeds,
            attention_mask=batch["mask"],
            position_ids=batch["positions"],
            output_hidden_states=True,
            use_cache=False,
        )
        weights = batch["weights"][:, 1:]
        told = weights > 0
        logits = done.last_hidden_state[:, :-1][told] @ decoder.embed_tokens.weight.T
        losses = functional.cross_entropy(logits, batch["ids"][:, 1:][told], reduction="none")
        loss = (losses * weights[told]).sum() / weight
        closed = weights[told] == recipe.answer_weight
        if len(batch["probe_truth"]):
            middle = done.hidden_states[recipe.layers * 2 // 3]
            guess = probe(middle[batch["probe_rows"], batch["probe_places"]]).squeeze(-1)
            loss = loss + recipe.probe_weight * functional.binary_cross_entropy_with_logits(guess, batch["probe_truth"])
            hit = ((guess > 0) == (batch["probe_truth"] > 0.5)).float()
            sums += torch.tensor([0, 0, 0, 0, hit.sum(), len(hit)])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe.joint_steps, recipe.joint_rate, warm=200)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        optimizer.step()
        right = (logits.argmax(-1) == batch["ids"][:, 1:][told])[closed][0::2].float()  # the word, not the end token
        sums += torch.tensor([losses[~closed].sum().item(), (~closed).sum(), right.sum(), len(right), 0, 0])
        seen += len(picks)
        if step % 50 == 49 or step == recipe.joint_steps - 1:
            pace = seen / (time.time() - began)
            a, b, c, d, e, f = sums.tolist()
            log.write(
                stage="joint",
                step=step,
                words=a / max(1, b),
                yes_no_right=c / max(1, d),
                probe_right=e / max(1, f),
                samples_per_second=pace,
            )
            sums.zero_()
        if step % 250 == 249:
            save(folder / "joint.pt", parts, optimizer, step + 1)
    save(folder / "joint.pt", parts, optimizer, recipe.joint_steps)
