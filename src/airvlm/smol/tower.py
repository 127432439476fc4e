"""CLIP's image tower from a safetensors file in open_clip's layout.

The hub has OpenAI's own checkpoint in transformers' layout as a pickle only, which is not loaded here. The same weights
are there as safetensors with open_clip's names, where queries, keys and values are one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from torch import Tensor
from transformers import CLIPVisionConfig, CLIPVisionModel

__all__ = ["read_open_clip_tower"]

HEAD_WIDTH = 64  # of all towers that OpenAI released
PREFIX = "visual."
BLOCKS = "transformer.resblocks."
OUTSIDE = {
    "class_embedding": "embeddings.class_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
    "conv1": "embeddings.patch_embedding",
    "ln_pre": "pre_layrnorm",  # transformers' spelling
    "ln_post": "post_layernorm",
}
IN_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def read_open_clip_tower(path: Path) -> CLIPVisionModel:
    """The tower as transformers' model, in float32.

    Raises:
        ValueError: if the file is not such a checkpoint.
    """
    with safe_open(path, "pt") as file:
        names = [name for name in file.keys() if name.startswith(PREFIX)]  # noqa: SIM118  # not a dict
        tensors = {name.removeprefix(PREFIX): file.get_tensor(name).float() for name in names}
    try:
        model = CLIPVisionModel(_config(tensors)).eval()
        model.load_state_dict(dict(_rename(tensors)), strict=True)
    except (KeyError, TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        raise ValueError(f"{path.name} is not a CLIP checkpoint in open_clip's layout ({error})") from error
    return model


def _config(tensors: dict[str, Tensor]) -> CLIPVisionConfig:
    width, _, patch, _ = tensors["conv1.weight"].shape
    side = round((len(tensors["positional_embedding"]) - 1) ** 0.5)
    return CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=len(tensors[f"{BLOCKS}0.mlp.c_fc.weight"]),
        num_hidden_layers=len({name.split(".")[2] for name in tensors if name.startswith(BLOCKS)}),
        num_attention_heads=width // HEAD_WIDTH,
        image_size=side * patch,
        patch_size=patch,
    )


def _rename(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        if name in OUTSIDE:
            yield OUTSIDE[name], tensor
        elif not name.startswith(BLOCKS):
            layer, _, kind = name.rpartition(".")
            if layer:  # else the projection into the space shared with text, which no model here reads
                yield f"{OUTSIDE[layer]}.{kind}", tensor
        else:
            number, _, rest = name.removeprefix(BLOCKS).partition(".")
            place = f"encoder.layers.{number}"
            if rest.startswith("attn.in_proj_"):
                for part, own in zip("qkv", tensor.chunk(3), strict=True):
                    yield f"{place}.self_attn.{part}_proj.{rest.removeprefix('attn.in_proj_')}", own.contiguous()
            else:
                layer, _, kind = rest.rpartition(".")
                yield f"{place}.{IN_BLOCK[layer]}.{kind}", tensor
