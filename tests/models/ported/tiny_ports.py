"""Small configs of the two ported families for `airvlm.testing.small_models.add_family`: data, one entry per family."""

from typing import Any

from airvlm import models
from airvlm.models.ported.processing import SquareImageProcessor

models.register()  # small_models builds through transformers' Auto classes


def configs(text: dict[str, Any], *, view: int, image: int, start: int, end: int) -> dict[str, dict[str, Any]]:
    """Two configs around the common text settings. An image is 16 rows between the ids `start` and `end`."""
    assert end == start + 1
    shared = {key: text[key] for key in ("hidden_size", "num_attention_heads", "pad_token_id", "eos_token_id")}
    return {
        "qwen": {
            **shared,
            "vocab_size": text["vocab_size"],
            "num_hidden_layers": text["num_hidden_layers"],
            "intermediate_size": 2 * text["intermediate_size"],
            "kv_channels": text["head_dim"],
            "seq_length": 48,  # so that the rules for long prompts act in some rows and not in others
            "image_token_id": image,
            "visual": {
                "heads": 4,
                "image_size": view,
                "image_start_id": start,
                "layers": 2,
                "mlp_ratio": 2.0,
                "n_queries": 16,
                "output_dim": text["hidden_size"],
                "patch_size": 8,
                "width": 32,
            },
            "text_config": {},
        },
        "chatglm": {
            **shared,
            "padded_vocab_size": text["vocab_size"],
            "num_layers": text["num_hidden_layers"],
            "ffn_hidden_size": text["intermediate_size"],
            "kv_channels": text["head_dim"],
            "seq_length": 512,
            "boi_token_id": start,
            "eoi_token_id": end,
            "image_token_id": image,
            "vision_config": {
                "image_size": view,
                "patch_size": 4,
                "num_positions": (view // 4) ** 2 + 1,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_heads": 4,
                "intermediate_size": 64,
            },
            "text_config": {},
        },
    }


def image_processors(view: int) -> dict[str, tuple[Any, dict[str, Any]]]:
    return {name: (SquareImageProcessor, {"size": view}) for name in ("qwen", "chatglm")}
