"""One vLLM engine at a time, and its answers beside those of a VLM."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

from airvlm import VLM, Method
from airvlm.integrations.vllm import overrides

MARGIN = 1e-3  # logits nearer than this may be ordered differently by another kernel


@contextmanager
def engine(folder: Path, method: Any = True, **options: Any) -> Iterator[LLM]:
    """vLLM on the model's variant; what it opened is closed afterwards, so that another may follow."""
    config = json.loads((folder / "config.json").read_text())
    settings = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
        "mm_processor_cache_gb": 0,
        "limit_mm_per_prompt": {"image": 2} | ({"video": 0} if "qwen" in config["model_type"] else {}),
    }
    llm = LLM(str(folder), hf_overrides=overrides(config["architectures"], method), **settings | options)
    try:
        yield llm
    finally:
        del llm
        cleanup_dist_env_and_memory()


def request(prompt: str, images: Sequence[Any], setting: Any = None) -> dict[str, Any]:
    asked: dict[str, Any] = {"prompt": prompt}
    if images:
        asked["multi_modal_data"] = {"image": list(images) if len(images) > 1 else images[0]}
    if setting is not None:
        asked["mm_processor_kwargs"] = {"airvlm": setting}
    return asked


def said(llm: LLM, requests: Sequence[dict[str, Any]], tokens: int | Sequence[int] = 24) -> list[str]:
    limits = [tokens] * len(requests) if isinstance(tokens, int) else tokens
    how = [SamplingParams(temperature=0, max_tokens=limit) for limit in limits]
    return [out.outputs[0].text.strip() for out in llm.generate(list(requests), how, use_tqdm=False)]


def counts(llm: LLM) -> dict[str, int]:
    """Images embedded since the last call: fired, unchanged, off."""

    def take(model: Any) -> dict[str, int]:
        found = dict(model.crop_blend_counts)
        model.crop_blend_counts.clear()
        return found

    return {name: count for name, count in llm.apply_model(take)[0].items() if count}


def agree(vlm: VLM, images: Sequence[Any], question: Any, method: Method | None, expected: str, got: str) -> bool:
    """Whether two answers are equal, or part where the model itself has two next tokens that are as likely."""
    if expected == got:
        return True
    encode = vlm.processor.tokenizer
    ours, theirs = (encode(text, add_special_tokens=False)["input_ids"] for text in (expected, got))
    same = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), None)
    if same is None:
        return False
    row = vlm.builder.read(list(images), question)
    inputs = vlm.builder.build([row], pixels=True)
    ids = torch.cat([inputs["input_ids"], torch.tensor([ours[:same]], dtype=torch.long)], 1)
    inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad(), vlm._session(method, [row]):
        best = vlm.model(**inputs).logits[0, -1].float()
    return bool(abs(best[ours[same]] - best[theirs[same]]) < MARGIN)


def visual(vlm: VLM, image: Any, method: Any) -> torch.Tensor:
    """The visual rows of the decoder's input, in transformers."""
    kept = []
    row = vlm.builder.read(image, "word1")
    inputs = vlm.builder.build([row], pixels=True)
    handle = vlm.parts.layers[0].register_forward_pre_hook(
        lambda module, given, named: kept.append(given[0] if given else named["hidden_states"]),
        with_kwargs=True,
    )
    try:
        with torch.no_grad(), vlm._session(method, [row]):
            vlm.model(**inputs)
    finally:
        handle.remove()
    return kept[0][inputs["input_ids"] == vlm.parts.image_token_id]


def embedded(llm: Any, prompt: str, image: Any, setting: Any) -> torch.Tensor:
    """The visual rows that vLLM's model was given for one request."""
    kept: list[torch.Tensor] = []

    def listen(model: Any) -> None:
        whole = model.embed_multimodal

        def embed(**inputs: Any) -> Any:
            found = whole(**inputs)
            kept.extend(found)
            return found

        model.embed_multimodal = embed

    def deafen(model: Any) -> None:
        del model.embed_multimodal

    llm.apply_model(listen)
    try:
        said(llm, [request(prompt, [image], setting)], 1)
    finally:
        llm.apply_model(deafen)
    return kept[-1]
