"""Scores from pixels: POPE's own questions and descriptions of test photographs, sighted and blind, and plain text.

    python -m experiments.train.smol.evaluate MODEL PHOTOS OBJECTS OUT [--pope N] [--described N]

MODEL is the assembled folder. All questions on one photograph are asked in one pass, each in a branch of its own behind
the shared visual tokens, which gives the same answers as one conversation per question in a fraction of the time;
`--check N` asks N of them singly through `airvlm.VLM` and compares. An answer counts as greedy decoding gives it: the
most likely first token must be Yes or No. Blind means another photograph's visual tokens. Intervals are 95 % bootstrap
intervals over photographs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

from airvlm import VLM
from experiments.train.photo.grammar import DESCRIBE
from experiments.train.photo.objects import read_image_id
from experiments.train.photo.score import score_chair
from experiments.train.smol.sequences import Exchange, Packer
from experiments.train.smol.tune import predict
from experiments.train.smol.writing import HELD_OUT, prompt

SETTINGS = ("random", "popular", "adversarial")
TALK_TOKENS = 48


def interval(per_photo: Sequence[Any], score: Callable[[list[Any]], float]) -> list[float]:
    """The score over photographs, and its 95 % bootstrap interval."""
    draw = np.random.default_rng(0)
    resampled = [score([per_photo[k] for k in draw.integers(0, len(per_photo), len(per_photo))]) for _ in range(1000)]
    return [round(x, 1) for x in (score(list(per_photo)), *np.quantile(resampled, (0.025, 0.975)))]


@torch.no_grad()
def see(vlm: VLM, path: Path) -> Tensor:
    """Visual tokens (P, width) of a photograph, from its pixels."""
    with Image.open(path) as image:
        pixels = vlm.processor.image_processor(image.convert("RGB"), return_tensors="pt")["pixel_values"]
    features = vlm.model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-2][:, 1:]
    return vlm.model.model.multi_modal_projector(features)[0]


@torch.no_grad()
def answer(vlm: VLM, packer: Packer, visual: Tensor, questions: Sequence[str]) -> list[str]:
    """The most likely first word of each answer."""
    packed = packer.pack([Exchange(q, "Yes", "yesno", False) for q in questions], range(packer.patches))
    decoder = vlm.model.model.language_model
    logits = predict(decoder, decoder.get_input_embeddings().weight, packed, visual)
    return [packer.tokenizer.decode([k], skip_special_tokens=True).strip() for k in logits.argmax(-1).tolist()]


def read_pope(folder: Path) -> dict[str, list[tuple[str, str, bool]]]:
    """{image: [(setting, question, whether yes is right)]}."""
    found: dict[str, list[tuple[str, str, bool]]] = {}
    for setting in SETTINGS:
        for line in (folder / f"coco_pope_{setting}.json").read_text().splitlines():
            row = json.loads(line)
            found.setdefault(f"{read_image_id(row):012d}.jpg", []).append((setting, row["text"], row["label"] == "yes"))
    return found


def pope(
    vlm: VLM, packer: Packer, photos: Path, folder: Path, count: int, note: Callable[[Any], None], *, blind: bool
) -> None:
    """Ask POPE's questions on the first photographs; `note` gets the scores so far, every ten photographs."""
    asked = dict(list(read_pope(folder).items())[:count])
    names, results, odd = list(asked), [], 0
    for place, name in enumerate(names, start=1):
        shown = names[(place + 6) % len(names)] if blind else name
        texts = sorted({question for _, question, _ in asked[name]})
        said = dict(zip(texts, answer(vlm, packer, see(vlm, photos / shown), texts), strict=True))
        odd += sum(word not in ("Yes", "No") for word in said.values())
        results.append([(setting, (said[q] == "Yes") == truth, said[q] == "Yes") for setting, q, truth in asked[name]])
        if place % 10 == 0 or place == len(names):
            note(summarize(results) | {"neither yes nor no": odd})


def summarize(results: list[list[tuple[str, bool, bool]]]) -> dict[str, Any]:
    """Percent of right answers with intervals, and of yes: per photograph (setting, whether right, whether yes)."""

    def right(rows: list[Any], setting: str) -> float:
        return 100 * float(np.mean([ok for own in rows for s, ok, _ in own if s == setting]))

    found: dict[str, Any] = {s: interval(results, lambda rows, s=s: right(rows, s)) for s in SETTINGS}
    found["yes"] = round(100 * float(np.mean([yes for own in results for _, _, yes in own])), 1)
    return found | {"photographs": len(results), "questions": sum(map(len, results))}


@torch.no_grad()
def talk(folder: Path) -> dict[str, str]:
    """What the language model answers before it was trained."""
    model, tokenizer = LlamaForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    said = {}
    for question in HELD_OUT:
        asked = tokenizer(prompt(question), return_tensors="pt")
        done = model.generate(**asked, max_new_tokens=TALK_TOKENS, do_sample=False, eos_token_id=end, pad_token_id=end)
        said[question] = tokenizer.decode(done[0, asked["input_ids"].shape[1] :], skip_special_tokens=True).strip()
    return said


def descriptions(vlm: VLM, photos: Path, truths: dict[str, list[str]], out: Path, blind: bool) -> dict[str, Any]:
    names = list(truths)
    shown = [names[(place + 7) % len(names)] if blind else name for place, name in enumerate(names)]
    requests = [(photos / name, DESCRIBE) for name in shown]
    told = [str(a) for a in vlm.batch(requests, batch_size=16, progress=False, max_new_tokens=64)]
    (out / f"descriptions{'-blind' if blind else ''}.json").write_text(
        json.dumps([{"image": n, "objects": truths[n], "text": t} for n, t in zip(names, told, strict=True)], indent=1)
    )
    pairs = [(text, set(truths[name])) for name, text in zip(names, told, strict=True)]
    score = {
        key: interval(pairs, lambda own, key=key: score_chair([t for t, _ in own], [s for _, s in own])[key])
        for key in ("CHAIR_S", "CHAIR_I", "recall")
    }
    words = float(np.mean([len(text.split()) for text in told]))
    return score | {"photographs": len(names), "words": round(words, 1), "different texts": len(set(told))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "photos", "objects", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--pope", type=int, default=420, help="photographs of POPE")
    parser.add_argument("--blind-pope", type=int, default=420)
    parser.add_argument("--described", type=int, default=300, help="test photographs")
    parser.add_argument("--blind-described", type=int, default=100)
    parser.add_argument("--check", type=int, default=10)
    parser.add_argument("--talk", type=Path, help="the untrained language model: ask both without an image, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    vlm = VLM.load(given.model)
    packer = Packer(vlm.processor.tokenizer, vlm.model.config.image_seq_length)
    folder = given.objects.with_suffix(".pope")
    found: dict[str, Any] = {}
    began = time.time()

    def note(name: str, value: Any) -> None:
        found[name] = value
        (given.out / "scores.json").write_text(json.dumps(found, indent=1))
        print(name, json.dumps(value), f"{(time.time() - began) / 60:.1f} minutes", flush=True)

    same = []
    for name, asked in list(read_pope(folder).items())[: given.check]:
        question = asked[0][1]
        packed = answer(vlm, packer, see(vlm, given.photos / name), [question, asked[1][1]])[0]
        same.append(vlm.ask(given.photos / name, question, max_new_tokens=4).text.startswith(packed))
    if same:
        note("packed answers equal to single ones", f"{sum(same)} of {len(same)}")
    if given.talk:
        note("talk before training", talk(given.talk))
        note("talk", {q: vlm.ask(None, q, max_new_tokens=TALK_TOKENS).text for q in HELD_OUT})
    truths = json.loads(given.objects.with_suffix(".test.json").read_text())
    for key, count, blind in (("POPE", given.pope, False), ("blind POPE", given.blind_pope, True)):
        pope(vlm, packer, given.photos, folder, count, lambda value, key=key: note(key, value), blind=blind)
    for key, count, blind in (
        ("descriptions", given.described, False),
        ("blind descriptions", given.blind_described, True),
    ):
        if count:
            note(key, descriptions(vlm, given.photos, dict(list(truths.items())[:count]), given.out, blind))


if __name__ == "__main__":
    main()
