"""Joint training of projector and decoder: a description, a question and yes/no questions per photograph.

They are packed after one photograph and attend only to it and to themselves (``experiments.train.tiny.joint``). The
pooled loss is kept, so that tokens continue to name what their patches show.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from experiments.train.photo import grammar
from experiments.train.photo.features import list_rows
from experiments.train.photo.labels import Labels
from experiments.train.photo.pooled import PooledNames
from experiments.train.photo.recipe import Recipe
from experiments.train.photo.vision import cycle_rate
from experiments.train.tiny.checkpoint import Log, load, save
from experiments.train.tiny.joint import Packed, collate

POOL = 8  # steps whose samples are drawn together, so that each batch takes samples of one length


class Packer:
    """Makes samples from what a photograph shows, with the tokenizer and the shares of the recipe."""

    def __init__(self, recipe: Recipe, processor: LlavaProcessor, world: grammar.World) -> None:
        self.recipe, self.world, self.words = recipe, world, processor.tokenizer
        image = self.words.convert_tokens_to_ids("<image>")
        before = self.words("USER: ").input_ids
        count = recipe.visual_tokens
        self.prefix = [*before, *[image] * count]
        self.image = slice(len(before), len(before) + count)
        self.names = {k for name in world.names for k in self.words(f" {name}").input_ids}
        self.names.add(self.words.eos_token_id)
        self.ids = lru_cache(20_000)(lambda text: tuple(self.words(text).input_ids))

    def exchanges(self, present: np.ndarray, draw: random.Random) -> list[grammar.Exchange]:
        names = [self.world.names[k] for k in np.flatnonzero(present)]
        asked = grammar.DESCRIBE if draw.random() < 0.7 else draw.choice(grammar.DESCRIBING)
        said = [grammar.Exchange(asked, grammar.description(names, draw), "describe")]
        if draw.random() < self.recipe.other_share:
            said.append(grammar.other_question(names, self.world, draw))
        half = self.recipe.questions // 2
        for name in draw.sample(names, min(half, len(names))):
            said.append(grammar.existence(name, True, draw))
            said.append(grammar.existence(self.world.absent(names, draw), False, draw))
        return said

    def weight(self, word: int) -> float:
        return self.recipe.name_weight if word in self.names else 1.0

    def pack(self, exchanges: list[grammar.Exchange]) -> Packed:
        n = len(self.prefix)
        out = Packed(list(self.prefix), [0] * n, list(range(n)), [0.0] * n, [])
        for k, exchange in enumerate(exchanges, 1):
            asked = self.ids(f"\n{exchange.question} ASSISTANT:")
            told = self.ids(f" {exchange.answer}</s>")
            closed = exchange.answer in ("Yes", "No")
            weights = [self.recipe.answer_weight if closed else self.weight(word) for word in told]
            out.ids += [*asked, *told]
            out.segments += [k] * (len(asked) + len(told))
            out.positions += range(n, n + len(asked) + len(told))
            out.weights += [0.0] * len(asked) + weights
        return out


Pick = tuple[int, str]  # row of the photograph, and the view


class Views:
    """The visual tokens of every view, from which samples are drawn."""

    def __init__(self, recipe: Recipe, labels: Labels, tables: Mapping[str, np.ndarray]) -> None:
        self.labels, self.tables = labels, tables
        own = {view: list_rows(recipe, labels, view, labels.splits["train"].start) for view in tables}
        self.rows = {view: range(rows[0], rows[-1] + 1) for view, rows in own.items() if rows}
        shares = {"zoom": recipe.joint_zoomed_share, "stretched": recipe.joint_stretched_share}
        self.shares = {view: share for view, share in shares.items() if view in self.rows}
        self.shares["whole"] = 1 - sum(self.shares.values())

    def draw(self, draw: random.Random) -> Pick:
        [view] = draw.choices([*self.shares], [*self.shares.values()])
        rows = self.rows[view]
        return draw.randrange(rows.start, rows.stop), view

    def tokens(self, picks: list[Pick]) -> Tensor:
        return torch.from_numpy(np.stack([self.tables[view][row] for row, view in picks])).float()

    def present(self, picks: list[Pick]) -> np.ndarray:
        return self.labels.present[[row for row, _ in picks]]


def draw_batches(
    recipe: Recipe, packer: Packer, views: Views, number: int
) -> list[tuple[list[Pick], list[Packed], float]]:
    """The batches of steps ``number * POOL`` and following; the last entry is the weight of an average batch."""
    draw = random.Random(f"airvlm photo joint {recipe.seed} {number}")
    picks = [views.draw(draw) for _ in range(POOL * recipe.joint_batch)]
    samples = [(p, packer.pack(packer.exchanges(views.labels.present[p[0]], draw))) for p in picks]
    samples.sort(key=lambda sample: len(sample[1].ids))
    weight = sum(sum(packed.weights) for _, packed in samples) / POOL
    size = recipe.joint_batch
    batches = []
    for k in range(0, len(samples), size):
        own, packed = zip(*samples[k : k + size], strict=True)
        batches.append((list(own), list(packed), weight))
    draw.shuffle(batches)
    return batches


def run_decoder(model: LlavaForConditionalGeneration, packer: Packer, z: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The decoder's last hidden states of packed samples with the projected visual tokens ``z``."""
    decoder = model.model.language_model
    embeds = decoder.embed_tokens(batch["ids"])
    embeds = torch.cat([embeds[:, : packer.image.start], z, embeds[:, packer.image.stop :]], dim=1)
    done: Tensor = decoder(
        inputs_embeds=embeds, attention_mask=batch["mask"], position_ids=batch["positions"], use_cache=False
    ).last_hidden_state
    return done


def trained_parts(model: LlavaForConditionalGeneration, pooled: PooledNames) -> nn.ModuleDict:
    inner = model.model
    return nn.ModuleDict({"projector": inner.multi_modal_projector, "decoder": inner.language_model, "pooled": pooled})


def build_optimizer(parts: nn.ModuleDict) -> torch.optim.AdamW:
    """Two groups of parameters: the new decoder, and projector and pool, which are already trained."""
    known = [*parts["projector"].parameters(), *parts["pooled"].parameters()]
    groups = [{"params": list(parts["decoder"].parameters())}, {"params": known}]
    return torch.optim.AdamW(groups, weight_decay=0.01, betas=(0.9, 0.98), fused=True)


def restore_joint(model: LlavaForConditionalGeneration, pooled: PooledNames, folder: Path) -> None:
    """Load what an earlier run of this stage has learned."""
    state = torch.load(folder / "joint.pt", weights_only=True)
    trained_parts(model, pooled).load_state_dict(state["module"])


def train_joint(
    recipe: Recipe,
    model: LlavaForConditionalGeneration,
    pooled: PooledNames,
    packer: Packer,
    views: Views,
    folder: Path,
    log: Log,
) -> None:
    projector, decoder = model.model.multi_modal_projector, model.model.language_model
    parts = trained_parts(model, pooled)
    optimizer = build_optimizer(parts)
    start = load(folder / "joint.pt", parts, optimizer)
    model.train()
    batches = draw_batches(recipe, packer, views, start // POOL)
    began, seen, sums = time.time(), 0, torch.zeros(6)
    for step in range(start, recipe.joint_ends[-1]):
        if step % POOL == 0:
            batches = draw_batches(recipe, packer, views, step // POOL)
        picks, samples, weight = batches[step % POOL]
        batch = collate(samples, packer.words.pad_token_id)
        weights = batch["weights"][:, 1:]
        told = weights > 0
        z = projector(views.tokens(picks))
        with torch.autocast("cpu", torch.bfloat16):  # a third faster where the processor has it
            states = run_decoder(model, packer, z, batch)
            logits = states[:, :-1][told] @ decoder.embed_tokens.weight.T
        losses = F.cross_entropy(logits.float(), batch["ids"][:, 1:][told], reduction="none")
        truth = torch.from_numpy(views.present(picks)).float()
        named = F.binary_cross_entropy_with_logits(pooled(z, decoder.embed_tokens.weight), truth, reduction="sum")
        loss = (losses * weights[told]).sum() / weight + recipe.pooled_weight * named / len(truth)
        rate = recipe.joint_rate * cycle_rate(step, recipe.joint_ends, warm=200)
        for group, share in zip(optimizer.param_groups, (1.0, recipe.projector_share), strict=True):
            group["lr"] = rate * share
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        optimizer.step()
        closed = weights[told] == recipe.answer_weight
        right = (logits.argmax(-1) == batch["ids"][:, 1:][told])[closed][0::2]  # the word, not the end token
        sums += torch.tensor(
            [losses[~closed].sum().item(), (~closed).sum(), right.sum(), len(right), named.item(), len(truth)]
        )
        seen += len(picks)
        if step % 50 == 49 or step == recipe.joint_ends[-1] - 1:
            a, b, c, d, e, f = sums.tolist()
            pace = seen / (time.time() - began)
            log.write(stage="joint", step=step, words=a / b, yes_no_right=c / d, pooled=e / f, samples_per_second=pace)
            sums.zero_()
        if step % 200 == 199 or step == recipe.joint_ends[-1] - 1:
            save(folder / "joint.pt", parts, optimizer, step + 1)
