"""Teach the language model to read visual tokens: a LoRA, and later the projector.

    python -m experiments.train.smol.tune FEATURES OBJECTS LANGUAGE_MODEL OUT --real SHARE [--resume] [...]

Oracle tokens are soft words whose weights were corrected by the labels: what is there has a patch that says so, what is
not there has none. Several processes share a step's batch if torch's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are
set. Real tokens are the projector's. `--real 0` is the stage "words", `--real 0.8` the stage "photos".
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM

from airvlm.smol.assembly import TrainedPart
from experiments.train.photo.grammar import DESCRIBING, World, description, existence, join_nouns, other_question
from experiments.train.smol.data import WIDTH, Photos
from experiments.train.smol.sequences import Exchange, Packed, Packer, choose_patches
from experiments.train.smol.soft_words import Words, load_patch_head, soft_weights

LORA_RANK, LORA_ALPHA = 16, 32
OTHERS = 0.2  # of the questions that are answered with text: those that ask for no description
NUMBERS = ("None", "One", "Two", "Three")
SEEN, UNSEEN = (0.35, 0.9), (0.0, 0.3)  # peak weights of present and of absent objects in oracle tokens


def predict(decoder: nn.Module, embeddings: Tensor, packed: Packed, visual: Tensor) -> Tensor:
    """Logits (S, vocabulary) at the places of a packed sequence, given its visual tokens (V, width)."""
    embeds = nn.functional.embedding(packed.ids, embeddings)
    if len(packed.visual):
        embeds = embeds.index_copy(0, packed.visual, visual.to(embeds.dtype))
    mask = torch.zeros(packed.mask.shape, dtype=embeds.dtype).masked_fill(~packed.mask, float("-inf"))[None, None]
    hidden = decoder(
        inputs_embeds=embeds[None], attention_mask=mask, position_ids=packed.positions[None], use_cache=False
    ).last_hidden_state[0]
    return (hidden[packed.places] @ embeddings.T).float()


class Reader(nn.Module):
    """Projector and language model: visual features and packed sequences -> logits where something is predicted."""

    def __init__(self, language_model: LlamaForCausalLM) -> None:
        super().__init__()
        width = language_model.config.hidden_size
        self.linear_1, self.linear_2 = nn.Linear(WIDTH, width), nn.Linear(width, width)
        self.embeddings = language_model.get_input_embeddings().weight.detach()
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
        self.lora = get_peft_model(
            language_model, LoraConfig(r=LORA_RANK, lora_alpha=LORA_ALPHA, target_modules=targets)
        )
        self.decoder = self.lora.base_model.model.model

    def project(self, features: Tensor) -> Tensor:
        return self.linear_2(nn.functional.gelu(self.linear_1(features)))

    def forward(self, packed: Packed, visual: Tensor) -> Tensor:
        return predict(self.decoder, self.embeddings, packed, visual)

    def projector_state(self) -> dict[str, Tensor]:
        layers = (("linear_1", self.linear_1), ("linear_2", self.linear_2))
        return {
            f"{name}.{key}": value.detach().clone()
            for name, layer in layers
            for key, value in layer.state_dict().items()
        }

    def load_projector(self, state: dict[str, Tensor]) -> None:
        self.load_state_dict(state, strict=False)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint of this file, or the trained part of a package, which `export.py` made of one."""
    if path.suffix != ".safetensors":
        kept: dict[str, Any] = torch.load(path, weights_only=True)
        return kept
    trained = TrainedPart.read(path)
    lora = {f"base_model.model.{name[:-2]}.lora_{name[-1]}.weight": t for name, t in trained.under("lora").items()}
    return {"lora": lora, "projector": trained.under("projector"), "seen": 0}


def correct(weights: Tensor, present: Tensor, draw: random.Random, *, exact: bool) -> Tensor:
    """Soft words' weights (P, 80) of a photograph, corrected by its labels (80,); exact ones are 0 or 1."""
    weights = weights.clone()
    if exact:
        weights[:, ~present] = 0
        top, which = weights.max(-1)
        sharp = torch.zeros_like(weights)
        sharp[torch.arange(len(weights)), which] = (top > SEEN[0]).float()
        for k in torch.nonzero(present & (sharp.max(0).values == 0)).flatten().tolist():
            free = sharp.sum(-1) == 0
            sharp[torch.where(free, weights[:, k], -1.0).argmax(), k] = 1.0
        return sharp
    peaks, best = weights.max(0)
    for k in torch.nonzero(present & (peaks < SEEN[0])).flatten().tolist():
        weights[best[k], k] = draw.uniform(*SEEN)
    for k in torch.nonzero(~present & (peaks > 0.05)).flatten().tolist():
        weights[:, k] *= min(1.0, draw.uniform(*UNSEEN) / float(peaks[k]))
    return weights / weights.sum(-1, keepdim=True).clamp_min(1.0)


def count_question(names: list[str], world: World, draw: random.Random) -> Exchange:
    """How many objects of a list are there: "Two: a dog and a cup."."""
    there = draw.sample(names, min(len(names), draw.randint(0, 3)))
    listed = dict.fromkeys(there, True)
    while len(listed) < 4:
        listed.setdefault(world.absent(names, draw), False)
    order = draw.sample(list(listed), 4)
    found = [name for name in order if listed[name]]
    question = f"How many of these objects are in the image: {join_nouns(order)}?"
    return Exchange(question, f"{NUMBERS[len(found)]}{': ' + join_nouns(found) if found else ''}.", "text")


class Questions:
    """What is asked about a photograph, and what is right."""

    def __init__(self, photos: Photos, out: Path) -> None:
        self.photos = photos
        self.world = World.of(photos.names, photos.present[photos.first_train :])
        self.written: dict[str, list[str]] = {}
        self.talk: list[Exchange] = []
        if (out / "written.jsonl").exists():
            for line in (out / "written.jsonl").read_text().splitlines():
                row = json.loads(line)
                self.written.setdefault(row["stem"], []).append(row["text"])
        if (out / "talk.json").exists():
            told = json.loads((out / "talk.json").read_text())
            self.talk = [Exchange(t["question"], t["answer"], "talk", t["finished"]) for t in told]

    def names(self, row: int) -> list[str]:
        return [self.photos.names[k] for k in np.flatnonzero(self.photos.present[row])]

    def yes_no(self, row: int, count: int, draw: random.Random, ends: float = 0.2) -> list[Exchange]:
        """Half of them about objects that are there, each object at most once."""
        names = self.names(row)
        asked: dict[str, bool] = dict.fromkeys(draw.sample(names, min(len(names), count // 2)), True)
        size = min(count, 2 * len(asked) + 1)
        while len(asked) < size:
            asked.setdefault(self.world.absent(names, draw), False)
        made = [existence(name, there, draw) for name, there in asked.items()]
        return [Exchange(e.question, e.answer, "yesno", draw.random() < ends) for e in made]

    def texts(self, row: int, draw: random.Random) -> list[Exchange]:
        """A description or, less often, another question that is answered with names."""
        names = self.names(row)
        if draw.random() < OTHERS:
            ask_other = count_question if draw.random() < 0.3 else other_question
            other = ask_other(names, self.world, draw)
            return [Exchange(other.question, other.answer, "text")]
        own = self.written.get(self.photos.stems[row])
        text = draw.choice(own) if own and draw.random() < 0.9 else description(names, draw)
        ask = DESCRIBING[0] if draw.random() < 0.75 else draw.choice(DESCRIBING)
        return [Exchange(ask, text, "text")]


def area_under_curve(margins: Tensor, truth: Tensor) -> float:
    """The chance that a question whose answer is yes has the larger margin of yes over no."""
    ranks = margins.argsort().argsort().double() + 1
    positive, negative = int(truth.sum()), int((~truth).sum())
    if not positive or not negative:
        return float("nan")
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * negative))


@torch.no_grad()
def watch(reader: Reader, packer: Packer, questions: Questions, rows: list[int], shift: int = 0) -> dict[str, float]:
    """Yes/no questions on photographs not trained on, all patches shown; `shift` shows another photograph's."""
    draw, margins, truth = random.Random(0), [], []
    for place, row in enumerate(rows):
        asked = questions.yes_no(row, 8, draw, ends=0.0)
        features = questions.photos.read([rows[(place + shift) % len(rows)]])[0]
        packed = packer.pack(asked, range(len(features)))
        logits = reader(packed, reader.project(features))
        margins.append(logits[:, packer.yes] - logits[:, packer.no])
        truth += [exchange.answer == "Yes" for exchange in asked]
    margin, right = torch.cat(margins), torch.tensor(truth)
    return {
        "auc": area_under_curve(margin, right),
        "right": float(((margin > 0) == right).float().mean()),
        "yes": float((margin > 0).float().mean()),
        "n": len(truth),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("features", "objects", "language_model", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--stage", default="words", help="name of the checkpoint and in the log")
    parser.add_argument("--start", type=Path, default=None, help="checkpoint of the stage before")
    parser.add_argument("--real", type=float, default=0.0, help="share of sequences with real visual tokens")
    parser.add_argument("--exact", type=float, default=0.0, help="share of oracle sequences with exact words")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=1e9, help="end by then, the rate's decay included")
    parser.add_argument("--batch", type=int, default=4, help="photographs per step")
    parser.add_argument("--asked", type=int, default=8, help="yes/no questions per photograph")
    parser.add_argument("--texts", type=float, default=0.4, help="share of photographs with a description")
    parser.add_argument("--written", type=float, default=0.12, help="share of photographs with a text of writing.py")
    parser.add_argument("--talk", type=float, default=0.05, help="share of sequences without a photograph")
    parser.add_argument("--patches", type=int, default=24, help="patches shown, those with the most evidence")
    parser.add_argument("--all-patches", type=float, default=0.0, help="share of sequences that show all patches")
    parser.add_argument("--rate", type=float, default=4e-4)
    parser.add_argument("--floor", type=float, default=0.05, help="the rate's share that is left at the end")
    parser.add_argument("--projector-rate", type=float, default=0.0)
    parser.add_argument("--anchor", type=float, default=1.0, help="weight of the distance from the first projector")
    parser.add_argument("--bfloat16", action="store_true", help="compute the language model in bfloat16")
    parser.add_argument("--watch-every", type=int, default=30)
    parser.add_argument("--watched", type=int, default=24, help="validation photographs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, ranks = (int(os.environ.get(name, k)) for k, name in enumerate(("RANK", "WORLD_SIZE")))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    photos = Photos(given.features, given.objects)
    questions = Questions(photos, given.out)
    tokenizer = AutoTokenizer.from_pretrained(given.language_model)
    packer = Packer(tokenizer)
    dtype = torch.bfloat16 if given.bfloat16 else torch.float32
    reader = Reader(LlamaForCausalLM.from_pretrained(given.language_model, dtype=dtype))
    words = Words(photos.names, tokenizer, reader.embeddings.float())
    head = load_patch_head(given.out / "patch_head.pt")
    if (given.out / "soft_words.pt").exists():
        reader.load_projector(torch.load(given.out / "soft_words.pt", weights_only=True)["projector"])
    first = taken = 0
    if given.start:
        kept = read_checkpoint(given.start)
        set_peft_model_state_dict(reader.lora, kept["lora"])
        reader.load_projector(kept["projector"])
        first = kept["seen"]
    anchor = copy.deepcopy(reader.linear_1), copy.deepcopy(reader.linear_2)
    lora = [p for p in reader.lora.parameters() if p.requires_grad]
    projector = [*reader.linear_1.parameters(), *reader.linear_2.parameters()]
    for parameter in projector:
        parameter.requires_grad_(given.projector_rate > 0)
    groups = [{"params": lora, "base": given.rate}]
    if given.projector_rate:
        groups.append({"params": projector, "base": given.projector_rate})
    optimizer = torch.optim.AdamW(groups, lr=given.rate, weight_decay=0.0, betas=(0.9, 0.98))
    draw = random.Random(first * ranks + rank)
    order = [row for row in photos.train if photos.present[row].any()]
    random.Random(7).shuffle(order)
    written = [row for row in order if photos.stems[row] in questions.written]
    log = (given.out / "log.jsonl").open("a")
    began = time.time()
    held_out = [row for row in photos.validation if photos.present[row].any()][: given.watched]

    def share(value: Tensor) -> Tensor:
        """The mean over the processes."""
        if ranks > 1:
            torch.distributed.all_reduce(value)
        return value / ranks

    def write(**values: Any) -> None:
        if rank:
            return
        values = {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}
        log.write(json.dumps({"stage": given.stage, **values}) + "\n")
        log.flush()
        print(json.dumps(values), flush=True)

    def save() -> None:
        if rank:
            return
        state = {"lora": get_peft_model_state_dict(reader.lora), "projector": reader.projector_state()}
        state["seen"] = first + taken * ranks
        part = given.out / f"{given.stage}.part"
        torch.save(state, part)
        part.replace(given.out / f"{given.stage}.pt")

    for step in range(1, given.steps + 1):
        elapsed = share(torch.tensor((time.time() - began) / 60)).item()
        progress = max(step / given.steps, elapsed / given.minutes)
        if progress > 1:
            break
        factor = min(1.0, step / 5) * (given.floor + (1 - given.floor) * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = group["base"] * factor
        sums = {"loss": 0.0, "text": 0.0, "texts": 0, "tokens": 0, "anchor": 0.0}
        margins: dict[str, list[Tensor]] = {"oracle": [], "real": []}
        truths: dict[str, list[Tensor]] = {"oracle": [], "real": []}
        for _ in range(given.batch):
            anchored: Tensor | float = 0.0
            if questions.talk and draw.random() < given.talk:
                packed, kind = packer.pack([draw.choice(questions.talk)], None), "talk"
                visual = torch.zeros(0, reader.embeddings.shape[1])
            else:
                row = order[(first + taken * ranks + rank) % len(order)]
                taken += 1
                with_text = draw.random() < given.texts
                if written and draw.random() < given.written:
                    row = draw.choice(written)
                elif with_text and photos.present[row].sum() < 3:
                    # short descriptions are easy and many: they would teach the model to end early
                    row = order[(first + taken * ranks + rank) % len(order)]
                    taken += 1
                features = photos.read([row])[0]
                with torch.no_grad():
                    weights = soft_weights(head(features))
                kind = "real" if draw.random() < given.real else "oracle"
                if kind == "oracle":
                    weights = correct(
                        weights, torch.from_numpy(photos.present[row]), draw, exact=draw.random() < given.exact
                    )
                count = len(features) if draw.random() < given.all_patches else given.patches
                shown = choose_patches(weights, count, draw)
                visual = words.mix(weights[shown]) if kind == "oracle" else reader.project(features[shown])
                if kind == "real" and given.projector_rate:
                    with torch.no_grad():
                        wanted = anchor[1](nn.functional.gelu(anchor[0](features[shown])))
                    anchored = (visual - wanted).square().sum(-1).mean()
                own = questions.yes_no(row, given.asked, draw)
                own += questions.texts(row, draw) if with_text else []
                packed = packer.pack(own, shown)
            logits = reader(packed, visual)
            losses = nn.functional.cross_entropy(logits, packed.targets, reduction="none")
            loss = (losses * packed.weights).sum() / packed.weights.sum() + given.anchor * anchored
            (loss / given.batch).backward()
            sums["loss"] += loss.item()
            sums["anchor"] += float(torch.as_tensor(anchored).detach())
            sums["tokens"] += len(packed.ids)
            if (told := packed.weights[~packed.is_yesno] > 0.1 + 1e-6).any() or kind == "talk":
                sums["text"] += losses[~packed.is_yesno][told].mean().item() if told.any() else 0.0
                sums["texts"] += 1
            if packed.is_yesno.any():
                at = logits.detach()[packed.is_yesno]
                margins[kind].append(at[:, packer.yes] - at[:, packer.no])
                truths[kind].append(packed.targets[packed.is_yesno] == packer.yes)
        if ranks > 1:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                parameter.grad = share(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        # each group on its own: the projector's gradient is ten times as long
        norm, *_ = [nn.utils.clip_grad_norm_(group["params"], 1.0) for group in optimizer.param_groups]
        optimizer.step()
        optimizer.zero_grad()
        found: dict[str, Any] = {"step": step, "seen": first + taken * ranks, "minutes": (time.time() - began) / 60}
        found |= {"loss": sums["loss"] / given.batch, "norm": float(norm)}
        found |= {"text": sums["text"] / max(1, sums["texts"]), "texts": sums["texts"]}
        found |= {"tokens": sums["tokens"], "anchor": sums["anchor"] / given.batch}
        for kind in margins:
            if margins[kind]:
                margin, right = torch.cat(margins[kind]), torch.cat(truths[kind])
                found |= {f"{kind} right": float(((margin > 0) == right).float().mean())}
                found |= {f"{kind} auc": area_under_curve(margin, right)}
        write(**found)
        if step % given.watch_every == 0 and not rank:
            write(step=step, sighted=watch(reader, packer, questions, held_out))
        if step % 5 == 0:
            save()
    save()
    if rank:
        return
    write(step=step, sighted=watch(reader, packer, questions, held_out))
    write(step=step, blind=watch(reader, packer, questions, held_out, shift=5))


if __name__ == "__main__":
    main()
