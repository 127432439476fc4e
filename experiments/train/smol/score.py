"""Score a checkpoint on cached features of validation photographs: yes/no questions and descriptions, also blind.

    python -m experiments.train.smol.score FEATURES OBJECTS LANGUAGE_MODEL OUT CHECKPOINT [--asked N] [--described N]

These are quick figures while training goes on; those of the card come from pixels (evaluate.py). Questions are POPE's:
per photograph three objects that are there and three that are not, drawn at random, by frequency, or by co-occurrence.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
from peft import set_peft_model_state_dict
from transformers import AutoTokenizer, LlamaForCausalLM

from airvlm.tiny.grammar import article
from experiments.train.photo.grammar import DESCRIBE, World
from experiments.train.photo.score import score_chair
from experiments.train.smol.data import Photos
from experiments.train.smol.sequences import ASSISTANT, Exchange, Packer
from experiments.train.smol.tune import Reader

SETTINGS = ("random", "popular", "adversarial")


def ask_like_pope(names: list[str], world: World, setting: str, draw: random.Random) -> list[Exchange]:
    """Three objects that are there (or as many as there are), and as many that are not."""
    there = draw.sample(names, min(3, len(names)))
    away = [k for k, name in enumerate(world.names) if name not in names]
    if setting == "random":
        draw.shuffle(away)
    elif setting == "adversarial":
        beside = [sum(world.beside[world.names.index(name)][k] for name in names) for k in range(len(world.names))]
        away.sort(key=lambda k: -beside[k])
    asked = [(name, "Yes") for name in there] + [(world.names[k], "No") for k in away[: len(there)]]
    return [Exchange(f"Is there {article(name)} in the image?", right, "yesno", False) for name, right in asked]


@torch.no_grad()
def answer(reader: Reader, packer: Packer, photos: Photos, rows: list[int], shift: int = 0) -> dict[str, float]:
    """Percent of right answers in the three settings, and of yes."""
    world = World.of(photos.names, photos.present[photos.first_train :])
    right: dict[str, list[bool]] = {setting: [] for setting in SETTINGS}
    yes: list[bool] = []
    for place, row in enumerate(rows):
        names = [photos.names[k] for k in np.flatnonzero(photos.present[row])]
        asked = {setting: ask_like_pope(names, world, setting, random.Random(place)) for setting in SETTINGS}
        every = {e.question: e for own in asked.values() for e in own}
        packed = packer.pack(list(every.values()), range(packer.patches))
        logits = reader(packed, reader.project(photos.read([rows[(place + shift) % len(rows)]])[0]))
        said = dict(zip(every, (logits[:, packer.yes] > logits[:, packer.no]).tolist(), strict=True))
        for setting, own in asked.items():
            right[setting] += [said[e.question] == (e.answer == "Yes") for e in own]
            yes += [said[e.question] for e in own]
    found = {setting: 100 * float(np.mean(own)) for setting, own in right.items()}
    return found | {"yes": 100 * float(np.mean(yes)), "questions per setting": len(right["random"])}


@torch.no_grad()
def describe(
    reader: Reader, packer: Packer, photos: Photos, rows: list[int], shift: int = 0, new: int = 64
) -> list[str]:
    """Greedy descriptions, all patches shown."""
    told = []
    lead, after = packer.encode("<|im_start|>user\n"), packer.encode("\n" + DESCRIBE + ASSISTANT)
    shown = [rows[(place + shift) % len(rows)] for place in range(len(rows))]
    for first in range(0, len(rows), 16):
        visual = reader.project(photos.read(shown[first : first + 16]))
        start, end = (reader.embeddings[ids].expand(len(visual), -1, -1) for ids in (lead, after))
        embeds = torch.cat([start, visual, end], dim=1)
        done = reader.lora.base_model.model.generate(
            inputs_embeds=embeds,
            attention_mask=torch.ones(embeds.shape[:2]),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=2,
            pad_token_id=2,
        )
        told += packer.tokenizer.batch_decode(done, skip_special_tokens=True)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("features", "objects", "language_model", "out", "checkpoint"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--asked", type=int, default=100, help="photographs asked about")
    parser.add_argument("--described", type=int, default=48, help="photographs described")
    given = parser.parse_args()
    torch.set_num_threads(1)
    photos = Photos(given.features, given.objects)
    reader = Reader(LlamaForCausalLM.from_pretrained(given.language_model)).eval()
    kept = torch.load(given.checkpoint, weights_only=True)
    set_peft_model_state_dict(reader.lora, kept["lora"])
    reader.load_projector(kept["projector"])
    reader.lora.merge_adapter()
    packer = Packer(AutoTokenizer.from_pretrained(given.language_model))
    rows = [row for row in photos.validation if photos.present[row].any()]
    found: dict[str, object] = {"stage": f"score {given.checkpoint.stem}", "seen": kept["seen"]}
    for name, shift in (("sighted", 0), ("blind", 7)):
        if given.asked:
            found[f"{name} answers"] = answer(reader, packer, photos, rows[: given.asked], shift)
        if given.described:
            own = rows[: given.described]
            truths = [{photos.names[k] for k in np.flatnonzero(photos.present[row])} for row in own]
            told = describe(reader, packer, photos, own, shift)
            found[f"{name} descriptions"] = score_chair(told, truths)
            if not shift:
                print(*(f"{sorted(truth)} | {text}" for truth, text in zip(truths, told, strict=True)), sep="\n")
    with (given.out / "log.jsonl").open("a") as log:
        log.write(json.dumps(found) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
