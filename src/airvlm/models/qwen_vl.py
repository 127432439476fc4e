"""Qwen-VL and Qwen-VL-Chat in the shape of transformers' own vision-language models.

Reads the official config.json (flat, model_type "qwen", with a `visual` section) and puts the picture's rows between
<img> and </img>. Knows nothing of files, weight names, tokenizers or prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, BaseModelOutputWithPooling, ModelOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple

from .qwen_decoder import QwenVLTextConfig, QwenVLTextModel
from .qwen_visual import QwenVLVisionConfig, QwenVLVisual


class QwenVLConfig(PreTrainedConfig):
    """The official file's fields, and the two sub-configurations that transformers' machinery expects."""

    model_type = "qwen"
    sub_configs_defaults = {"text_config": QwenVLTextConfig, "vision_config": QwenVLVisionConfig}
    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int = 151936
    hidden_size: int = 4096
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    kv_channels: int = 128  # a head's width
    intermediate_size: int = 22016  # twice the feed-forward's real width
    layer_norm_epsilon: float = 1e-6
    seq_length: int = 2048  # where dynamic NTK and log-n begin
    max_position_embeddings: int = 8192
    rotary_pct: float = 1.0
    rotary_emb_base: float = 10000
    use_dynamic_ntk: bool = True
    use_logn_attn: bool = True
    no_bias: bool = True  # of the output projections and the feed-forward; q, k and v always have one
    scale_attn_weights: bool = True
    attn_dropout_prob: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    use_cache: bool = True
    pad_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    visual: dict[str, Any] | None = None
    text_config: dict[str, Any] | PreTrainedConfig | None = None
    vision_config: dict[str, Any] | PreTrainedConfig | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_what_no_release_has()
        if self.vision_config is None:
            self.vision_config = dict(self.visual or {})
        if self.text_config is None:
            self.text_config = self._text()
        super().__post_init__(**kwargs)
        if self.dtype is not None:
            self.text_config.dtype = self.vision_config.dtype = self.dtype

    def _text(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_attention_heads,
            "head_dim": self.kv_channels,
            "intermediate_size": self.intermediate_size // 2,
            "hidden_act": "silu",
            "rms_norm_eps": self.layer_norm_epsilon,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_parameters": {"rope_type": "default", "rope_theta": float(self.rotary_emb_base)},
            "attention_dropout": self.attn_dropout_prob,
            "initializer_range": self.initializer_range,
            "tie_word_embeddings": self.tie_word_embeddings,
            "use_cache": self.use_cache,
            "seq_length": self.seq_length,
            "use_dynamic_ntk": self.use_dynamic_ntk,
            "use_logn_attn": self.use_logn_attn,
        }

    def _refuse_what_no_release_has(self) -> None:
        for field, only in (("no_bias", True), ("scale_attn_weights", True), ("rotary_pct", 1.0)):
            if getattr(self, field) != only:
                raise ValueError(
                    f"Qwen-VL configuration: {field}={getattr(self, field)!r} is not supported, only {only!r}; "
                    "no released Qwen-VL checkpoint has another value. Is this the config.json of another model?"
                )

    @property
    def image_start_id(self) -> int:
        """<img>; the ids of </img> and <imgpad> follow it."""
        return int(self.vision_config.image_start_id)  # type: ignore[union-attr]  # a config since __post_init__

    @property
    def image_token_id(self) -> int:
        return self.image_start_id + 2


@dataclass
class QwenVLOutput(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class QwenVLPreTrainedModel(PreTrainedModel):
    config_class = QwenVLConfig
    base_model_prefix = "model"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True
    _no_split_modules = ["Qwen2DecoderLayer", "VisualBlock", "Resampler"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = False


class QwenVLModel(QwenVLPreTrainedModel):
    """Tower and decoder; a picture's rows replace the embeddings between <img> and </img>."""

    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__(config)
        self.visual = QwenVLVisual(config.vision_config)
        self.language_model = QwenVLTextModel(config.text_config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.embed_tokens = value

    @can_return_tuple
    def get_image_features(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        """Pixels (N, 3, H, W) -> `pooler_output`: one (n_queries, hidden) tensor per picture."""
        output = self.visual(pixel_values)
        output.pooler_output = list(output.pooler_output)
        return output

    def picture_mask(self, input_ids: Tensor) -> Tensor:
        """True between <img> and </img>, whatever ids stand there: the original writes the file's path into them."""
        start = self.config.image_start_id
        opened = (input_ids == start).cumsum(-1)
        closed = (input_ids == start + 1).cumsum(-1)
        return (opened > closed) & (input_ids != start)

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
        rope_lengths: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of input_ids and inputs_embeds.")
        image = (mm_encoder_outputs or {}).get("image")
        if image is not None and pixel_values is not None:
            raise ValueError("Give pixel_values or mm_encoder_outputs, not both.")
        if pixel_values is not None:
            image = self.get_image_features(pixel_values, return_dict=True)
        if inputs_embeds is None:
            inputs_embeds = self.get_input_embeddings()(input_ids)
        if image is not None:
            if input_ids is None:
                raise ValueError("Pictures need input_ids, which say where they go; inputs_embeds do not.")
            inputs_embeds = self._with_pictures(input_ids, inputs_embeds, image.pooler_output)
        output: BaseModelOutputWithPast = self.language_model(
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            rope_lengths=rope_lengths,
            **kwargs,
        )
        return output

    def _with_pictures(self, input_ids: Tensor, inputs_embeds: Tensor, features: list[Tensor]) -> Tensor:
        mask = self.picture_mask(input_ids).to(inputs_embeds.device)
        rows = torch.cat(list(features)).to(inputs_embeds)  # (pictures * n_queries, hidden), in reading order
        if int(mask.sum()) != len(rows):
            raise ValueError(
                f"The prompts hold {int(mask.sum())} picture rows between <img> and </img>, but {len(features)} pictures "
                f"give {len(rows)}. Build prompts with the processor, one <img></img> per picture."
            )
        return inputs_embeds.masked_scatter(mask[..., None], rows)


class QwenVLForConditionalGeneration(QwenVLPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.language_model.embed_tokens.weight"}

    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__(config)
        self.model = QwenVLModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
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
        rope_lengths: Tensor | None = None,
        **kwargs: Any,
    ) -> QwenVLOutput:
        output = self.model(
            input_ids=input_ids,
            pixel_values=pixel_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            mm_encoder_outputs=mm_encoder_outputs,
            rope_lengths=rope_lengths,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(output.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return QwenVLOutput(
            loss=loss,
            logits=logits,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        """Also note the prompts' lengths: they alone decide the rotary base, also when no cache remembers them."""
        position_ids: Tensor = super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
        if model_kwargs.get("rope_lengths") is None and getattr(
            model_kwargs.get("past_key_values"), "rope_lengths", None
        ) is None:
            lengths = position_ids.max(dim=-1).values + 1
            model_kwargs["rope_lengths"] = lengths.expand(inputs_tensor.shape[0]).contiguous()
        return position_ids
