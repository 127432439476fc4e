"""Configs of the small random models and settings of their image processors: data, one entry per family.

Widths are small, and every image becomes a few tens of visual tokens. `small_models` builds models from this.
"""

from __future__ import annotations

from typing import Any

PAD, BOS, EOS, IMAGE, VIDEO, START, END = 0, 1, 2, 4, 5, 6, 7
LAYERS, WIDTH, VIEW = 4, 32, 32  # decoder layers, hidden size, pixels per side

TEXT: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}
TOWER: dict[str, Any] = {  # CLIP and its relatives: 4 x 4 patches per view
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": VIEW,
    "patch_size": 8,
}
NATIVE: dict[str, Any] = {  # Qwen's and GLM's: patches of 4 pixels, merged 2 x 2
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 4,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": WIDTH,
}
MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
GRID = [[VIEW, 2 * VIEW], [2 * VIEW, VIEW], [2 * VIEW, 2 * VIEW]]
MARKS = {"image_token_id": IMAGE, "video_token_id": VIDEO}
GLM_MARKS = {**MARKS, "image_start_token_id": START, "image_end_token_id": END}
QWEN_MARKS = {**MARKS, "vision_start_token_id": START, "vision_end_token_id": END}
QWEN3_VISION = {**NATIVE, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
GLM_VISION = {**NATIVE, "image_size": VIEW}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2, "norm_topk_prob": True}

CONFIGS: dict[str, dict[str, Any]] = {
    "llava": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {"model_type": "clip_vision_model", **TOWER},
        "image_token_index": IMAGE,
    },
    "llava_next": {
        "text_config": {"model_type": "mistral", **TEXT},
        "vision_config": {"model_type": "clip_vision_model", **TOWER},
        "image_token_index": IMAGE,
        "image_grid_pinpoints": GRID,
    },
    "llava_onevision": {
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {"model_type": "siglip_vision_model", **TOWER},
        "image_token_index": IMAGE,
        "video_token_index": VIDEO,
        "image_grid_pinpoints": GRID,
    },
    "vipllava": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {"model_type": "clip_vision_model", **TOWER},
        "image_token_index": IMAGE,
        "vision_feature_layers": [-1, -2],
    },
    "qwen2_vl": {
        "text_config": {**TEXT, "rope_parameters": MROPE},
        "vision_config": {**NATIVE, "embed_dim": 32, "hidden_size": WIDTH, "mlp_ratio": 2},
        **QWEN_MARKS,
    },
    "qwen2_5_vl": {
        "text_config": {**TEXT, "rope_parameters": MROPE},
        "vision_config": {**NATIVE, "window_size": 16, "fullatt_block_indexes": [1]},
        **QWEN_MARKS,
    },
    "qwen3_vl": {
        "text_config": {**TEXT, "rope_parameters": {**MROPE, "mrope_interleaved": True}},
        "vision_config": QWEN3_VISION,
        **QWEN_MARKS,
    },
    "qwen3_vl_moe": {
        "text_config": {
            **TEXT,
            **EXPERTS,
            "num_experts": 4,
            "rope_parameters": {**MROPE, "mrope_interleaved": True},
        },
        "vision_config": QWEN3_VISION,
        **QWEN_MARKS,
    },
    "internvl": {
        "text_config": {"model_type": "qwen2", **TEXT},
        "vision_config": {**TOWER, "image_size": [VIEW, VIEW], "patch_size": [4, 4]},
        "image_token_id": IMAGE,
        "image_seq_length": 16,
    },
    "gemma3": {
        "text_config": {**TEXT, "query_pre_attn_scalar": 8, "sliding_window": 256},
        "vision_config": {**TOWER, "vision_use_head": False},
        "image_token_index": IMAGE,
        "boi_token_index": START,
        "eoi_token_index": END,
        "mm_tokens_per_image": 16,
    },
    "paligemma": {
        "text_config": {"model_type": "gemma", **TEXT},
        "vision_config": {
            "model_type": "siglip_vision_model",
            **TOWER,
            "vision_use_head": False,
            "projection_dim": WIDTH,
        },
        "image_token_index": IMAGE,
        "projection_dim": WIDTH,
        "hidden_size": WIDTH,
    },
    "idefics3": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {**TOWER, "patch_size": 4},
        "image_token_id": IMAGE,
        "scale_factor": 2,
    },
    "smolvlm": {
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {**TOWER, "patch_size": 4},
        "image_token_id": IMAGE,
        "scale_factor": 2,
    },
    "glm4v": {"text_config": {**TEXT, "rope_parameters": MROPE}, "vision_config": GLM_VISION, **GLM_MARKS},
    "glm46v": {
        "text_config": {"model_type": "glm4v_text", **TEXT, "rope_parameters": MROPE},
        "vision_config": {"model_type": "glm4v_vision", **GLM_VISION},
        **GLM_MARKS,
    },
    "glm4v_moe": {
        "text_config": {
            **TEXT,
            **EXPERTS,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "rope_parameters": {**MROPE, "partial_rotary_factor": 1.0},
        },
        "vision_config": GLM_VISION,
        **GLM_MARKS,
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **TEXT},
        "vision_config": {"model_type": "pixtral", **TOWER, "patch_size": 4, "head_dim": 8, "image_size": 64},
        "image_token_index": IMAGE,
        "spatial_merge_size": 2,
    },
}
_SQUARE = {"height": VIEW, "width": VIEW}
_PIXELS = {"shortest_edge": 16 * 16, "longest_edge": VIEW * VIEW}
_CLIP = {"size": {"shortest_edge": VIEW}, "crop_size": _SQUARE}
_ANYRES = {"size": {"shortest_edge": VIEW}, "crop_size": _SQUARE, "image_grid_pinpoints": GRID}
_QWEN = {"size": _PIXELS, "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
# GLM counts frames too
_GLM = {**_QWEN, "size": {"shortest_edge": 2 * 16 * 16, "longest_edge": 2 * VIEW * VIEW}}
_TILES = {"size": {"longest_edge": 2 * VIEW}, "max_image_size": {"longest_edge": VIEW}}

# An image processor's class, or where transformers has it (imported when a model is built), and its settings
IMAGE_PROCESSORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llava": ("clip.CLIPImageProcessorPil", _CLIP),
    "llava_next": ("llava_next.LlavaNextImageProcessorPil", _ANYRES),
    "llava_onevision": (
        "llava_onevision.LlavaOnevisionImageProcessorPil",
        {"size": _SQUARE, "image_grid_pinpoints": GRID},
    ),
    "vipllava": ("clip.CLIPImageProcessorPil", _CLIP),
    "qwen2_vl": ("qwen2_vl.Qwen2VLImageProcessorPil", _QWEN),
    "qwen2_5_vl": ("qwen2_vl.Qwen2VLImageProcessorPil", _QWEN),
    "qwen3_vl": ("qwen2_vl.Qwen2VLImageProcessorPil", _QWEN),
    "qwen3_vl_moe": ("qwen2_vl.Qwen2VLImageProcessorPil", _QWEN),
    "internvl": ("got_ocr2.GotOcr2ImageProcessorPil", {"size": _SQUARE, "crop_to_patches": True, "max_patches": 2}),
    "gemma3": ("gemma3.Gemma3ImageProcessorPil", {"size": _SQUARE}),
    "paligemma": ("siglip.SiglipImageProcessorPil", {"size": _SQUARE}),
    "idefics3": ("idefics3.Idefics3ImageProcessorPil", _TILES),
    "smolvlm": ("idefics3.Idefics3ImageProcessorPil", _TILES),
    "glm4v": ("glm4v.Glm4vImageProcessorPil", _GLM),
    "glm46v": ("glm46v.Glm46VImageProcessorPil", _GLM),
    "glm4v_moe": ("glm4v.Glm4vImageProcessorPil", _GLM),
    "mistral3": ("pixtral.PixtralImageProcessorPil", {"size": {"longest_edge": VIEW}, "patch_size": 8}),
}
# The processor output that is 1 at visual tokens, where a family's processor gives one
TOKEN_TYPES = {"gemma3": "token_type_ids", "paligemma": "token_type_ids"}
TOKEN_TYPES |= {name: "mm_token_type_ids" for name in CONFIGS if name.startswith(("qwen", "glm"))}
