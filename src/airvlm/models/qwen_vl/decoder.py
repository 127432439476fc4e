"""Qwen-VL's decoder: transformers' Qwen2 with two rules that Qwen2 does not have.

Embedding, layers, norms, feed-forward, masks and caches are Qwen2's. These differ:

* dynamic NTK: a prompt longer than `seq_length` raises the rotary base by a factor that the *prompt's* length decides;
  tokens generated later keep it, with or without a cache;
* log-n: the query at position n > seq_length is multiplied by log n / log seq_length;
* the rotation is computed in fp32 and cast back.

Both rules use each row's own positions, so that a left-padded row equals the row alone (the original counts the
padding). Neither acts in training mode, as in the original.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2Model
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, eager_attention_forward, rotate_half


class QwenVLTextConfig(Qwen2Config):
    """Qwen2's configuration and three fields of Qwen-VL."""

    model_type = "qwen_text"
    base_config_key = "text_config"

    seq_length: int = 2048  # where both rules begin
    use_dynamic_ntk: bool = True
    use_logn_attn: bool = True


class Rope(NamedTuple):
    """What attention needs to know about positions, in fp32."""

    cos: Tensor  # (B, 1, L, d)
    sin: Tensor  # (B, 1, L, d)
    logn: Tensor | None  # (B, 1, L, 1), factor of the queries


def ntk_alpha(lengths: Tensor, seq_length: int) -> Tensor:
    """The factor of the rotary base: 1 up to seq_length, 3 up to twice, 7 up to four times of it, and so on.

    Lengths (B,) -> factors (B,) in fp32.
    """
    doublings = torch.ceil(torch.log2(lengths.double() / seq_length) + 1)
    return (2.0**doublings - 1).clamp(min=1).float()


class QwenVLRotary(nn.Module):
    """Positions (B, L) and prompt lengths (B,) -> Rope."""

    def __init__(self, config: QwenVLTextConfig) -> None:
        super().__init__()
        self.config = config
        self.dim = config.head_dim
        self.base = float(config.rope_parameters["rope_theta"])

    @torch.no_grad()
    def forward(self, positions: Tensor, lengths: Tensor) -> Rope:
        config, device = self.config, positions.device
        base = torch.full(lengths.shape, self.base, device=device)
        if config.use_dynamic_ntk and not self.training:
            base = base * ntk_alpha(lengths, config.seq_length) ** (self.dim / (self.dim - 2))
        exponent = torch.arange(0, self.dim, 2, device=device).float() / self.dim
        frequency = 1.0 / base[:, None] ** exponent  # (B, d / 2): frequencies per row
        angle = positions[:, :, None].float() * frequency[:, None, :]  # (B, L, d / 2)
        angle = torch.cat([angle, angle], dim=-1)[:, None]
        logn = None
        if config.use_logn_attn and not self.training:
            n = (positions + 1).clamp(min=config.seq_length).double()
            logn = (n.log() / math.log(config.seq_length)).float()[:, None, :, None]
        return Rope(angle.cos(), angle.sin(), logn)


class QwenVLAttention(Qwen2Attention):
    """Qwen2's attention with the rotation in fp32 and log-n on the queries.

    `rope` is an extra argument that Qwen2Model passes on to every layer.
    """

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        *,
        rope: Rope,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = (
            project(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, heads, L, d)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        # Layers may be on several devices
        cos, sin, logn = (None if t is None else t.to(q.device) for t in rope)
        dtype, q, k = q.dtype, q.float(), k.float()
        q = (q * cos + rotate_half(q) * sin).to(dtype)
        k = (k * cos + rotate_half(k) * sin).to(dtype)
        if logn is not None:
            q = q * logn.to(dtype)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.attention_dropout if self.training else 0.0
        out, weights = attend(self, q, k, v, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs)
        return self.o_proj(out.flatten(2)), weights  # (B, L, heads, d) -> (B, L, hidden)


class QwenVLTextModel(Qwen2Model):
    """Qwen2's decoder with this attention. `rope_lengths` (B,) are the lengths of the prompts, if already known."""

    config_class = QwenVLTextConfig
    # The prompt lengths are kept on the cache: state that a fully traced graph would freeze
    _can_compile_fullgraph = False

    def __init__(self, config: QwenVLTextConfig) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.layers):
            layer.self_attn = QwenVLAttention(config, index)
        self.rope = QwenVLRotary(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        rope_lengths: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        position_ids = row_position_ids(inputs_embeds, attention_mask, position_ids, past_key_values)
        if rope_lengths is None:
            # A hand-written loop over a cache
            rope_lengths = getattr(past_key_values, "rope_lengths", None)
        if rope_lengths is None:
            rope_lengths = position_ids.max(dim=1).values + 1
        output: BaseModelOutputWithPast = super().forward(
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            rope=self.rope(position_ids, rope_lengths),
            **kwargs,
        )
        if output.past_key_values is not None:
            output.past_key_values.rope_lengths = rope_lengths
        return output


def row_position_ids(
    inputs_embeds: Tensor,
    attention_mask: Tensor | dict[str, Tensor] | None,
    position_ids: Tensor | None,
    past_key_values: Cache | None,
) -> Tensor:
    """Each row's own positions (B, L): as given, or counted from the mask, or from the length of the cache."""
    batch, length = inputs_embeds.shape[:2]
    if position_ids is None and isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
        position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
    if position_ids is None:
        seen = 0 if past_key_values is None else int(past_key_values.get_seq_length())
        position_ids = torch.arange(seen, seen + length, device=inputs_embeds.device)[None]
    return position_ids.to(inputs_embeds.device).expand(batch, -1)
