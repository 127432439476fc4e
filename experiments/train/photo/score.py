"""Score a model on cached visual tokens: POPE's questions and descriptions, also with another photograph's tokens.

These are quick figures during training; those of the model card come from ``airvlm evaluate``, from pixels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from airvlm.tasks.words.objects import find_mentions
from experiments.train.photo.grammar import DESCRIBE, Exchange
from experiments.train.photo.joint import Packer, run_decoder
from experiments.train.photo.labels import Labels
from experiments.train.photo.objects import read_image_id
from experiments.train.tiny.joint import collate

Question = tuple[int, str, bool]  # row of the photograph, question, whether yes is right


def read_questions(path: Path, labels: Labels) -> list[Question]:
    """POPE's own questions about the photographs of the split `pope`."""
    places = {int(labels.stems[row]): row for row in labels.splits["pope"]}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    numbered = [(read_image_id(row), row) for row in rows]
    return [(places[n], row["text"], row["label"] == "yes") for n, row in numbered if n in places]


@torch.no_grad()
def answer_accuracy(
    model: LlavaForConditionalGeneration,
    packer: Packer,
    tokens: np.ndarray,
    asked: Sequence[Question],
    shift: int = 0,
) -> tuple[float, float]:
    """Accuracy and rate of yes, in percent; with ``shift`` each question gets the tokens of another photograph."""
    by_row: dict[int, list[tuple[str, bool]]] = {}
    for row, text, truth in asked:
        by_row.setdefault(row, []).append((text, truth))
    rows, right, yes = sorted(by_row), 0, 0
    said_yes, said_no = (packer.ids(f" {word}</s>")[0] for word in ("Yes", "No"))
    for k in range(0, len(rows), 16):
        own = rows[k : k + 16]
        samples = [packer.pack([Exchange(t, "Yes" if y else "No", "existence") for t, y in by_row[r]]) for r in own]
        batch = collate(samples, packer.words.pad_token_id)
        shown = [rows[(rows.index(r) + shift) % len(rows)] for r in own]
        z = model.model.multi_modal_projector(torch.from_numpy(tokens[shown]).float())
        logits = run_decoder(model, packer, z, batch)[:, :-1] @ model.model.language_model.embed_tokens.weight.T
        target = batch["ids"][:, 1:]
        here = (batch["weights"][:, 1:] > 0) & ((target == said_yes) | (target == said_no))
        said = logits[here].argmax(-1)
        right += int((said == target[here]).sum())
        yes += int((said == said_yes).sum())
    return 100 * right / len(asked), 100 * yes / len(asked)


@torch.no_grad()
def describe(model: LlavaForConditionalGeneration, packer: Packer, tokens: np.ndarray, new: int = 64) -> list[str]:
    """Greedy descriptions from visual tokens (photographs, N, vision_width)."""
    words, decoder = packer.words, model.model.language_model
    ids = torch.tensor([[*packer.prefix, *packer.ids(f"\n{DESCRIBE} ASSISTANT:")]])
    told = []
    for k in range(0, len(tokens), 64):
        z = model.model.multi_modal_projector(torch.from_numpy(tokens[k : k + 64]).float())
        embeds = decoder.embed_tokens(ids).expand(len(z), -1, -1).clone()
        embeds[:, packer.image] = z
        done: Tensor = model.generate(
            inputs_embeds=embeds,
            attention_mask=torch.ones(embeds.shape[:2]),
            max_new_tokens=new,
            do_sample=False,
        )
        told += words.batch_decode(done, skip_special_tokens=True)
    return told


def score_chair(texts: Sequence[str], truths: Sequence[set[str]]) -> dict[str, float]:
    """CHAIR_S, CHAIR_I and recall, in percent."""
    wrong_texts = wrong = named = found = there = 0
    for text, truth in zip(texts, truths, strict=True):
        said = [m.category for m in find_mentions(text)]
        false = [c for c in said if c not in truth]
        wrong_texts += bool(false)
        wrong += len(false)
        named += len(said)
        found += len(truth.intersection(said))
        there += len(truth)
    return {
        "CHAIR_S": 100 * wrong_texts / len(texts),
        "CHAIR_I": 100 * wrong / max(1, named),
        "recall": 100 * found / max(1, there),
    }


def score(
    model: LlavaForConditionalGeneration,
    packer: Packer,
    labels: Labels,
    tokens: np.ndarray,
    pope: Sequence[Path],
    n: int,
) -> dict[str, float]:
    model.eval()
    found: dict[str, float] = {}
    for path in sorted(pope):
        asked = read_questions(path, labels)
        name = path.stem.split("_")[-1]
        found[f"POPE {name}"], found[f"yes {name}"] = answer_accuracy(model, packer, tokens, asked)
        found[f"blind POPE {name}"], _ = answer_accuracy(model, packer, tokens, asked, shift=1)
    rows = np.array(labels.splits["validation"][:n])
    truths = [{labels.names[k] for k in np.flatnonzero(labels.present[r])} for r in rows]
    found |= score_chair(describe(model, packer, tokens[rows]), truths)
    blind = score_chair(describe(model, packer, tokens[np.roll(rows, 1)]), truths)
    found |= {f"blind {name}": value for name, value in blind.items()}
    model.train()
    return {name: round(value, 2) for name, value in found.items()}
