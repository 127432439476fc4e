"""What Qwen-VL and GLM-4V share as models: configuration, vision tower, base model and model with a head.

The classes have the form of transformers' own vision-language models. A subclass says how the tower's features become
visual tokens, where these go in the sequence and which positions they have.
"""

# ruff: noqa: RUF012 - transformers reads these class attributes

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, BaseModelOutputWithPooling, CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple


class OfficialConfig(PreTrainedConfig):
    """A configuration that is read from, and written as, the official flat config.json.

    transformers expects a text and a vision section. They are derived from the flat fields whenever a configuration is
    made, so that a changed field (`from_pretrained(folder, rope_ratio=7)`) reaches the decoder.
    """

    title: ClassVar[str] = ""  # the model's name in error messages
    derived: ClassVar[tuple[str, ...]] = ("text_config",)  # sections that the official file does not have
    required_values: ClassVar[dict[str, Any]] = {}  # fields with one supported value, the released one

    text_config: Any = None
    vision_config: Any = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        # transformers would apply overrides after the sections have been derived
        fields = OfficialConfig.__annotations__ | cls.__annotations__
        overrides = {name: kwargs.pop(name) for name in list(kwargs) if name in fields}
        return super().from_dict({**config_dict, **overrides}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name not in self.derived}

    def text_fields(self) -> dict[str, Any]:
        """The text section that corresponds to the flat fields."""
        raise NotImplementedError

    def __post_init__(self, **kwargs: Any) -> None:
        for field, value in self.required_values.items():
            if getattr(self, field) != value:
                raise ValueError(
                    f"{self.title} configuration: {field}={getattr(self, field)!r} is not supported, only {value!r}; "
                    "no released checkpoint has another value. Is this the config.json of another model?"
                )
        if not isinstance(self.text_config, PreTrainedConfig):
            self.text_config = {**self.text_fields(), **(self.text_config or {})}
        super().__post_init__(**kwargs)
        if self.dtype is not None:
            self.text_config.dtype = self.vision_config.dtype = self.dtype


class VisionTower(PreTrainedModel):
    """Pixels (N, 3, H, W) -> features (N, n, hidden), as `pooler_output`."""

    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _supports_sdpa = True
    _supports_flash_attn = True  # the decoder may use it; the tower always calls torch's own attention
    _supports_attention_backend = True


class _VisionLanguagePreTrainedModel(PreTrainedModel):
    base_model_prefix = "model"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    # Positions and prompt lengths are kept on the cache: state that a fully traced graph would freeze
    _can_compile_fullgraph = False


class VisionLanguageModel(_VisionLanguagePreTrainedModel):
    """A tower `visual` and a decoder `language_model`, which the subclass creates."""

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
        output.pooler_output = list(self.select_visual_tokens(output.pooler_output))
        return output

    def select_visual_tokens(self, features: Tensor) -> Tensor:
        """The tower's features (N, n, hidden) without those that do not belong to the image itself."""
        return features

    def insert_visual_tokens(self, input_ids: Tensor, inputs_embeds: Tensor, tokens: Tensor, num_images: int) -> Tensor:
        """Write the visual tokens of all images, in reading order, over the embeddings (B, L, hidden)."""
        raise NotImplementedError

    def make_position_ids(
        self, input_ids: Tensor | None, inputs_embeds: Tensor, attention_mask: Tensor | None, cache: Cache | None
    ) -> Tensor | None:
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
            inputs_embeds = self.insert_visual_tokens(input_ids, inputs_embeds, tokens, len(features))
        if position_ids is None:
            position_ids = self.make_position_ids(input_ids, inputs_embeds, attention_mask, past_key_values)
        output: BaseModelOutputWithPast = self.language_model(
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        return output


class VisionLanguageForConditionalGeneration(_VisionLanguagePreTrainedModel, GenerationMixin):
    """A VisionLanguageModel and a language-model head."""

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
    ) -> CausalLMOutputWithPast:
        # Every argument is named, as in the base model: `generate` reads this signature to see what it may pass on
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
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )
