"""Qwen-VL's tower at another width, and its tables."""

import json

import torch
from torch import Tensor

from airvlm.models.qwen_vl.vision import QwenVLVisionConfig, QwenVLVisual, grid_sin_cos, interpolate_positions
from tests.models.ported import golden_cases as golden


def wide() -> QwenVLVisual:
    folder = golden.folder("qwen_vl") / "vision_wide"
    model = QwenVLVisual(QwenVLVisionConfig(**json.loads((folder / "config.json").read_text())["visual"]))
    weights: dict[str, Tensor] = {}
    for name, weight in golden.tensors("qwen_vl", "vision_wide/model.safetensors").items():
        name = name.removeprefix("transformer.visual.").removeprefix("transformer.").replace(".attn.out", ".out", 1)
        if "in_proj_" in name:
            for part, piece in zip("qkv", weight.chunk(3)):
                weights[f"attn_pool.{part}_proj.{name.rsplit('_')[-1]}"] = piece
        else:
            weights[name if "resblocks" not in name else name.replace(".out_proj", ".attn.out_proj")] = weight
    model.load_state_dict(weights)
    return model.eval()


@torch.no_grad()
def test_two_resampler_heads_and_another_grid_equal_the_original() -> None:
    case = golden.tensors("qwen_vl", "vision_wide/cases.safetensors")
    output = wide()(case["pixel_values"])
    torch.testing.assert_close(output.last_hidden_state, case["vision_tower_out"], rtol=0, atol=3e-5)
    torch.testing.assert_close(output.pooler_output, case["image_features"], rtol=0, atol=2e-6)


def test_position_tables_equal_the_original() -> None:
    tables = golden.tensors("qwen_vl", "tables.safetensors")
    weights = golden.tensors("qwen_vl", "model.safetensors")
    torch.testing.assert_close(grid_sin_cos(128, 4), tables["sincos.embed128_grid4"], rtol=0, atol=1e-6)
    rows = tables["sincos.embed4096_grid16_rows0_17"]
    torch.testing.assert_close(grid_sin_cos(4096, 16)[: len(rows)], rows, rtol=0, atol=1e-5)
    table = weights["transformer.visual.positional_embedding"]
    torch.testing.assert_close(interpolate_positions(table, 1024), tables["abs_pos.positional_embedding_16_to_32"])
    table = weights["transformer.visual.attn_pool.pos_embed"]
    torch.testing.assert_close(interpolate_positions(table, 1024), tables["abs_pos.resampler_4_to_32"])


def test_a_table_of_the_right_size_is_used_as_it_is() -> None:
    table = torch.randn(16, 8)
    assert interpolate_positions(table, 16) is table
