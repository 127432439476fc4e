"""Qwen-VL and Qwen-VL-Chat in the form of transformers' own vision-language models.

Reads the official config.json (flat, model_type "qwen", with a `visual` section) and weights, and puts an image's
visual tokens between <img> and </img>.
"""

# ruff: noqa: RUF012 - transformers reads these class attributes

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig
from transformers.core_model_loading import Chunk, WeightConverter, WeightRenaming, WeightTransform

from airvlm.models.ported.model import OfficialConfig, VisionLanguageForConditionalGeneration, VisionLanguageModel
from airvlm.models.qwen_vl.decoder import QwenVLTextConfig, QwenVLTextModel
from airvlm.models.qwen_vl.vision import QwenVLVisionConfig, QwenVLVisual

# (pattern in the official weight name, our name), applied one after the other, and in reverse order when saving
_LAYER, _OURS = r"^transformer\.h\.(\d+)\.", r"model.language_model.layers.\1."
WEIGHT_NAMES = (
    (r"^transformer\.wte\.", "model.language_model.embed_tokens."),
    (r"^transformer\.ln_f\.", "model.language_model.norm."),
    (_LAYER + r"ln_1\.", _OURS + "input_layernorm."),
    (_LAYER + r"ln_2\.", _OURS + "post_attention_layernorm."),
    (_LAYER + r"attn\.c_attn\.", _OURS + "self_attn.c_attn."),
    (_LAYER + r"attn\.c_proj\.", _OURS + "self_attn.o_proj."),
    # w2 is the branch that SiLU acts on, so it is the gate
    (_LAYER + r"mlp\.w1\.", _OURS + "mlp.up_proj."),
    (_LAYER + r"mlp\.w2\.", _OURS + "mlp.gate_proj."),
    (_LAYER + r"mlp\.c_proj\.", _OURS + "mlp.down_proj."),
    (r"^transformer\.visual\.", "model.visual."),
    (r"^model\.visual\.transformer\.resblocks\.", "model.visual.resblocks."),
    (r"^model\.visual\.attn_pool\.attn\.out_proj\.", "model.visual.attn_pool.out_proj."),
)
# Fused matrices -> their three equal parts
FUSED_WEIGHTS = (
    ("self_attn.c_attn", [f"self_attn.{p}_proj" for p in "qkv"]),
    ("attn_pool.attn.in_proj_weight", [f"attn_pool.{p}_proj.weight" for p in "qkv"]),
    ("attn_pool.attn.in_proj_bias", [f"attn_pool.{p}_proj.bias" for p in "qkv"]),
)
# Fields that have the same name in the text section
SAME_IN_TEXT = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads max_position_embeddings initializer_range "
    "tie_word_embeddings use_cache seq_length use_dynamic_ntk use_logn_attn"
).split()


def qwen_conversions() -> list[WeightTransform]:
    """Official weight names -> ours, as transformers' rules, so that device maps, quantization and saving work."""
    splits = [WeightConverter(source, targets, [Chunk(dim=0)]) for source, targets in FUSED_WEIGHTS]
    return [*(WeightRenaming(*pair) for pair in WEIGHT_NAMES), *splits]


class QwenVLConfig(OfficialConfig):
    """The fields of the official file, and the two sub-configurations that transformers expects."""

    model_type = "qwen"
    sub_configs_defaults = {"text_config": QwenVLTextConfig, "vision_config": QwenVLVisionConfig}
    keys_to_ignore_at_inference = ["past_key_values"]
    title = "Qwen-VL"
    derived = ("text_config", "vision_config")
    required_values = {"no_bias": True, "scale_attn_weights": True, "rotary_pct": 1.0}

    vocab_size: int = 151936
    hidden_size: int = 4096
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    kv_channels: int = 128  # width of a head
    intermediate_size: int = 22016  # twice the feed-forward's real width
    layer_norm_epsilon: float = 1e-6
    seq_length: int = 2048  # where dynamic NTK and log-n begin
    max_position_embeddings: int = 8192
    rotary_pct: float = 1.0
    rotary_emb_base: float = 10000
    use_dynamic_ntk: bool = True
    use_logn_attn: bool = True
    no_bias: bool = True  # of output projections and feed-forwards; q, k and v have one
    scale_attn_weights: bool = True
    attn_dropout_prob: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    use_cache: bool = True
    pad_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    image_token_id: int | None = None  # id of the visual tokens; None: <imgpad>, as released
    visual: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if not isinstance(self.vision_config, PreTrainedConfig):
            self.vision_config = {**(self.visual or {}), **(self.vision_config or {})}
        super().__post_init__(**kwargs)
        if self.image_token_id is None:
            self.image_token_id = self.image_start_id + 2

    def text_fields(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in SAME_IN_TEXT},
            "num_key_value_heads": self.num_attention_heads,
            "head_dim": self.kv_channels,
            "intermediate_size": self.intermediate_size // 2,
            "hidden_act": "silu",
            "rms_norm_eps": self.layer_norm_epsilon,
            "rope_parameters": {"rope_type": "default", "rope_theta": float(self.rotary_emb_base)},
            "attention_dropout": self.attn_dropout_prob,
        }

    @property
    def image_start_id(self) -> int:
        """The id of <img>; those of </img> and <imgpad> follow it."""
        return int(self.vision_config.image_start_id)

    @property
    def image_start_token_id(self) -> int:
        """Id of <img>, under the name by which methods find the marks around an image."""
        return self.image_start_id

    @property
    def image_end_token_id(self) -> int:
        """Id of </img>."""
        return self.image_start_id + 1

    @property
    def num_image_tokens(self) -> int:
        """Visual tokens per image."""
        return int(self.vision_config.n_queries)


class QwenVLModel(VisionLanguageModel):
    config_class = QwenVLConfig
    _no_split_modules = ["Qwen2DecoderLayer", "VisualBlock", "Resampler"]

    def __init__(self, config: QwenVLConfig) -> None:
        super().__init__(config)
        self.visual = QwenVLVisual(config.vision_config)
        self.language_model = QwenVLTextModel(config.text_config)
        self.post_init()

    def image_span_mask(self, input_ids: Tensor) -> Tensor:
        """True between <img> and </img>, whatever ids are there: the original writes the path of the file into them."""
        start = self.config.image_start_id
        opened = (input_ids == start).cumsum(-1)
        closed = (input_ids == start + 1).cumsum(-1)
        return (opened > closed) & (input_ids != start)

    def fill_image_spans(self, input_ids: Tensor) -> Tensor:
        """The same ids with `image_token_id` in every span, which methods and beam search look for."""
        return input_ids.masked_fill(self.image_span_mask(input_ids), self.config.image_token_id)

    def insert_visual_tokens(self, input_ids: Tensor, inputs_embeds: Tensor, tokens: Tensor, num_images: int) -> Tensor:
        places = self.image_span_mask(input_ids).to(inputs_embeds.device)
        if int(places.sum()) != len(tokens):
            raise ValueError(
                f"The prompts hold {int(places.sum())} ids between <img> and </img>, but {num_images} images give "
                f"{len(tokens)} visual tokens. Build prompts with the processor, one <img></img> per image."
            )
        return inputs_embeds.masked_scatter(places[..., None], tokens)


class QwenVLForConditionalGeneration(VisionLanguageForConditionalGeneration):
    config_class = QwenVLConfig
    base = QwenVLModel
    _no_split_modules = QwenVLModel._no_split_modules

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. Paths that the original's tokenizer writes between <img> and </img> are removed first."""
        if inputs is not None and not inputs.is_floating_point():
            inputs = self.model.fill_image_spans(inputs)
        if kwargs.get("input_ids") is not None:
            kwargs["input_ids"] = self.model.fill_image_spans(kwargs["input_ids"])
        return super().generate(inputs, *args, **kwargs)

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        """Also record the prompt lengths, which alone decide the rotary base, for when no cache keeps them."""
        position_ids: Tensor = super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
        remembered = getattr(model_kwargs.get("past_key_values"), "rope_lengths", None)
        if model_kwargs.get("rope_lengths") is None and remembered is None:
            lengths = position_ids.max(dim=-1).values + 1
            model_kwargs["rope_lengths"] = lengths.expand(inputs_tensor.shape[0]).contiguous()
        return position_ids
