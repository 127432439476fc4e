"""What a decoder that reads images needs to look like one of transformers' own: tower, base model, one with a head.

A model says how its tower's output becomes visual tokens, where these go and which positions they have; the rest is
here. Knows nothing of any one model.
"""

# ruff: noqa: RUF012 - these are the class attributes that transformers reads

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


@dataclass
class VisionLanguageOutput(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class VisionTower(PreTrainedModel):
    """Pixels (N, 3, H, W) -> features (N, n, hidden), as `pooler_output`."""

    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _supports_sdpa = True
    _supports_flash_attn = True  # the decoder may use it; the tower always calls torch's own attention
    _supports_attention_backend = True


class VisionLanguagePreTrainedModel(PreTrainedModel):
    base_model_prefix = "model"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    # Positions and lengths of the prompts travel on the cache: state that a fully traced graph would freeze.
    _can_compile_fullgraph = False


class VisionLanguageModel(VisionLanguagePreTrainedModel):
    """A tower `visual` and a decoder `language_model`, made by the subclass."""

    visual: VisionTower
    language_model: Any

    def get_input_embeddings(self) -> nn.Module:
        embeddings: nn.Module = self.language_model.embed_tokens
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.embed_tokens = value

    @can_return_tuple
    def get_image_features(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        """Pixels (N, 3, H, W) -> `pooler_output`: the visual tokens (n, hidden) of each image."""
        output = self.visual(pixel_values)
        output.pooler_output = list(self.visual_tokens(output.pooler_output))
        return output

    def visual_tokens(self, features: Tensor) -> Tensor:
        """The tower's features (N, n, hidden) -> those that are the image itself."""
        return features

    def with_images(self, input_ids: Tensor, inputs_embeds: Tensor, tokens: Tensor, images: int) -> Tensor:
        """Embeddings (B, L, hidden) with the visual tokens of all images, in reading order, written over them."""
        raise NotImplementedError

    def positions(self, ids: Tensor | None, embeds: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor | None:
        """Position ids (B, L) where the caller gave none; None leaves them to the decoder."""
        return None

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
        if inputs_embeds is None:
            inputs_embeds = self.get_input_embeddings()(input_ids)
        assert inputs_embeds is not None
        if image is not None:
            if input_ids is None:
                raise ValueError("Images need input_ids, which say where they go; inputs_embeds do not.")
            features = list(image.pooler_output)
            tokens = torch.cat(features).to(inputs_embeds)  # (visual tokens of all images, hidden)
            inputs_embeds = self.with_images(input_ids, inputs_embeds, tokens, len(features))
        if position_ids is None:
            position_ids = self.positions(input_ids, inputs_embeds, attention_mask, past_key_values)
        output: BaseModelOutputWithPast = self.language_model(
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return output


class VisionLanguageForConditionalGeneration(VisionLanguagePreTrainedModel, GenerationMixin):
    """A VisionLanguageModel and a head."""

    _tied_weights_keys = {"lm_head.weight": "model.language_model.embed_tokens.weight"}
    base: type[VisionLanguageModel]

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.model = self.base(config)
        text = config.text_config
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
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
    ) -> VisionLanguageOutput:
        # Every argument by name, as in the base model: `generate` reads this signature for what it may hand over.
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
            vocab_size = self.config.text_config.vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=vocab_size, **kwargs)
        return VisionLanguageOutput(
            loss=loss,
            logits=logits,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )
