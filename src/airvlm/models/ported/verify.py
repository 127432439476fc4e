"""`python -m airvlm.models.ported.verify Qwen/Qwen-VL-Chat photo.jpg`: our first tokens beside the original's.

The original's code needs an old transformers: `uv` makes a throw-away environment for it. That code comes with the
checkpoint and is run there, which is the point of the comparison; nothing else in airvlm ever runs it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import PreTrainedConfig

from airvlm.models.ported.checkpoint import load
from airvlm.tiny.grammar import DESCRIBE

# the last transformers on which both originals run, and what their code imports
ENVIRONMENT = (
    "transformers==4.40.0",
    "torch==2.5.1",
    "torchvision==0.20.1",
    "numpy<2",
    "pillow",
    "accelerate",
    "tiktoken",
    "sentencepiece",
    "einops",
    "matplotlib",
    "requests",
    "transformers_stream_generator",
)
UV = (
    "uv",
    "run",
    "--no-project",
    "--python",
    "3.11",
    *(part for p in ENVIRONMENT for part in ("--with", p)),
    "python",
)


def ours(
    name: str, image: str, question: str, tokens: int, dtype: str
) -> tuple[dict[str, list[int]], Any, PreTrainedConfig]:
    """What the port says: as `original.py`, with the tokenizer and the configuration."""
    model, processor = load(name, dtype=getattr(torch, dtype), device_map="auto" if torch.cuda.is_available() else None)
    content = [{"type": "image"}, {"type": "text", "text": question}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=prompt, images=Image.open(image), return_tensors="pt").to(model.device)
    inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    said = model.generate(**inputs, do_sample=False, max_new_tokens=tokens)
    length = inputs["input_ids"].shape[1]
    found = {"prompt": inputs["input_ids"][0].tolist(), "tokens": said[0, length:].tolist()}
    return found, processor.tokenizer, model.config


def original(
    model_type: str,
    name: str,
    image: str,
    question: str,
    tokens: int,
    dtype: str,
    python: Sequence[str] = UV,
) -> dict[str, list[int]]:
    script = Path(__file__).with_name("original.py")
    command = [*python, str(script), model_type, name, image, question, str(tokens), dtype]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the original did not run (exit code {done.returncode}); its messages are above")
    found: dict[str, list[int]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def without_images(ids: Sequence[int], config: PreTrainedConfig) -> list[int]:
    """A prompt's ids without what stands for an image: the two codes write it differently."""
    if config.model_type == "qwen":
        begin, end = config.image_start_id, config.image_start_id + 1
    else:
        begin, end = config.boi_token_id, config.eoi_token_id
    kept, inside = [], False
    for token in ids:
        inside = inside and token != end
        if not inside:
            kept.append(token)
        inside = inside or token == begin
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m airvlm.models.ported.verify", description=__doc__)
    parser.add_argument("name", help="Qwen/Qwen-VL-Chat, THUDM/glm-4v-9b or a folder with the official files")
    parser.add_argument("image")
    parser.add_argument("--question", default=DESCRIBE)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--python", nargs="+", default=UV, help="another Python that can run the original")
    asked = parser.parse_args(arguments)
    here, tokenizer, config = ours(asked.name, asked.image, asked.question, asked.tokens, asked.dtype)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    there = original(
        config.model_type, asked.name, asked.image, asked.question, asked.tokens, asked.dtype, asked.python
    )
    same_prompt = without_images(here["prompt"], config) == without_images(there["prompt"], config)
    pairs = zip(here["tokens"], there["tokens"])
    agree = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(here["tokens"]), len(there["tokens"])))
    print(f"prompt    {'the same' if same_prompt else 'DIFFERENT'}")
    print(f"original  {tokenizer.decode(there['tokens'])!r}")
    print(f"airvlm    {tokenizer.decode(here['tokens'])!r}")
    print(f"the first {agree} of {len(there['tokens'])} tokens agree")
    return 0 if same_prompt and here["tokens"] == there["tokens"] else 1


if __name__ == "__main__":
    sys.exit(main())
