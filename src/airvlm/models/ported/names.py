"""Official weight names -> ours, in the form of transformers' own conversion rules.

Because they are transformers' rules, everything that `from_pretrained` does still works: dtypes, device maps, sharded
files, quantisation on the fly, and `save_pretrained` back to the official names. Knows names and how fused matrices are
cut; knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformers.core_model_loading import (
    Chunk,
    Split,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    rename_source_key,
)

# (pattern in the official name, ours): one after the other, and back in the opposite order; then at most one cut
QWEN_NAMES = (
    (r"^transformer\.wte\.", "model.language_model.embed_tokens."),
    (r"^transformer\.ln_f\.", "model.language_model.norm."),
    (r"^transformer\.h\.(\d+)\.ln_1\.", r"model.language_model.layers.\1.input_layernorm."),
    (r"^transformer\.h\.(\d+)\.ln_2\.", r"model.language_model.layers.\1.post_attention_layernorm."),
    (r"^transformer\.h\.(\d+)\.attn\.c_attn\.", r"model.language_model.layers.\1.self_attn.c_attn."),
    (r"^transformer\.h\.(\d+)\.attn\.c_proj\.", r"model.language_model.layers.\1.self_attn.o_proj."),
    # w2 is the branch that SiLU acts on, so it is the gate
    (r"^transformer\.h\.(\d+)\.mlp\.w1\.", r"model.language_model.layers.\1.mlp.up_proj."),
    (r"^transformer\.h\.(\d+)\.mlp\.w2\.", r"model.language_model.layers.\1.mlp.gate_proj."),
    (r"^transformer\.h\.(\d+)\.mlp\.c_proj\.", r"model.language_model.layers.\1.mlp.down_proj."),
    (r"^transformer\.visual\.", "model.visual."),
    (r"^model\.visual\.transformer\.resblocks\.", "model.visual.resblocks."),
    (r"^model\.visual\.attn_pool\.attn\.out_proj\.", "model.visual.attn_pool.out_proj."),
)
QWEN_CUTS = (
    ("self_attn.c_attn", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("attn_pool.attn.in_proj_weight", tuple(f"attn_pool.{p}_proj.weight" for p in "qkv")),
    ("attn_pool.attn.in_proj_bias", tuple(f"attn_pool.{p}_proj.bias" for p in "qkv")),
)

GLM_LAYER, GLM_OURS = r"^transformer\.builder\.layers\.(\d+)\.", r"model.language_model.layers.\1."
GLM_NAMES = (
    (r"^transformer\.embedding\.word_embeddings\.", "model.language_model.embed_tokens."),
    (r"^transformer\.builder\.final_layernorm\.", "model.language_model.norm."),
    (r"^transformer\.output_layer\.", "lm_head."),
    (GLM_LAYER + r"input_layernorm\.", GLM_OURS + "input_layernorm."),
    (GLM_LAYER + r"post_attention_layernorm\.", GLM_OURS + "post_attention_layernorm."),
    (GLM_LAYER + r"self_attention\.query_key_value\.", GLM_OURS + "self_attn.query_key_value."),
    (GLM_LAYER + r"self_attention\.dense\.", GLM_OURS + "self_attn.o_proj."),
    (GLM_LAYER + r"mlp\.dense_h_to_4h\.", GLM_OURS + "mlp.gate_up_proj."),  # gate first, as transformers' GLM
    (GLM_LAYER + r"mlp\.dense_4h_to_h\.", GLM_OURS + "mlp.down_proj."),
    (r"^transformer\.vision\.", "model.visual."),
    (r"^model\.visual\.transformer\.layers\.", "model.visual.layers."),
)
GLM_CUTS = (("self_attn.query_key_value", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),)


def qwen_conversions() -> list[WeightTransform]:
    cuts = [WeightConverter(source, list(targets), [Chunk(dim=0)]) for source, targets in QWEN_CUTS]
    return [*(WeightRenaming(*pair) for pair in QWEN_NAMES), *cuts]


def glm_conversions() -> list[WeightTransform]:
    # keys and values have fewer heads than queries: three unequal pieces
    cuts = [WeightConverter(source, list(targets), [Split(dim=0)]) for source, targets in GLM_CUTS]
    return [*(WeightRenaming(*pair) for pair in GLM_NAMES), *cuts]


def official_names(ours: Iterable[str], conversions: list[WeightTransform]) -> set[str]:
    """The names under which a checkpoint stores a model whose parameters are `ours`."""
    back = [transform.reverse_transform() for transform in reversed(conversions)]
    renamings = [transform for transform in back if isinstance(transform, WeightRenaming)]
    joins = [transform for transform in back if isinstance(transform, WeightConverter)]
    return {rename_source_key(name, renamings, joins, reverse=True)[0] for name in ours}
