"""Small model folders that vLLM's CPU build can run: the embedded model, and random ones of three other families.

vLLM's CPU attention has no heads of 24, so the embedded model is written out anew with heads of 32 that compute the
same. Knows nothing of airvlm's methods.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)

from airvlm import tiny

HEADS, NARROW, WIDE = 4, 24, 32


def padded_tiny(folder: Path) -> Path:
    """The embedded model with heads of 32 in place of 24: zeros beside, scale and rotation kept."""
    shutil.copytree(tiny.model_path(), folder)
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    text["head_dim"] = WIDE
    # angle i of 32 turns as angle i of 24 did: theta'^(-2i/32) = theta^(-2i/24)
    theta = float(text["rope_parameters"]["rope_theta"]) ** (WIDE / NARROW)
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    config["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config))
    half, step = NARROW // 2, WIDE // 2
    place = torch.cat([torch.arange(half), step + torch.arange(half)])  # the two halves of a rotated head
    weights = {}
    for name, value in load_file(folder / "model.safetensors").items():
        value = value.float()
        projection = name.rsplit(".", 2)[-2]
        if "language_model" in name and projection in ("q_proj", "k_proj", "v_proj"):
            wide = torch.zeros(HEADS, WIDE, value.shape[1])
            wide[:, place] = value.view(HEADS, NARROW, -1)
            if projection == "q_proj":
                wide *= (WIDE / NARROW) ** 0.5  # attention divides by the root of the head's width
            value = wide.reshape(HEADS * WIDE, -1)
        elif "language_model" in name and projection == "o_proj":
            wide = torch.zeros(value.shape[0], HEADS, WIDE)
            wide[:, :, place] = value.view(-1, HEADS, NARROW)
            value = wide.reshape(-1, HEADS * WIDE)
        weights[_clip_name(name)] = value.contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _clip_name(name: str) -> str:
    """transformers 5 dropped a level of CLIP's names that vLLM still expects."""
    if "vision_tower." in name and "vision_tower.vision_model." not in name:
        return name.replace("vision_tower.", "vision_tower.vision_model.")
    return name


SPECIAL = "<pad> <s> </s> <unk> <image> <|image_pad|> <|video_pad|> <|vision_start|> <|vision_end|>".split()
WORDS = [*SPECIAL, *(f"word{i}" for i in range(119))]
TEXT = {
    "vocab_size": len(WORDS),
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": WIDE,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
NATIVE = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "intermediate_size": 256,
}
MROPE = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
MARKS = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}
GRID = [[56, 112], [112, 56], [112, 112]]
CONFIGS = {
    "qwen2_vl": {
        "text_config": {**TEXT, "rope_parameters": MROPE},
        "vision_config": {**NATIVE, "embed_dim": 128, "hidden_size": 128, "mlp_ratio": 2},
        **MARKS,
    },
    "qwen2_5_vl": {
        "text_config": {**TEXT, "rope_parameters": MROPE},
        "vision_config": {
            **NATIVE,
            "hidden_size": 128,
            "out_hidden_size": 128,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        **MARKS,
    },
    "llava_next": {
        "text_config": {"model_type": "mistral", **TEXT},
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": 56,
            "patch_size": 14,
        },
        "image_token_index": 4,
        "image_grid_pinpoints": GRID,
    },
}
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "MARK {% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)


def random_model(family: str, folder: Path) -> Path:
    """A model whose every matrix is drawn so that its answers depend on every token."""
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(family, **CONFIGS[family])).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                gain = 1.0 if "embed_tokens" in name else (4.0 if "lm_head" in name else 1.5) / weight[0].numel() ** 0.5
                weight.copy_(gain * torch.randn(weight.shape))
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    weights = {_clip_name(name): value for name, value in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        padding_side="left",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=SPECIAL[4:],
    )
    _processor(family, tokenizer).save_pretrained(folder)
    return folder


def _processor(family: str, tokenizer: PreTrainedTokenizerFast) -> Any:
    if family == "llava_next":
        side = {"height": 56, "width": 56}
        pixels = LlavaNextImageProcessor(size={"shortest_edge": 56}, crop_size=side, image_grid_pinpoints=GRID)
        return LlavaNextProcessor(
            pixels,
            tokenizer,
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=TEMPLATE.replace("MARK", "<image>"),
        )
    size = {"shortest_edge": 56 * 56, "longest_edge": 168 * 168}
    shared = {"size": size, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    kind = Qwen2VLProcessor if family == "qwen2_vl" else Qwen2_5_VLProcessor
    mark = "<|vision_start|> <|image_pad|> <|vision_end|>"
    return kind(
        Qwen2VLImageProcessor(**shared),
        tokenizer,
        Qwen2VLVideoProcessor(**shared),
        chat_template=TEMPLATE.replace("MARK", mark),
    )
