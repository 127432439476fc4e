"""Text that the language model writes itself, before it is trained: descriptions from labels, and answers to keep.

    python -m experiments.train.smol.writing FEATURES OBJECTS LANGUAGE_MODEL OUT [--rounds N]

Descriptions are sampled from the list of a photograph's objects and kept only if CHAIR's word list finds exactly these
objects in them. Answers to questions without an image are kept so that the model can go on learning its own text.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from airvlm.tasks.words.objects import find_mentions
from experiments.train.photo.grammar import join_nouns
from experiments.train.smol.data import Photos

SHOWN = (
    ("a dog and a frisbee", "A dog leaps over the grass to catch a frisbee."),
    ("a person, a chair, a laptop and a cup", "A person sits on a chair and works at a laptop. A cup stands nearby."),
    ("a bus, a car and a traffic light", "A bus and a car wait in the street in front of a traffic light."),
)
TALK = (
    "Who are you?",
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain photosynthesis in two sentences.",
    "Give me three tips for sleeping better.",
    "What is 12 plus 7?",
    "Translate 'good morning' into French.",
    "Why is the sky blue?",
    "Tell me a fun fact about octopuses.",
    "How do I boil an egg?",
    "Write a short email that thanks a colleague for her help.",
    "What is a computer program?",
    "Name three fruits and their colors.",
    "Summarize the story of Romeo and Juliet in two sentences.",
    "What should I pack for a day at the beach?",
    "Is the moon bigger than the earth?",
    "Write a sentence with the word 'lantern'.",
    "What does a doctor do?",
    "Give a synonym of 'happy'.",
    "How many days are in a week?",
    "What is gravity?",
    "Suggest a name for a cat.",
    "Explain what a rainbow is.",
    "Hello! How are you today?",
)
HELD_OUT = (  # never learnt from: asked before and after training
    "What is the capital of Italy?",
    "Explain in one sentence what an engine does.",
    "Write two sentences about a walk in the rain.",
    "Name three animals that live in Africa.",
    "How do I make tea?",
)
STARTS = re.compile(r"(the|a|an|two|this|there|in|on|some|several|it|one|next)\b", re.IGNORECASE)


def prompt(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def ask_for_text(names: list[str]) -> str:
    """Three examples of ours as earlier turns, then the list of a photograph's objects."""
    turns = "".join(prompt(f"Describe a photo with {listed}.") + f"{told}<|im_end|>\n" for listed, told in SHOWN)
    return turns + prompt(f"Describe a photo with {join_nouns(names)}.")


def clean(text: str) -> str:
    """The text in one line, without quotes around it."""
    return re.sub(r"\s+", " ", text).strip().strip('"').strip()


def is_true(text: str, names: set[str]) -> bool:
    """Whether the text is a plain description that names exactly these objects."""
    if not STARTS.match(text) or not text.endswith(".") or re.search(r"[\"*:#\[\]]|photo that|caption|sentence", text):
        return False
    said = [mention.category for mention in find_mentions(text)]
    return set(said) == names and max(said.count(name) for name in names) <= 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("features", "objects", "language_model", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    photos = Photos(given.features, given.objects)
    tokenizer = AutoTokenizer.from_pretrained(given.language_model, padding_side="left")
    dtype = torch.bfloat16 if given.bfloat16 else torch.float32
    # eager: with one new token at a time, torch's fused attention is several times slower in bfloat16 on a CPU
    attention = "eager" if given.bfloat16 else "sdpa"
    model = LlamaForCausalLM.from_pretrained(given.language_model, dtype=dtype, attn_implementation=attention).eval()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    @torch.no_grad()
    def write(prompts: list[str], length: int, **sampling: object) -> list[tuple[str, bool]]:
        batch = tokenizer(prompts, return_tensors="pt", padding=True)
        done = model.generate(**batch, max_new_tokens=length, eos_token_id=end, pad_token_id=end, **sampling)
        new = done[:, batch["input_ids"].shape[1] :]
        return [(tokenizer.decode(row, skip_special_tokens=True), end in row) for row in new]

    talk = given.out / "talk.json"
    if not talk.exists():
        told = write([prompt(question) for question in TALK], 60, do_sample=False)
        rows = [{"question": q, "answer": text, "finished": ended} for q, (text, ended) in zip(TALK, told, strict=True)]
        talk.write_text(json.dumps(rows, indent=1))
    draw, began, tried, kept = np.random.default_rng(1), time.time(), 0, 0
    counts = photos.present.sum(1)
    chosen = [row for row in photos.train if 2 <= counts[row] <= 5]
    with (given.out / "written.jsonl").open("a") as file:
        for number in range(1, given.rounds + 1):
            rows = draw.choice(chosen, given.batch, replace=False)
            names = [[photos.names[k] for k in np.flatnonzero(photos.present[row])] for row in rows]
            told = write([ask_for_text(own) for own in names], 40, do_sample=True, temperature=0.7, top_p=0.9)
            for row, own, (text, ended) in zip(rows, names, told, strict=True):
                tried += 1
                if ended and is_true(clean(text), set(own)):
                    kept += 1
                    file.write(json.dumps({"stem": photos.stems[row], "objects": own, "text": clean(text)}) + "\n")
            file.flush()
            if number == 1:
                print(*(f"{own} -> {clean(text)}" for own, (text, _) in zip(names, told, strict=True)), sep="\n")
            print(
                json.dumps({"round": number, "tried": tried, "kept": kept, "minutes": (time.time() - began) / 60}),
                flush=True,
            )


if __name__ == "__main__":
    main()
