"""What the original code says, for comparison: run as a script, in an environment with the old transformers it needs.

Imports nothing of airvlm and runs the checkpoint's own code, so it is only ever started by hand, through verify.py.
Prints one line of JSON: the prompt's ids and the tokens that follow greedily.
"""

import json
import sys
from typing import Any


def qwen(name: str, image: str, question: str, tokens: int, options: dict[str, Any]) -> dict[str, list[int]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    # its constructor goes by these flags of config.json, whatever dtype is asked for
    flags = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    flagged = {flag: options["torch_dtype"] == dtype for flag, dtype in flags.items()}
    model = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=True, **options, **flagged).eval()
    query = tokenizer.from_list_format([{"image": image}, {"text": question}])
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    prompt = f"{system}<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n"
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    said = model.generate(
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=[151643, 151645, 151644],
        pad_token_id=151643,
    )
    length = inputs.input_ids.shape[1]
    return {"prompt": inputs.input_ids[0].tolist(), "tokens": said[0, length:].tolist()}


def chatglm(name: str, image: str, question: str, tokens: int, options: dict[str, Any]) -> dict[str, list[int]]:
    from PIL import Image
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=True, **options).eval()
    message = {"role": "user", "image": Image.open(image).convert("RGB"), "content": question}
    inputs = tokenizer.apply_chat_template(
        [message], add_generation_prompt=True, tokenize=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    inputs["images"] = inputs["images"].to(model.dtype)
    said = model.generate(**inputs, do_sample=False, max_new_tokens=tokens)
    length = inputs["input_ids"].shape[1]
    return {"prompt": inputs["input_ids"][0].tolist(), "tokens": said[0, length:].tolist()}


def main(model_type: str, name: str, image: str, question: str, tokens: str, dtype: str) -> None:
    import torch

    options: dict[str, Any] = {"torch_dtype": getattr(torch, dtype)}
    if torch.cuda.is_available():
        options["device_map"] = "auto"
    run = {"qwen": qwen, "chatglm": chatglm}[model_type]
    print(json.dumps(run(name, image, question, int(tokens), options)))


if __name__ == "__main__":
    main(*sys.argv[1:])
