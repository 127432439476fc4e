"""Qwen-VL and Qwen-VL-Chat in the shape of transformers' own vision-language models.

Reads the official config.json (flat, model_type "qwen", with a `visual` section) and puts the image's visual tokens
between <img> and </img>. Knows nothing of files, weight names, tokenizers or prompts.
"""

# ruff: noqa: RUF012 - these are the class attributes that transformers reads

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from airvlm.models.ported.image_lm import VisionLanguageForConditionalGeneration, VisionLanguageModel
from airvlm.models.ported.official_config import OfficialConfig
from airvlm.models.qwen_vl.decoder import QwenVLTextConfig, QwenVLTextModel
from airvlm.models.qwen_vl.vision import QwenVLVisionConfig, QwenVLVisual


class QwenVLConfig(OfficialConfig):
    """The official file's fields, and the two sub-configurations that transformers' machinery expects."""

    model_type = "qwen"
    sub_configs_defaults = {"text_config": QwenVLTextConfig, "vision_config": QwenVLVisionConfig}
    keys_to_ignore_at_inference = ["past_key_values"]
    title = "Qwen-VL"
    derived = ("text_config", "vision_config")
    released = {"no_bias": True, "scale_attn_weights": True, "rotary_pct": 1.0}

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
    image_token_id: int | None = None  # of the tokens between <img> and </img>; None: <imgpad>, as released
    visual: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if not isinstance(self.vision_config, PreTrainedConfig):
            self.vision_config = {**(self.visual or {}), **(self.vision_config or {})}
        super().__post_init__(**kwargs)
        if self.image_token_id is None:
            self.image_token_id = self.image_start_id + 2

    def text(self) -> dict[str, Any]:
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

    @property
    def image_start_id(self) -> int:
        """<img>; the ids of </img> and <imgpad> follow it."""
        return int(self.vision_config.image_start_id)

    @property
    def image_rows(self) -> int:
        return int(self.vision_config.n_queries)


class QwenVLModel(VisionLanguageModel):
    config_class = QwenVLConfig
    _no_split_modules = ["Qwen2DecoderLayer", "VisualBlock", "Resampler"]

    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__(config)
        self.visual = QwenVLVisual(config.vision_config)
        self.language_model = QwenVLTextModel(config.text_config)
        self.post_init()

    def between_tags(self, input_ids: Tensor) -> Tensor:
        """True between <img> and </img>, whatever ids stand there: the original writes the file's path into them."""
        start = self.config.image_start_id
        opened = (input_ids == start).cumsum(-1)
        closed = (input_ids == start + 1).cumsum(-1)
        return (opened > closed) & (input_ids != start)

    def spelled_out(self, input_ids: Tensor) -> Tensor:
        """The same ids with `image_token_id` in every span: what methods and beam search look for."""
        return input_ids.masked_fill(self.between_tags(input_ids), self.config.image_token_id)

    def with_images(self, input_ids: Tensor, inputs_embeds: Tensor, tokens: Tensor, images: int) -> Tensor:
        places = self.between_tags(input_ids).to(inputs_embeds.device)
        if int(places.sum()) != len(tokens):
            raise ValueError(
                f"The prompts hold {int(places.sum())} ids between <img> and </img>, but {images} images give "
                f"{len(tokens)} visual tokens. Build prompts with the processor, one <img></img> per image."
            )
        return inputs_embeds.masked_scatter(places[..., None], tokens)


class QwenVLForConditionalGeneration(VisionLanguageForConditionalGeneration):
    config_class = QwenVLConfig
    base = QwenVLModel
    _no_split_modules = QwenVLModel._no_split_modules

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. Paths that the original's tokenizer writes between <img> and </img> are blanked first."""
        if inputs is not None and not inputs.is_floating_point():
            inputs = self.model.spelled_out(inputs)
        if kwargs.get("input_ids") is not None:
            kwargs["input_ids"] = self.model.spelled_out(kwargs["input_ids"])
        return super().generate(inputs, *args, **kwargs)

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        """Also note the prompts' lengths: they alone decide the rotary base, also when no cache remembers them."""
        position_ids: Tensor = super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
        remembered = getattr(model_kwargs.get("past_key_values"), "rope_lengths", None)
        if model_kwargs.get("rope_lengths") is None and remembered is None:
            lengths = position_ids.max(dim=-1).values + 1
            model_kwargs["rope_lengths"] = lengths.expand(inputs_tensor.shape[0]).contiguous()
        return position_ids
