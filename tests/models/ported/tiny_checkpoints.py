"""Small random checkpoints in the exact official layout: file names, index, config.json with its auto_map, vocabulary.

The vocabulary is made here: all bytes and a few merges, with the official special tokens after them.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from airvlm.models.glm_4v.model import Glm4VConfig, Glm4VForConditionalGeneration
from airvlm.models.glm_4v.processing import SPECIALS as GLM_SPECIALS
from airvlm.models.qwen_vl.model import QwenVLConfig, QwenVLForConditionalGeneration
from airvlm.models.qwen_vl.processing import SPECIALS as QWEN_SPECIALS
from airvlm.testing.small_models import scale_weights

MODELS = ("qwen", "chatglm")
TEXT = (
    "Is there a dog in the image? Yes, there is a dog near the table. Please describe this image in detail. user system"
)
GUARD = "raise RuntimeError('the checkpoint must not run its own code')\n"


def vocabulary(text: str = TEXT, merges: int = 60) -> list[bytes]:
    """All bytes, in an order of their own, and the most frequent pairs of `text`, one after the other."""
    tokens = [bytes([b]) for b in [*range(33, 256), *range(33)]]
    words = [[bytes([b]) for b in (" " + word).encode()] for word in text.split()]
    for _ in range(merges):
        pairs: dict[tuple[bytes, bytes], int] = {}
        for word in words:
            for pair in pairwise(word):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        tokens.append(best[0] + best[1])
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [best[0] + best[1]]
                i += 1
    return tokens


def write_vocabulary(path: Path, tokens: Sequence[bytes], newline: bytes = b"\n") -> None:
    lines = [base64.b64encode(token) + f" {rank}".encode() for rank, token in enumerate(tokens)]
    path.write_bytes(newline.join(lines) + newline)


def config(model_type: str, **changed: Any) -> dict[str, Any]:
    """config.json as the official repository writes it, with small sizes."""
    tokens = len(vocabulary())
    if model_type == "qwen":
        return {
            "architectures": ["QWenLMHeadModel"],
            "auto_map": {
                "AutoConfig": "configuration_qwen.QWenConfig",
                "AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel",
            },
            "attn_dropout_prob": 0.0,
            "bf16": True,
            "emb_dropout_prob": 0.0,
            "fp16": False,
            "fp32": False,
            "hidden_size": 128,
            "initializer_range": 0.02,
            "intermediate_size": 192,
            "kv_channels": 16,
            "layer_norm_epsilon": 1e-06,
            "max_position_embeddings": 8192,
            "model_type": "qwen",
            "no_bias": True,
            "num_attention_heads": 8,
            "num_hidden_layers": 4,
            "onnx_safe": None,
            "rotary_emb_base": 10000,
            "rotary_pct": 1.0,
            "scale_attn_weights": True,
            "seq_length": 2048,
            "tie_word_embeddings": False,
            "tokenizer_type": "QWenTokenizer",
            "torch_dtype": "bfloat16",
            "transformers_version": "4.31.0",
            "use_cache": True,
            "use_dynamic_ntk": True,
            "use_flash_attn": False,
            "use_logn_attn": True,
            "visual": {
                "heads": 4,
                "image_size": 64,
                "image_start_id": tokens + QWEN_SPECIALS.index("<img>"),
                "layers": 2,
                "mlp_ratio": 4.9231,
                "n_queries": 16,
                "output_dim": 128,
                "patch_size": 8,
                "width": 32,
            },
            "vocab_size": tokens + len(QWEN_SPECIALS) + 11,
        } | changed
    special = {name: tokens + i for i, name in enumerate(GLM_SPECIALS)}
    return {
        "architectures": ["ChatGLMModel"],
        "auto_map": {
            "AutoConfig": "configuration_chatglm.ChatGLMConfig",
            "AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration",
            "AutoModelForCausalLM": "modeling_chatglm.ChatGLMForConditionalGeneration",
        },
        "model_type": "chatglm",
        "add_bias_linear": False,
        "add_qkv_bias": True,
        "apply_query_key_layer_scaling": True,
        "apply_residual_connection_post_layernorm": False,
        "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True,
        "boi_token_id": special["<|begin_of_image|>"],
        "eoi_token_id": special["<|end_of_image|>"],
        "eos_token_id": [special["<|endoftext|>"], special["<|user|>"], special["<|observation|>"]],
        "pad_token_id": special["<|endoftext|>"],
        "ffn_hidden_size": 96,
        "fp32_residual_connection": False,
        "hidden_dropout": 0.0,
        "hidden_size": 64,
        "kv_channels": 16,
        "layernorm_epsilon": 1.5625e-07,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "num_attention_heads": 4,
        "num_layers": 4,
        "original_rope": True,
        "padded_vocab_size": tokens + len(GLM_SPECIALS) + 9,
        "post_layer_norm": True,
        "rmsnorm": True,
        "seq_length": 8192,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.2",
        "use_cache": True,
        "vision_config": {
            "dropout_prob": 0.0,
            "hidden_act": "gelu",
            "hidden_size": 32,
            "image_size": 32,
            "in_channels": 3,
            "intermediate_size": 60,
            "layer_norm_eps": 1e-06,
            "num_heads": 4,
            "num_hidden_layers": 2,
            "num_positions": 65,
            "patch_size": 4,
            "scaling_factor": 8,
        },
    } | changed


def model(model_type: str, **changed: Any) -> Any:
    """A random model of that config.json, scaled so that every input matters."""
    config_class, model_class = {
        "qwen": (QwenVLConfig, QwenVLForConditionalGeneration),
        "chatglm": (Glm4VConfig, Glm4VForConditionalGeneration),
    }[model_type]
    torch.manual_seed(0)
    made = model_class(config_class(**config(model_type, **changed))).float()
    scale_weights(made, zlib.crc32(model_type.encode()))
    return made.eval()


def official_weights(made: Any) -> dict[str, Tensor]:
    """A model's weights under the official names, cut and fused as there: written by hand, not by the library."""
    state = made.state_dict()
    stored: dict[str, Tensor] = {}
    for name, weight in state.items():
        if name.startswith("model.language_model.layers."):
            continue
        stored[_plain_name(name, made.config.model_type)] = weight
    for i, layer in enumerate(made.get_decoder().layers):
        own = layer.state_dict()

        def fused(*parts: str, own: dict[str, Tensor] = own) -> Tensor:
            return torch.cat([own[part] for part in parts])

        qkv = {kind: fused(*(f"self_attn.{p}_proj.{kind}" for p in "qkv")) for kind in ("weight", "bias")}
        if made.config.model_type == "qwen":
            at = f"transformer.h.{i}."
            stored[at + "ln_1.weight"] = own["input_layernorm.weight"]
            stored[at + "ln_2.weight"] = own["post_attention_layernorm.weight"]
            stored[at + "attn.c_attn.weight"], stored[at + "attn.c_attn.bias"] = qkv["weight"], qkv["bias"]
            stored[at + "attn.c_proj.weight"] = own["self_attn.o_proj.weight"]
            stored[at + "mlp.w1.weight"] = own["mlp.up_proj.weight"]
            stored[at + "mlp.w2.weight"] = own["mlp.gate_proj.weight"]
            stored[at + "mlp.c_proj.weight"] = own["mlp.down_proj.weight"]
        else:
            at = f"transformer.encoder.layers.{i}."
            stored[at + "input_layernorm.weight"] = own["input_layernorm.weight"]
            stored[at + "post_attention_layernorm.weight"] = own["post_attention_layernorm.weight"]
            stored[at + "self_attention.query_key_value.weight"] = qkv["weight"]
            stored[at + "self_attention.query_key_value.bias"] = qkv["bias"]
            stored[at + "self_attention.dense.weight"] = own["self_attn.o_proj.weight"]
            stored[at + "mlp.dense_h_to_4h.weight"] = own["mlp.gate_up_proj.weight"]
            stored[at + "mlp.dense_4h_to_h.weight"] = own["mlp.down_proj.weight"]
    if made.config.model_type == "qwen":
        pool = "transformer.visual.attn_pool."
        for kind in ("weight", "bias"):
            parts = [stored.pop(f"{pool}{p}_proj.{kind}") for p in "qkv"]
            stored[f"{pool}attn.in_proj_{kind}"] = torch.cat(parts)
            stored[f"{pool}attn.out_proj.{kind}"] = stored.pop(f"{pool}out_proj.{kind}")
    else:
        stored["transformer.rotary_pos_emb.inv_freq"] = torch.zeros(4)
    return {name: weight.clone().contiguous() for name, weight in stored.items()}


def _plain_name(name: str, model_type: str) -> str:
    qwen = {
        "model.language_model.embed_tokens.": "transformer.wte.",
        "model.language_model.norm.": "transformer.ln_f.",
        "model.visual.resblocks.": "transformer.visual.transformer.resblocks.",
        "model.visual.": "transformer.visual.",
        "lm_head.": "lm_head.",
    }
    glm = {
        "model.language_model.embed_tokens.": "transformer.embedding.word_embeddings.",
        "model.language_model.norm.": "transformer.encoder.final_layernorm.",
        "model.visual.layers.": "transformer.vision.transformer.layers.",
        "model.visual.": "transformer.vision.",
        "lm_head.": "transformer.output_layer.",
    }
    for ours, theirs in (qwen if model_type == "qwen" else glm).items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise KeyError(name)


def save(
    folder: Path,
    model_type: str,
    *,
    dtype: torch.dtype = torch.float32,
    shards: int = 2,  # 1: one file without an index
    pickled: bool = False,
    **changed: Any,
) -> Path:
    """A whole official folder: configuration, weights, vocabulary, and remote code that must never run."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = config(model_type, **changed) | {"torch_dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(settings, indent=2))
    weights = {name: weight.to(dtype) for name, weight in official_weights(model(model_type, **changed)).items()}
    save_weights(folder, weights, shards=shards, pickled=pickled)
    if model_type == "qwen":
        write_vocabulary(folder / "qwen.tiktoken", vocabulary())
        tokenizer = {
            "model_max_length": 8192,
            "tokenizer_class": "QWenTokenizer",
            "auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]},
        }
        end = len(vocabulary())
        generation = {
            "chat_format": "chatml",
            "do_sample": True,
            "eos_token_id": end,
            "max_new_tokens": 512,
            "max_window_size": 6144,
            "pad_token_id": end,
            "top_k": 0,
            "top_p": 0.3,
        }
        code = ("configuration_qwen.py", "modeling_qwen.py", "tokenization_qwen.py", "visual.py")
    else:
        write_vocabulary(folder / "tokenizer.model", vocabulary())
        names = [n for n in GLM_SPECIALS if n != "<|image|>"]
        tokenizer = {
            "additional_special_tokens": names,
            "added_tokens_decoder": {
                str(len(vocabulary()) + i): {"content": name, "special": True} for i, name in enumerate(names)
            },
            "auto_map": {"AutoTokenizer": ["tokenization_chatglm.ChatGLM4Tokenizer", None]},
            "chat_template": "{{ raise_exception('the official template is for other code') }}",
            "do_lower_case": False,
            "eos_token": "<|endoftext|>",
            "image_size": 32,
            "model_max_length": 8192,
            "pad_token": "<|endoftext|>",
            "padding_side": "left",
            "remove_space": False,
            "tokenizer_class": "ChatGLM4Tokenizer",
        }
        generation = {
            "eos_token_id": settings["eos_token_id"],
            "pad_token_id": settings["pad_token_id"],
            "do_sample": True,
            "temperature": 0.8,
            "max_length": 8192,
            "top_p": 0.8,
        }
        code = ("configuration_chatglm.py", "modeling_chatglm.py", "tokenization_chatglm.py", "visual.py")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    for name in code:
        (folder / name).write_text(GUARD)
    return folder


def save_weights(folder: Path, weights: dict[str, Tensor], *, shards: int, pickled: bool) -> None:
    stem, suffix = ("pytorch_model", ".bin") if pickled else ("model", ".safetensors")
    listed = list(weights)
    parts = [listed[i::shards] for i in range(shards)]
    files = [f"{stem}{suffix}" if shards == 1 else f"{stem}-{i + 1:05}-of-{shards:05}{suffix}" for i in range(shards)]
    for file, part in zip(files, parts):
        held = {name: weights[name] for name in part}
        if pickled:
            torch.save(held, folder / file)
        else:
            save_file(held, folder / file, metadata={"format": "pt"})
    if shards > 1:
        index = {name: file for file, part in zip(files, parts) for name in part}
        total = sum(w.numel() * w.element_size() for w in weights.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": index})
        (folder / f"{stem}{suffix}.index.json").write_text(text)
