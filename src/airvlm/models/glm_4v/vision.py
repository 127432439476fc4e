"""GLM-4V's vision tower: a ViT that normalizes the output of each branch, 2 x 2 down-sampling and a gated adapter."""

# ruff: noqa: RUF012 - transformers reads these class attributes

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPooling

from airvlm.models.ported.model import VisionTower

ADAPTER_NORM_EPS = 1e-5  # torch's default, not the tower's


class Glm4VVisionConfig(PreTrainedConfig):
    """The `vision_config` section of the official config.json, and two widths of the decoder."""

    model_type = "chatglm_vision"
    base_config_key = "vision_config"
    attribute_map = {"num_attention_heads": "num_heads"}

    image_size: int = 1120
    patch_size: int = 14
    in_channels: int = 3
    num_positions: int = 6401  # patches and one class token; they are not interpolated
    hidden_size: int = 1792
    num_hidden_layers: int = 63
    num_heads: int = 16
    intermediate_size: int = 15360
    hidden_act: str = "gelu"  # the exact, erf form
    layer_norm_eps: float = 1e-6
    scaling_factor: float = 8.0  # all tokens, including the two around the image, are divided by it
    dropout_prob: float = 0.0
    output_size: int = 4096  # the decoder's hidden size
    output_inner_size: int = 13696  # the decoder's feed-forward width, which the adapter shares
    initializer_range: float = 0.02

    @property
    def num_tokens(self) -> int:
        """Visual tokens per image, without the two around it."""
        return int(self.image_size // self.patch_size // 2) ** 2


class PatchEmbedding(nn.Module):
    def __init__(self, config: Glm4VVisionConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(config.in_channels, config.hidden_size, config.patch_size, config.patch_size)
        self.cls_embedding = nn.Parameter(torch.empty(1, config.hidden_size))
        self.position_embedding = nn.Embedding(config.num_positions, config.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.proj(pixels.to(self.proj.weight)).flatten(2).transpose(1, 2)  # (N, patches, width), row-major
        x = torch.cat([self.cls_embedding.expand(len(x), 1, -1), x], dim=1)
        if x.shape[1] != self.position_embedding.num_embeddings:
            raise ValueError(
                f"GLM-4V has positions for {self.position_embedding.num_embeddings - 1} patches and got "
                f"{x.shape[1] - 1} from pixels of {tuple(pixels.shape[-2:])}: use the model's own processor."
            )
        return x + self.position_embedding.weight


class VisionAttention(nn.Module):
    def __init__(self, config: Glm4VVisionConfig) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class VisionMLP(nn.Module):
    def __init__(self, config: Glm4VVisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.act = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class VisionBlock(nn.Module):
    """Despite their names, both norms act on the output of a branch, not on its input."""

    def __init__(self, config: Glm4VVisionConfig) -> None:
        super().__init__()
        self.attention = VisionAttention(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = VisionMLP(config)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.input_layernorm(self.attention(x))
        return x + self.post_attention_layernorm(self.mlp(x))


class Adapter(nn.Module):
    def __init__(self, config: Glm4VVisionConfig) -> None:
        super().__init__()
        d, inner = config.output_size, config.output_inner_size
        self.linear_proj = nn.Linear(d, d, bias=False)
        self.norm1 = nn.LayerNorm(d, eps=ADAPTER_NORM_EPS)
        self.gate_proj = nn.Linear(d, inner, bias=False)
        self.dense_h_to_4h = nn.Linear(d, inner, bias=False)
        self.dense_4h_to_h = nn.Linear(inner, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm1(self.linear_proj(x)))
        return self.dense_4h_to_h(F.silu(self.gate_proj(x)) * self.dense_h_to_4h(x))


class Glm4VVision(VisionTower):
    """Features (N, 1 + tokens + 1, hidden), of which the first and the last are learned."""

    config_class = Glm4VVisionConfig
    _no_split_modules = ["VisionBlock", "Adapter"]

    def __init__(self, config: Glm4VVisionConfig) -> None:
        super().__init__(config)
        self.patch_embedding = PatchEmbedding(config)
        self.layers = nn.ModuleList([VisionBlock(config) for _ in range(config.num_hidden_layers)])
        self.conv = nn.Conv2d(config.hidden_size, config.output_size, kernel_size=2, stride=2)
        self.linear_proj = Adapter(config)
        self.boi = nn.Parameter(torch.empty(1, 1, config.output_size))
        self.eoi = nn.Parameter(torch.empty(1, 1, config.output_size))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        std = self.config.initializer_range
        if isinstance(module, PatchEmbedding):
            init.normal_(module.cls_embedding, std=std)
        elif isinstance(module, Glm4VVision):
            init.normal_(module.boi, std=std)
            init.normal_(module.eoi, std=std)

    def forward(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        x = self.patch_embedding(pixel_values)
        for layer in self.layers:
            x = layer(x)
        side = self.config.image_size // self.config.patch_size
        grid = x[:, 1:].transpose(1, 2).unflatten(-1, (side, side))  # (N, width, side, side), class token dropped
        tokens = self.linear_proj(self.conv(grid).flatten(2).transpose(1, 2))  # (N, (side / 2)^2, hidden)
        boi, eoi = (edge.to(tokens).expand(len(tokens), 1, -1) for edge in (self.boi, self.eoi))
        features = torch.cat([boi, tokens, eoi], dim=1) / self.config.scaling_factor
        return BaseModelOutputWithPooling(last_hidden_state=x, pooler_output=features)
