"""A LLaVA with the widths and depth of the 7B model, random weights, and a prompt with one image.

All layers share one set of weights: the 810 MB of a layer in fp32 do not fit into any cache, so every layer still reads
all of its weights from memory and computes all of its products, while 32 layers need the memory of one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import DynamicCache

from airvlm.bench.wide import FFN, HEADS, VOCABULARY, WIDTH, wide_llava, wide_processor

LAYERS, TOWER_LAYERS = 32, 24  # of the real model
LAYER_WEIGHTS = 4 * WIDTH**2 + 3 * WIDTH * FFN
HEAD_WEIGHTS = WIDTH * VOCABULARY


def build(layers: int, tower_layers: int = 1) -> Any:
    """The model in fp32 with so many decoder and vision tower layers, which share the weights of one."""
    model = wide_llava(1, 1)
    repeat_layer(model.get_decoder().layers, layers)
    for i, layer in enumerate(model.get_decoder().layers):
        layer.self_attn.layer_idx = i
    model.config.text_config.num_hidden_layers = layers
    repeat_layer(model.get_encoder(modality="image").encoder.layers, tower_layers)
    return model.requires_grad_(False)


def repeat_layer(layers: nn.ModuleList, count: int) -> None:
    """Extend a list of one layer to `count` layers with the same weights."""
    shared: dict[int, Any] = {id(p): p for p in layers[0].parameters()}
    layers.extend(copy.deepcopy(layers[0], dict(shared)) for _ in range(count - 1))


def sample_image(seed: int = 0, size: tuple[int, int] = (640, 480)) -> Image.Image:
    """A smooth random image."""
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def encode_image(model: Any, image: Image.Image) -> dict[str, Any]:
    """The image's features as an argument of the model's forward, so that no pass encodes it again."""
    pixels = wide_processor()([image], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        features = model.base_model.get_image_features(pixels, return_dict=True)
    return {"mm_encoder_outputs": {"image": features}}


def fill_cache(model: Any, length: int) -> DynamicCache:
    """A cache of `length` random tokens, as a prefill would leave it."""
    cache = DynamicCache(config=model.config.text_config)
    keys = torch.randn(1, HEADS, length, WIDTH // HEADS)
    for layer in range(model.config.text_config.num_hidden_layers):
        cache.update(keys.clone(), keys.clone(), layer)
    return cache


@contextmanager
def without_arithmetic(model: Any) -> Iterator[None]:
    """Layers that compute nothing, so that a pass costs what the method does in it."""
    layers = model.get_decoder().layers
    for layer in layers:
        layer.self_attn.forward = lambda hidden_states, **_: (torch.zeros_like(hidden_states), None)
        layer.mlp.forward = lambda x: x
    try:
        yield
    finally:
        for layer in layers:
            del layer.self_attn.forward, layer.mlp.forward
