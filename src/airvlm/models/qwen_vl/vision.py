"""Qwen-VL's vision tower: a pre-norm ViT and the resampler that turns its patches into a fixed number of tokens.

Comments mark each place where the computation differs from a plain ViT.
"""

# ruff: noqa: RUF012 - transformers reads these class attributes

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling

from airvlm.models.ported.model import VisionTower

NORM_EPS = 1e-6  # every LayerNorm of tower and resampler
RESAMPLER_HEAD_DIM = 128  # the resampler's heads are as wide as the decoder's: output_dim // 128 of them


class QwenVLVisionConfig(PreTrainedConfig):
    """The `visual` section of the official config.json, field names as there."""

    model_type = "qwen_visual"
    base_config_key = "vision_config"
    attribute_map = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"}

    image_size: int = 448  # pixels per side; the image is resized to a square
    patch_size: int = 14
    width: int = 1664
    layers: int = 48
    heads: int = 16
    mlp_ratio: float = 4.9231
    output_dim: int = 4096  # equals the decoder's hidden size
    image_start_id: int = 151857  # <img>; </img> and <imgpad> follow
    n_queries: int = 256  # visual tokens per image; a square number. Not in the released file
    initializer_range: float = 0.02


def grid_sin_cos(dim: int, side: int) -> Tensor:
    """The resampler's fixed table of positions (side * side, dim): half from the column, then half from the row."""
    omega = 10000.0 ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim / 4))
    angles = torch.arange(side, dtype=torch.float64)[:, None] * omega  # (side, dim / 4)
    coordinate = torch.cat([angles.sin(), angles.cos()], dim=-1)  # (side, dim / 2)
    column = coordinate[None, :, :].expand(side, side, -1)
    row = coordinate[:, None, :].expand(side, side, -1)
    return torch.cat([column, row], dim=-1).reshape(side * side, dim).float()


def interpolate_positions(table: Tensor, length: int) -> Tensor:
    """A square table of positions resized to `length` entries: bicubic in fp32, without antialiasing."""
    if table.shape[0] == length:
        return table
    have, want = math.isqrt(table.shape[0]), math.isqrt(length)
    grid = table.float().reshape(1, have, have, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(want, want), mode="bicubic", align_corners=False)
    return grid.permute(0, 2, 3, 1).reshape(want * want, -1).to(table.dtype)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(N, L, heads * d) -> (N, heads, L, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class VisualAttention(nn.Module):
    """Full self-attention whose packed projection is ordered by head: q, k, v of head 0, then of head 1, ..."""

    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.in_proj = nn.Linear(config.width, 3 * config.width)
        self.out_proj = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split_heads(self.in_proj(x), self.heads).chunk(3, dim=-1)  # each (N, heads, L, d)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class VisualMLP(nn.Module):
    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__()
        inner = int(config.width * config.mlp_ratio)
        self.c_fc = nn.Linear(config.width, inner)
        self.c_proj = nn.Linear(inner, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x)))  # the exact, erf form


class VisualBlock(nn.Module):
    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.attn = VisualAttention(config)
        self.ln_2 = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.mlp = VisualMLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Resampler(nn.Module):
    """One cross-attention from learned queries to all patches. Positions go to queries and keys, never to values."""

    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__()
        dim = config.output_dim
        self.heads = max(dim // RESAMPLER_HEAD_DIM, 1)
        self.query = nn.Parameter(torch.empty(config.n_queries, dim))
        self.pos_embed = nn.Parameter(torch.empty(config.n_queries, dim), requires_grad=False)
        self.kv_proj = nn.Linear(config.width, dim, bias=False)
        self.ln_q = nn.LayerNorm(dim, eps=NORM_EPS)
        self.ln_kv = nn.LayerNorm(dim, eps=NORM_EPS)
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        kv = self.ln_kv(self.kv_proj(x))  # (N, patches, dim)
        keys = kv + interpolate_positions(self.pos_embed, kv.shape[1])
        queries = (self.ln_q(self.query) + self.pos_embed).expand(len(x), -1, -1)  # (N, n_queries, dim)
        q, k, v = (split_heads(p, self.heads) for p in (self.q_proj(queries), self.k_proj(keys), self.v_proj(kv)))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class QwenVLVisual(VisionTower):
    """The features are (N, n_queries, output_dim)."""

    config_class = QwenVLVisionConfig
    _no_split_modules = ["VisualBlock", "Resampler"]

    def __init__(self, config: QwenVLVisionConfig) -> None:
        super().__init__(config)
        self.conv1 = nn.Conv2d(3, config.width, config.patch_size, config.patch_size, bias=False)
        # The 16 x 16 table of pre-training at 224 pixels, whatever the image size is now
        self.positional_embedding = nn.Parameter(torch.empty(256, config.width))
        self.ln_pre = nn.LayerNorm(config.width, eps=NORM_EPS)
        self.resblocks = nn.ModuleList([VisualBlock(config) for _ in range(config.layers)])
        self.attn_pool = Resampler(config)
        self.ln_post = nn.LayerNorm(config.output_dim, eps=NORM_EPS)
        self.proj = nn.Parameter(torch.empty(config.output_dim, config.output_dim))  # used as x @ proj
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        std = self.config.initializer_range
        if isinstance(module, Resampler):
            init.normal_(module.query, std=std)
            length, dim = module.pos_embed.shape
            init.copy_(module.pos_embed, grid_sin_cos(dim, math.isqrt(length)))
        elif isinstance(module, QwenVLVisual):
            init.normal_(module.positional_embedding, std=std)
            init.normal_(module.proj, std=std)

    def forward(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        x = self.conv1(pixel_values.to(self.conv1.weight)).flatten(2).transpose(1, 2)  # (N, patches, width)
        x = self.ln_pre(x + interpolate_positions(self.positional_embedding, x.shape[1]))
        for block in self.resblocks:
            x = block(x)
        features = self.ln_post(self.attn_pool(x)) @ self.proj  # (N, n_queries, output_dim)
        return BaseModelOutputWithPooling(last_hidden_state=x, pooler_output=features)
