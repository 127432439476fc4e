"""GLM-4V-9B in the shape of transformers' own vision-language models.

Reads the official config.json (model_type "chatglm" with a `vision_config`). The decoder is transformers' GLM; what
differs is here: the norm multiplies by its weight before it casts back, and all rows of a picture share one position.

The official prompt holds three ids a picture, which the original replaces by 1602 rows in the middle of its forward.
Here the ids are as many as the rows: begin-of-image, one `image_token_id` for each of the 1600 rows, end-of-image.
Knows nothing of files, weight names, tokenizers or prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, GlmConfig, GlmModel, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, BaseModelOutputWithPooling, ModelOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.models.glm.modeling_glm import GlmRMSNorm
from transformers.utils.generic import can_return_tuple

from .glm_vision import Glm4VVision, Glm4VVisionConfig

# The official vocabulary ends with end_of_image and two video tokens; the padded rows after them are free. The next
# model of the family calls the first of them <|image|>, and so do we.
IMAGE_TOKEN_AFTER_EOI = 3


class Glm4VTextConfig(GlmConfig):
    model_type = "chatglm_text"
    base_config_key = "text_config"


class Glm4VConfig(PreTrainedConfig):
    """The official file's fields, and the two sub-configurations that transformers' machinery expects."""

    model_type = "chatglm"
    sub_configs_defaults = {"text_config": Glm4VTextConfig, "vision_config": Glm4VVisionConfig}
    keys_to_ignore_at_inference = ["past_key_values"]

    num_layers: int = 40
    padded_vocab_size: int = 151552
    hidden_size: int = 4096
    ffn_hidden_size: int = 13696
    kv_channels: int = 128  # a head's width
    num_attention_heads: int = 32
    multi_query_attention: bool = True
    multi_query_group_num: int = 2
    seq_length: int = 8192
    rope_ratio: float = 1  # multiplies the rotary base of 10000
    layernorm_epsilon: float = 1.5625e-07
    attention_dropout: float = 0.0
    add_qkv_bias: bool = True
    add_bias_linear: bool = False
    rmsnorm: bool = True
    post_layer_norm: bool = True
    apply_residual_connection_post_layernorm: bool = False
    fp32_residual_connection: bool = False
    original_rope: bool = True
    pre_seq_len: int | None = None
    boi_token_id: int = 151339
    eoi_token_id: int = 151340
    pad_token_id: int | None = 151329
    eos_token_id: int | list[int] | None = None
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    use_cache: bool = True
    text_config: dict[str, Any] | PreTrainedConfig | None = None
    vision_config: dict[str, Any] | PreTrainedConfig | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_what_no_release_has()
        if self.eos_token_id is None:
            self.eos_token_id = [151329, 151336, 151338]
        if not isinstance(self.vision_config, PreTrainedConfig):
            widths = {"output_size": self.hidden_size, "output_inner_size": self.ffn_hidden_size}
            self.vision_config = {**(self.vision_config or {}), **widths}
        if self.text_config is None:
            self.text_config = self._text()
        super().__post_init__(**kwargs)
        if self.dtype is not None:
            self.text_config.dtype = self.vision_config.dtype = self.dtype

    def _text(self) -> dict[str, Any]:
        groups = self.multi_query_group_num if self.multi_query_attention else self.num_attention_heads
        return {
            "vocab_size": self.padded_vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": groups,
            "head_dim": self.kv_channels,
            "intermediate_size": self.ffn_hidden_size,
            "hidden_act": "silu",
            "rms_norm_eps": self.layernorm_epsilon,
            "max_position_embeddings": self.seq_length,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0 * self.rope_ratio,
                "partial_rotary_factor": 0.5,
            },
            "attention_dropout": self.attention_dropout,
            "attention_bias": self.add_qkv_bias,
            "initializer_range": self.initializer_range,
            "tie_word_embeddings": self.tie_word_embeddings,
            "use_cache": self.use_cache,
            "pad_token_id": self.pad_token_id,
            "eos_token_id": self.eos_token_id,
        }

    def _refuse_what_no_release_has(self) -> None:
        released = {
            "add_bias_linear": False,
            "rmsnorm": True,
            "post_layer_norm": True,
            "apply_residual_connection_post_layernorm": False,
            "fp32_residual_connection": False,
            "original_rope": True,
            "pre_seq_len": None,
        }
        for field, only in released.items():
            if getattr(self, field) != only:
                raise ValueError(
                    f"GLM-4V configuration: {field}={getattr(self, field)!r} is not supported, only {only!r}; "
                    "the released GLM-4V checkpoint has no other value. Is this the config.json of another model?"
                )
        if self.image_token_id >= self.padded_vocab_size:
            raise ValueError(
                f"GLM-4V configuration: no free id is left for picture rows (eoi_token_id {self.eoi_token_id}, "
                f"padded_vocab_size {self.padded_vocab_size})."
            )

    @property
    def image_token_id(self) -> int:
        return self.eoi_token_id + IMAGE_TOKEN_AFTER_EOI


class Glm4VRMSNorm(GlmRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight * x).to(hidden_states.dtype)  # GLM in transformers casts first, then multiplies


class Glm4VTextModel(GlmModel):
    config_class = Glm4VTextConfig

    def __init__(self, config: Glm4VTextConfig) -> None:
        super().__init__(config)
        self.norm = Glm4VRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for layer in self.layers:
            layer.input_layernorm = Glm4VRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            layer.post_attention_layernorm = Glm4VRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_init()


@dataclass
class Glm4VOutput(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class Glm4VPreTrainedModel(PreTrainedModel):
    config_class = Glm4VConfig
    base_model_prefix = "model"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True
    _no_split_modules = ["GlmDecoderLayer", "VisionBlock", "Adapter"]
    _skip_keys_device_placement = ["past_key_values"]
    # a stored buffer whose values the original does not use either: angles are computed in fp32
    _keys_to_ignore_on_load_unexpected = [r"rotary_pos_emb\.inv_freq"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = False


def picture_positions(is_picture: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Positions (B, L) where all rows of a picture share one: begin p, rows p + 1, end p + 2, text goes on at p + 3."""
    real = torch.ones_like(is_picture) if attention_mask is None else attention_mask.bool()
    follows = torch.zeros_like(is_picture)
    follows[:, 1:] = is_picture[:, 1:] & is_picture[:, :-1]
    return ((real & ~follows).long().cumsum(-1) - 1).clamp(min=0)


class Glm4VModel(Glm4VPreTrainedModel):
    """Tower and decoder; a picture's rows and the two around them replace the embeddings of their ids."""

    def __init__(self, config: Glm4VConfig) -> None:
        super().__init__(config)
        self.visual = Glm4VVision(config.vision_config)
        self.language_model = Glm4VTextModel(config.text_config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.embed_tokens = value

    @can_return_tuple
    def get_image_features(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        """Pixels (N, 3, H, W) -> `pooler_output`: one (rows, hidden) tensor per picture, without the two around it."""
        output = self.visual(pixel_values)
        output.pooler_output = list(output.pooler_output[:, 1:-1])
        return output

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        mm_encoder_outputs: dict[str, BaseModelOutputWithPooling] | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of input_ids and inputs_embeds.")
        image = (mm_encoder_outputs or {}).get("image")
        if image is not None and pixel_values is not None:
            raise ValueError("Give pixel_values or mm_encoder_outputs, not both.")
        if pixel_values is not None:
            image = self.get_image_features(pixel_values, return_dict=True)
        if position_ids is None:
            position_ids = self._positions(input_ids, inputs_embeds, attention_mask, past_key_values)
        if inputs_embeds is None:
            inputs_embeds = self.get_input_embeddings()(input_ids)
        if image is not None:
            if input_ids is None:
                raise ValueError("Pictures need input_ids, which say where they go; inputs_embeds do not.")
            inputs_embeds = self._with_pictures(input_ids, inputs_embeds, image.pooler_output)
        if attention_mask is None and past_key_values is None:
            # Without a mask transformers would take the repeated positions of a picture for packed sequences.
            attention_mask = torch.ones(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)
        output: BaseModelOutputWithPast = self.language_model(
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        if output.past_key_values is not None:
            output.past_key_values.last_positions = position_ids[:, -1:]
        return output

    def _with_pictures(self, input_ids: Tensor, inputs_embeds: Tensor, features: list[Tensor]) -> Tensor:
        is_picture = input_ids == self.config.image_token_id
        rows = torch.cat(list(features)).to(inputs_embeds)  # (pictures * rows, hidden), in reading order
        if int(is_picture.sum()) != len(rows):
            raise ValueError(
                f"The prompts hold {int(is_picture.sum())} ids {self.config.image_token_id} for picture rows, but "
                f"{len(features)} pictures give {len(rows)} rows. Build prompts with the processor, which writes one id "
                "for each row between begin_of_image and end_of_image."
            )
        mask = is_picture.to(inputs_embeds.device)[..., None]
        inputs_embeds = inputs_embeds.masked_scatter(mask, rows)
        # The two ids around a picture take the tower's learned rows; standing alone they are ordinary tokens.
        none = torch.zeros_like(is_picture[:, :1])
        before = torch.cat([is_picture[:, 1:], none], dim=1) & (input_ids == self.config.boi_token_id)
        after = torch.cat([none, is_picture[:, :-1]], dim=1) & (input_ids == self.config.eoi_token_id)
        for edge, where in ((self.visual.boi, before), (self.visual.eoi, after)):
            row = edge.to(inputs_embeds) / self.config.vision_config.scaling_factor  # (1, 1, hidden)
            inputs_embeds = torch.where(where.to(inputs_embeds.device)[..., None], row, inputs_embeds)
        return inputs_embeds

    def _positions(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        past_key_values: Cache | None,
    ) -> Tensor:
        ids = input_ids if input_ids is not None else inputs_embeds
        assert ids is not None
        last = getattr(past_key_values, "last_positions", None)
        if last is not None:  # a hand-written loop over a cache: go on where it ended
            return last.to(ids.device) + torch.arange(1, ids.shape[1] + 1, device=ids.device)
        seen = 0 if past_key_values is None else int(past_key_values.get_seq_length())
        if seen:
            raise ValueError("This cache was not filled by this model: give position_ids with it.")
        plain = torch.zeros(ids.shape[:2], dtype=torch.bool, device=ids.device)
        is_picture = plain if input_ids is None else input_ids == self.config.image_token_id
        mask = attention_mask if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2 else None
        return picture_positions(is_picture, mask)


class Glm4VForConditionalGeneration(Glm4VPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.language_model.embed_tokens.weight"}

    def __init__(self, config: Glm4VConfig) -> None:
        super().__init__(config)
        self.model = Glm4VModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.padded_vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def get_image_features(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        return self.model.get_image_features(pixel_values, **kwargs)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        mm_encoder_outputs: dict[str, BaseModelOutputWithPooling] | None = None,
        **kwargs: Any,
    ) -> Glm4VOutput:
        output = self.model(
            input_ids=input_ids,
            pixel_values=pixel_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            mm_encoder_outputs=mm_encoder_outputs,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(output.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            vocab = self.config.padded_vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=vocab, **kwargs)
        return Glm4VOutput(
            loss=loss,
            logits=logits,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        """Picture positions for a prompt; later tokens go on from the last one, as `generate` does by itself."""
        ids = model_kwargs.get("input_ids")
        ids = inputs_tensor if ids is None or ids.shape[1] == 0 else ids
        if ids.is_floating_point() or model_kwargs.get("past_key_values") is not None:
            positions: Tensor = super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
            return positions
        return picture_positions(ids == self.config.image_token_id, model_kwargs.get("attention_mask"))
