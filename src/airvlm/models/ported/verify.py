"""`python -m airvlm.models.ported.verify Qwen/Qwen-VL-Chat photo.jpg`: compare the first tokens with the original's.

The original's code needs an old transformers, so `uv` creates a temporary environment in which this same file is
started as a script. That code comes with the checkpoint and is run there, which is the point of the comparison; nothing
else in airvlm ever runs it. Imports of airvlm are inside functions, because that environment does not have it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

# The last transformers that both originals run on, and what their code imports
ENVIRONMENT = (
    "transformers==4.40.0 torch==2.5.1 torchvision==0.20.1 numpy<2 pillow accelerate tiktoken sentencepiece einops "
    "matplotlib requests transformers_stream_generator"
).split()
# -P: files of this folder must not shadow modules that the originals import
UV = ("uv", "run", "--no-project", "--python", "3.11", *(f"--with={name}" for name in ENVIRONMENT), "python", "-P")

Tokens = dict[str, list[int]]  # the ids of the prompt, and the tokens that follow greedily


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m airvlm.models.ported.verify", description=__doc__)
    parser.add_argument("name", help="Qwen/Qwen-VL-Chat, THUDM/glm-4v-9b or a folder with the official files")
    parser.add_argument("image")
    parser.add_argument("--question", default="Please describe this image in detail.")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--python", nargs="+", default=UV, help="another Python that can run the original")
    parser.add_argument("--original", choices=list(ORIGINALS), help=argparse.SUPPRESS)  # in the old environment
    asked = parser.parse_args(arguments)
    request = (asked.name, asked.image, asked.question, asked.tokens, asked.dtype)
    if asked.original:
        print(json.dumps(ORIGINALS[asked.original](*request)))
        return 0
    here, tokenizer, config = run_port(*request)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    there = run_original(config.model_type, *request, python=asked.python)
    same_prompt = drop_image_ids(here["prompt"], config) == drop_image_ids(there["prompt"], config)
    pairs = zip(here["tokens"], there["tokens"])
    agree = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(here["tokens"]), len(there["tokens"])))
    print(f"prompt    {'the same' if same_prompt else 'DIFFERENT'}")
    print(f"original  {tokenizer.decode(there['tokens'])!r}")
    print(f"airvlm    {tokenizer.decode(here['tokens'])!r}")
    print(f"the first {agree} of {len(there['tokens'])} tokens agree")
    return 0 if same_prompt and here["tokens"] == there["tokens"] else 1


def run_port(name: str, image: str, question: str, tokens: int, dtype: str) -> tuple[Tokens, Any, Any]:
    """Ask the port. Returns prompt and tokens, the tokenizer and the configuration."""
    from airvlm.models.ported.checkpoint import load

    model, processor = load(name, dtype=getattr(torch, dtype), device_map="auto" if torch.cuda.is_available() else None)
    content = [{"type": "image"}, {"type": "text", "text": question}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=prompt, images=Image.open(image), return_tensors="pt").to(model.device)
    inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    output = model.generate(**inputs, do_sample=False, max_new_tokens=tokens)
    return _split(inputs["input_ids"], output), processor.tokenizer, model.config


def run_original(
    model_type: str, name: str, image: str, question: str, tokens: int, dtype: str, python: Sequence[str] = UV
) -> Tokens:
    """Ask the original code, in a process of the given Python."""
    options = ["--question", question, "--tokens", str(tokens), "--dtype", dtype, "--original", model_type]
    done = subprocess.run([*python, __file__, name, image, *options], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the original did not run (exit code {done.returncode}); its messages are above")
    found: Tokens = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def drop_image_ids(ids: Sequence[int], config: Any) -> list[int]:
    """The ids of a prompt without those between an image's tags, which the two codes write differently."""
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


def _split(prompt: Any, output: Any) -> Tokens:
    return {"prompt": prompt[0].tolist(), "tokens": output[0, prompt.shape[1] :].tolist()}


# -- in the environment of the originals


def _load_original(name: str, dtype: str, **flags: Any) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if torch.cuda.is_available():
        flags["device_map"] = "auto"
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(
        name, trust_remote_code=True, torch_dtype=getattr(torch, dtype), **flags
    )
    return tokenizer, model.eval()


def _run_original_qwen(name: str, image: str, question: str, tokens: int, dtype: str) -> Tokens:
    # Its constructor goes by these flags of config.json, whatever dtype is asked for
    flags = {flag: dtype == kind for flag, kind in (("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32"))}
    tokenizer, model = _load_original(name, dtype, **flags)
    query = tokenizer.from_list_format([{"image": image}, {"text": question}])
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    prompt = f"{system}<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n"
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    output = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=[151643, 151645, 151644],
        pad_token_id=151643,
    )
    return _split(inputs.input_ids, output)


def _run_original_glm(name: str, image: str, question: str, tokens: int, dtype: str) -> Tokens:
    tokenizer, model = _load_original(name, dtype)
    message = {"role": "user", "image": Image.open(image).convert("RGB"), "content": question}
    inputs = tokenizer.apply_chat_template(
        [message], add_generation_prompt=True, tokenize=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    inputs["images"] = inputs["images"].to(model.dtype)
    return _split(inputs["input_ids"], model.generate(**inputs, do_sample=False, max_new_tokens=tokens))


ORIGINALS = {"qwen": _run_original_qwen, "chatglm": _run_original_glm}

if __name__ == "__main__":
    sys.exit(main())
