"""The released models, built without memory: number of parameters, weight names and the parts that methods use."""

from typing import Any

import pytest
import torch

from airvlm.models import PORTS
from airvlm.models.parts import ModelParts
from airvlm.models.ported.checkpoint import official_names
from airvlm.runtime.streams import image_marks
from tests.models.ported import tiny_checkpoints as tiny

# The names in the released checkpoints, one layer of each kind. They are written out here, because small checkpoints
# that the tests make cannot show that a name is the official one.
QWEN_NAMES = """
transformer.wte.weight transformer.h.0.ln_1.weight transformer.h.0.attn.c_attn.weight transformer.h.0.attn.c_attn.bias
transformer.h.0.attn.c_proj.weight transformer.h.0.ln_2.weight transformer.h.0.mlp.w1.weight
transformer.h.0.mlp.w2.weight transformer.h.0.mlp.c_proj.weight transformer.ln_f.weight lm_head.weight
transformer.visual.conv1.weight transformer.visual.positional_embedding transformer.visual.ln_pre.weight
transformer.visual.ln_pre.bias transformer.visual.transformer.resblocks.0.ln_1.weight
transformer.visual.transformer.resblocks.0.ln_1.bias transformer.visual.transformer.resblocks.0.ln_2.weight
transformer.visual.transformer.resblocks.0.ln_2.bias transformer.visual.transformer.resblocks.0.attn.in_proj.weight
transformer.visual.transformer.resblocks.0.attn.in_proj.bias
transformer.visual.transformer.resblocks.0.attn.out_proj.weight
transformer.visual.transformer.resblocks.0.attn.out_proj.bias
transformer.visual.transformer.resblocks.0.mlp.c_fc.weight transformer.visual.transformer.resblocks.0.mlp.c_fc.bias
transformer.visual.transformer.resblocks.0.mlp.c_proj.weight transformer.visual.transformer.resblocks.0.mlp.c_proj.bias
transformer.visual.attn_pool.query transformer.visual.attn_pool.pos_embed transformer.visual.attn_pool.kv_proj.weight
transformer.visual.attn_pool.ln_q.weight transformer.visual.attn_pool.ln_q.bias
transformer.visual.attn_pool.ln_kv.weight transformer.visual.attn_pool.ln_kv.bias
transformer.visual.attn_pool.attn.in_proj_weight transformer.visual.attn_pool.attn.in_proj_bias
transformer.visual.attn_pool.attn.out_proj.weight transformer.visual.attn_pool.attn.out_proj.bias
transformer.visual.ln_post.weight transformer.visual.ln_post.bias transformer.visual.proj
"""
GLM_NAMES = """
transformer.embedding.word_embeddings.weight transformer.encoder.layers.0.input_layernorm.weight
transformer.encoder.layers.0.self_attention.query_key_value.weight
transformer.encoder.layers.0.self_attention.query_key_value.bias
transformer.encoder.layers.0.self_attention.dense.weight transformer.encoder.layers.0.post_attention_layernorm.weight
transformer.encoder.layers.0.mlp.dense_h_to_4h.weight transformer.encoder.layers.0.mlp.dense_4h_to_h.weight
transformer.encoder.final_layernorm.weight transformer.output_layer.weight
transformer.vision.patch_embedding.proj.weight transformer.vision.patch_embedding.proj.bias
transformer.vision.patch_embedding.cls_embedding transformer.vision.patch_embedding.position_embedding.weight
transformer.vision.transformer.layers.0.attention.query_key_value.weight
transformer.vision.transformer.layers.0.attention.query_key_value.bias
transformer.vision.transformer.layers.0.attention.dense.weight
transformer.vision.transformer.layers.0.attention.dense.bias
transformer.vision.transformer.layers.0.input_layernorm.weight
transformer.vision.transformer.layers.0.input_layernorm.bias transformer.vision.transformer.layers.0.mlp.fc1.weight
transformer.vision.transformer.layers.0.mlp.fc1.bias transformer.vision.transformer.layers.0.mlp.fc2.weight
transformer.vision.transformer.layers.0.mlp.fc2.bias
transformer.vision.transformer.layers.0.post_attention_layernorm.weight
transformer.vision.transformer.layers.0.post_attention_layernorm.bias transformer.vision.conv.weight
transformer.vision.conv.bias transformer.vision.linear_proj.linear_proj.weight
transformer.vision.linear_proj.norm1.weight transformer.vision.linear_proj.norm1.bias
transformer.vision.linear_proj.gate_proj.weight transformer.vision.linear_proj.dense_h_to_4h.weight
transformer.vision.linear_proj.dense_4h_to_h.weight transformer.vision.boi transformer.vision.eoi
"""


def released(model_type: str) -> Any:
    """The released model on the meta device: all defaults of its configuration are the released values."""
    port = PORTS[model_type]
    with torch.device("meta"):
        return port.model(port.config(**{port.section: {}}))


@pytest.mark.parametrize(
    ("model_type", "parameters", "tokens", "image_token_id"),
    [("qwen", 9_656_935_168, 256, 151859), ("chatglm", 13_906_320_896, 1600, 151343)],
)
def test_the_released_model_has_the_published_size(
    model_type: str, parameters: int, tokens: int, image_token_id: int
) -> None:
    model = released(model_type)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert (model.config.num_image_tokens, model.config.image_token_id) == (tokens, image_token_id)


@pytest.mark.parametrize(
    ("model_type", "names", "layers", "blocks"), [("qwen", QWEN_NAMES, 32, 48), ("chatglm", GLM_NAMES, 40, 63)]
)
def test_the_weight_names_are_those_of_the_released_files(
    model_type: str, names: str, layers: int, blocks: int
) -> None:
    wanted = set()
    for name in names.split():
        count = blocks if ".visual." in name or ".vision." in name else layers
        wanted |= {name.replace(".0.", f".{i}.") for i in range(count)}
    assert official_names(released(model_type).state_dict(), PORTS[model_type].conversions()) == wanted


@pytest.mark.parametrize("model_type", tiny.MODELS)
def test_methods_find_the_attention_and_its_heads(model_type: str) -> None:
    model = tiny.model(model_type)
    parts = ModelParts.of(model)
    text = model.config.text_config
    assert len(parts.attentions) == len(parts.output_projections) == text.num_hidden_layers
    for layer in range(text.num_hidden_layers):
        assert parts.num_heads(layer) == text.num_attention_heads
        # The projection reads the heads one after the other, (B, L, heads * head_dim): zeroing a slice removes a head
        projection: Any = parts.output_projections[layer]
        assert projection.in_features == text.num_attention_heads * text.head_dim
        assert projection.out_features == parts.hidden_size


def test_methods_find_the_marks_around_an_image_of_qwen_vl() -> None:
    model = tiny.model("qwen")
    start = model.config.vision_config.image_start_id
    assert image_marks(ModelParts.of(model)) == {start, start + 1, start + 2}
