"""GLM-4V-9B in the form of transformers' own vision-language models.

Reads the official config.json (model_type "chatglm" with a `vision_config`) and weights. The decoder is transformers'
GLM with two differences: the norm multiplies by its weight before it casts back, and all visual tokens of an image
share one position.

The official prompt holds three ids per image, which the original replaces by 1602 embeddings in the middle of its
forward pass. Here the prompt has as many ids: begin-of-image, `image_token_id` for each of the 1600 visual tokens,
end-of-image.
"""

# ruff: noqa: RUF012 - transformers reads these class attributes

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GlmConfig, GlmModel, PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.core_model_loading import Split, WeightConverter, WeightRenaming, WeightTransform
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.glm.modeling_glm import GlmRMSNorm

from airvlm.models.glm_4v.vision import Glm4VVision, Glm4VVisionConfig
from airvlm.models.ported.model import OfficialConfig, VisionLanguageForConditionalGeneration, VisionLanguageModel

# (pattern in the official weight name, our name), applied one after the other, and in reverse order when saving
_LAYER, _OURS = r"^transformer\.encoder\.layers\.(\d+)\.", r"model.language_model.layers.\1."
WEIGHT_NAMES = (
    (r"^transformer\.embedding\.word_embeddings\.", "model.language_model.embed_tokens."),
    (r"^transformer\.encoder\.final_layernorm\.", "model.language_model.norm."),
    (r"^transformer\.output_layer\.", "lm_head."),
    (_LAYER + r"input_layernorm\.", _OURS + "input_layernorm."),
    (_LAYER + r"post_attention_layernorm\.", _OURS + "post_attention_layernorm."),
    (_LAYER + r"self_attention\.query_key_value\.", _OURS + "self_attn.query_key_value."),
    (_LAYER + r"self_attention\.dense\.", _OURS + "self_attn.o_proj."),
    # The gate comes first, as in transformers' GLM
    (_LAYER + r"mlp\.dense_h_to_4h\.", _OURS + "mlp.gate_up_proj."),
    (_LAYER + r"mlp\.dense_4h_to_h\.", _OURS + "mlp.down_proj."),
    (r"^transformer\.vision\.", "model.visual."),
    (r"^model\.visual\.transformer\.layers\.", "model.visual.layers."),
)
# A stored buffer whose values the original does not use either: angles are computed in fp32
UNUSED_WEIGHTS = [r"rotary_pos_emb\.inv_freq"]
# The official vocabulary ends with end_of_image and two video tokens; the padded ids after them are free. The next
# model of the family calls the first of them <|image|>, and so does this one
IMAGE_TOKEN_AFTER_EOI = 3
# Fields that have the same name in the text section
SAME_IN_TEXT = (
    "hidden_size num_attention_heads attention_dropout initializer_range tie_word_embeddings use_cache pad_token_id "
    "eos_token_id"
).split()


def glm_conversions() -> list[WeightTransform]:
    """Official weight names -> ours, as transformers' rules, so that device maps, quantization and saving work."""
    # Keys and values have fewer heads than queries: three unequal parts
    split = WeightConverter("self_attn.query_key_value", [f"self_attn.{p}_proj" for p in "qkv"], [Split(dim=0)])
    return [*(WeightRenaming(*pair) for pair in WEIGHT_NAMES), split]


class Glm4VTextConfig(GlmConfig):
    model_type = "chatglm_text"
    base_config_key = "text_config"


class Glm4VConfig(OfficialConfig):
    """The fields of the official file, and the two sub-configurations that transformers expects."""

    model_type = "chatglm"
    sub_configs_defaults = {"text_config": Glm4VTextConfig, "vision_config": Glm4VVisionConfig}
    keys_to_ignore_at_inference = ["past_key_values"]
    title = "GLM-4V"
    required_values = {
        "add_bias_linear": False,
        "rmsnorm": True,
        "post_layer_norm": True,
        "apply_residual_connection_post_layernorm": False,
        "fp32_residual_connection": False,
        "original_rope": True,
        "pre_seq_len": None,
    }

    num_layers: int = 40
    padded_vocab_size: int = 151552
    hidden_size: int = 4096
    ffn_hidden_size: int = 13696
    kv_channels: int = 128  # width of a head
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
    image_token_id: int | None = None  # id of the visual tokens; None: the first free id
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.image_token_id is None:
            self.image_token_id = self.eoi_token_id + IMAGE_TOKEN_AFTER_EOI
        if self.image_token_id >= self.padded_vocab_size:
            raise ValueError(
                f"GLM-4V configuration: no free id is left for visual tokens (eoi_token_id {self.eoi_token_id}, "
                f"padded_vocab_size {self.padded_vocab_size})."
            )
        if self.eos_token_id is None:
            self.eos_token_id = [151329, 151336, 151338]
        if not isinstance(self.vision_config, PreTrainedConfig):
            widths = {"output_size": self.hidden_size, "output_inner_size": self.ffn_hidden_size}
            self.vision_config = {**(self.vision_config or {}), **widths}
        super().__post_init__(**kwargs)

    def text_fields(self) -> dict[str, Any]:
        groups = self.multi_query_group_num if self.multi_query_attention else self.num_attention_heads
        return {
            "vocab_size": self.padded_vocab_size,
            **{name: getattr(self, name) for name in SAME_IN_TEXT},
            "num_hidden_layers": self.num_layers,
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
            "attention_bias": self.add_qkv_bias,
        }

    @property
    def num_image_tokens(self) -> int:
        """Visual tokens per image, without the two around it."""
        return int(self.vision_config.num_tokens)


class Glm4VRMSNorm(GlmRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        # GLM in transformers casts first, then multiplies
        return (self.weight * x).to(hidden_states.dtype)


class Glm4VTextModel(GlmModel):
    config_class = Glm4VTextConfig

    def __init__(self, config: Glm4VTextConfig) -> None:
        super().__init__(config)
        self.norm = Glm4VRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for layer in self.layers:
            layer.input_layernorm = Glm4VRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            layer.post_attention_layernorm = Glm4VRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_init()

    def forward(self, input_ids: Tensor | None = None, **inputs: Any) -> BaseModelOutputWithPast:
        x = inputs.get("inputs_embeds")
        if x is None:
            x = inputs["inputs_embeds"] = self.embed_tokens(input_ids)  # (B, L, hidden)
        if inputs.get("attention_mask") is None and inputs.get("past_key_values") is None:
            # Without a mask transformers would take the repeated positions of an image for packed sequences
            inputs["attention_mask"] = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
        output: BaseModelOutputWithPast = super().forward(**inputs)
        if output.past_key_values is not None and inputs.get("position_ids") is not None:
            output.past_key_values.last_positions = inputs["position_ids"][:, -1:]
        return output


def image_positions(is_image: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Positions (B, L): begin-of-image at p, all visual tokens at p + 1, end-of-image at p + 2, then text."""
    is_token = torch.ones_like(is_image) if attention_mask is None else attention_mask.bool()
    repeats = torch.zeros_like(is_image)
    repeats[:, 1:] = is_image[:, 1:] & is_image[:, :-1]
    return ((is_token & ~repeats).long().cumsum(-1) - 1).clamp(min=0)


class Glm4VModel(VisionLanguageModel):
    """The visual tokens of an image, and two learned ones around them, replace the embeddings of their ids."""

    config_class = Glm4VConfig
    _no_split_modules = ["GlmDecoderLayer", "VisionBlock", "Adapter"]
    _keys_to_ignore_on_load_unexpected = UNUSED_WEIGHTS

    def __init__(self, config: Glm4VConfig) -> None:
        super().__init__(config)
        self.visual = Glm4VVision(config.vision_config)
        self.language_model = Glm4VTextModel(config.text_config)
        self.post_init()

    def select_visual_tokens(self, features: Tensor) -> Tensor:
        return features[:, 1:-1]

    def insert_visual_tokens(self, input_ids: Tensor, inputs_embeds: Tensor, tokens: Tensor, num_images: int) -> Tensor:
        config, device = self.config, inputs_embeds.device
        is_image = input_ids == config.image_token_id
        if int(is_image.sum()) != len(tokens):
            raise ValueError(
                f"The prompts hold {int(is_image.sum())} ids {config.image_token_id} for visual tokens, but "
                f"{num_images} images give {len(tokens)}. Build prompts with the processor."
            )
        inputs_embeds = inputs_embeds.masked_scatter(is_image.to(device)[..., None], tokens)
        # The ids around an image get the tower's learned embeddings; without an image they are ordinary tokens
        none = torch.zeros_like(is_image[:, :1])
        before = torch.cat([is_image[:, 1:], none], dim=1) & (input_ids == config.boi_token_id)
        after = torch.cat([none, is_image[:, :-1]], dim=1) & (input_ids == config.eoi_token_id)
        for edge, where in ((self.visual.boi, before), (self.visual.eoi, after)):
            row = edge.to(inputs_embeds) / config.vision_config.scaling_factor  # (1, 1, hidden)
            inputs_embeds = torch.where(where.to(device)[..., None], row, inputs_embeds)
        return inputs_embeds

    def make_position_ids(
        self, input_ids: Tensor | None, inputs_embeds: Tensor, attention_mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        batch, length = inputs_embeds.shape[:2]
        device = inputs_embeds.device
        last = getattr(cache, "last_positions", None)
        if last is not None:
            # A hand-written loop over a cache: continue where it ended
            continued: Tensor = last.to(device) + torch.arange(1, length + 1, device=device)
            return continued
        if cache is not None and int(cache.get_seq_length()):
            raise ValueError("This cache was not filled by this model: give position_ids with it.")
        is_image = torch.zeros(batch, length, dtype=torch.bool, device=device)
        if input_ids is not None:
            is_image = (input_ids == self.config.image_token_id).to(device)
        if attention_mask is None or attention_mask.ndim != 2:
            return image_positions(is_image, None)
        return image_positions(is_image, attention_mask.to(device))


class Glm4VForConditionalGeneration(VisionLanguageForConditionalGeneration):
    config_class = Glm4VConfig
    base = Glm4VModel
    _no_split_modules = Glm4VModel._no_split_modules
    _keys_to_ignore_on_load_unexpected = UNUSED_WEIGHTS

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        """Image positions for a prompt; later tokens continue from the last one, as `generate` does by itself."""
        ids = model_kwargs.get("input_ids")
        ids = inputs_tensor if ids is None or ids.shape[1] == 0 else ids
        # Embeddings do not say where images are
        if ids.is_floating_point():
            positions: Tensor = super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
            return positions
        return image_positions(ids == self.config.image_token_id, model_kwargs.get("attention_mask"))
