"""The vision towers of the two ported models against a second computation, in numpy and from their description alone.

As test_reference.py does for the decoders: random weights (every bias and norm included), float64, and nothing of the
original code. The reference knows neither torch nor the ports' code; it reads their weights by name, one image at a
time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from airvlm.models.glm_4v.vision import Glm4VVision, Glm4VVisionConfig
from airvlm.models.qwen_vl.vision import QwenVLVisionConfig, QwenVLVisual, grid_sin_cos

Array = NDArray[np.float64]
TOLERANCE = 1e-5  # positions are stretched in float32


class Tower:
    """Linear layers, norms, attention and the cutting into patches, which both towers have."""

    def __init__(self, model: Any, heads: int) -> None:
        self.weights = {name: w.detach().numpy() for name, w in model.state_dict().items()}
        self.heads = heads

    def linear(self, x: Array, name: str) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def norm(self, x: Array, name: str, eps: float = 1e-6) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def patches(self, pixels: Array, name: str, size: int) -> Array:
        """(channels, H, W) -> (patches, width): squares in reading order, each by one matrix product."""
        kernel = self.weights[f"{name}.weight"]
        rows, columns = pixels.shape[1] // size, pixels.shape[2] // size
        cut = [
            pixels[:, r * size : (r + 1) * size, c * size : (c + 1) * size].ravel()
            for r in range(rows)
            for c in range(columns)
        ]
        return np.stack(cut) @ kernel.reshape(len(kernel), -1).T + self.weights.get(f"{name}.bias", 0.0)


def attention(q: Array, k: Array, v: Array) -> Array:
    """One head: every query attends to every key."""
    scores = q @ k.T / np.sqrt(q.shape[-1])
    share = np.exp(scores - scores.max(-1, keepdims=True))
    return share / share.sum(-1, keepdims=True) @ v


def gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def stretched(table: Array, side: int) -> Array:
    """A square table, row by row, at another size: Keys' cubic, a = -0.75, centres aligned, edges repeated."""
    have = math.isqrt(len(table))
    if have == side:
        return table

    def cubic(t: float) -> float:
        t, a = abs(t), -0.75
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0

    weights = np.zeros((side, have))
    for i in range(side):
        centre = (i + 0.5) * have / side - 0.5
        for j in range(math.floor(centre) - 1, math.floor(centre) + 3):
            weights[i, min(max(j, 0), have - 1)] += cubic(centre - j)
    grid = table.reshape(have, have, -1)
    return np.einsum("ar,bc,rcd->abd", weights, weights, grid).reshape(side * side, -1)


class Qwen(Tower):
    """A pre-norm ViT without class token, and one cross-attention from learned queries to its patches."""

    def __call__(self, pixels: Array, patch: int, layers: int) -> Array:
        x = self.patches(pixels, "conv1", patch)
        side = math.isqrt(len(x))
        x = self.norm(x + stretched(self.weights["positional_embedding"], side), "ln_pre")
        for n in range(layers):
            place = f"resblocks.{n}."
            x = x + self.self_attention(self.norm(x, place + "ln_1"), place + "attn.")
            inner = gelu(self.linear(self.norm(x, place + "ln_2"), place + "mlp.c_fc"))
            x = x + self.linear(inner, place + "mlp.c_proj")
        return self.norm(self.resampled(x, side), "ln_post") @ self.weights["proj"]  # not transposed

    def self_attention(self, x: Array, place: str) -> Array:
        """Packed head by head: the queries, keys and values of head 0, then those of head 1."""
        packed = np.split(self.linear(x, place + "in_proj"), self.heads, axis=-1)
        out = [attention(*np.split(head, 3, axis=-1)) for head in packed]
        return self.linear(np.concatenate(out, axis=-1), place + "out_proj")

    def resampled(self, x: Array, side: int) -> Array:
        """Positions are added to queries and keys, and not to values; heads are 128 wide."""
        positions = self.weights["attn_pool.pos_embed"]
        seen = self.norm(self.linear(x, "attn_pool.kv_proj"), "attn_pool.ln_kv")
        wanted = self.norm(self.weights["attn_pool.query"], "attn_pool.ln_q") + positions
        parts = {"q": wanted, "k": seen + stretched(positions, side), "v": seen}
        heads = seen.shape[-1] // 128
        q, k, v = (np.split(self.linear(part, f"attn_pool.{name}_proj"), heads, -1) for name, part in parts.items())
        out = [attention(*head) for head in zip(q, k, v, strict=True)]
        return self.linear(np.concatenate(out, axis=-1), "attn_pool.out_proj")


class Glm(Tower):
    """A ViT with a class token whose branches are normalised where they end; 2 x 2 patches become one token."""

    def __call__(self, pixels: Array, patch: int, layers: int, scale: float) -> Array:
        x = self.patches(pixels, "patch_embedding.proj", patch)
        side = math.isqrt(len(x))
        x = np.concatenate([self.weights["patch_embedding.cls_embedding"], x])
        x = x + self.weights["patch_embedding.position_embedding.weight"]
        for n in range(layers):
            place = f"layers.{n}."
            x = x + self.norm(self.self_attention(x, place + "attention."), place + "input_layernorm")
            branch = self.linear(gelu(self.linear(x, place + "mlp.fc1")), place + "mlp.fc2")
            x = x + self.norm(branch, place + "post_attention_layernorm")
        grid = x[1:].reshape(side, side, -1).transpose(2, 0, 1)  # without the class token
        tokens = self.adapted(self.patches(grid, "conv", 2))
        edges = [self.weights[name].reshape(1, -1) for name in ("boi", "eoi")]
        return np.concatenate([edges[0], tokens, edges[1]]) / scale

    def self_attention(self, x: Array, place: str) -> Array:
        """Packed in three blocks, each head by head."""
        q, k, v = (
            np.split(block, self.heads, axis=-1)
            for block in np.split(self.linear(x, place + "query_key_value"), 3, axis=-1)
        )
        out = [attention(*head) for head in zip(q, k, v, strict=True)]
        return self.linear(np.concatenate(out, axis=-1), place + "dense")

    def adapted(self, x: Array) -> Array:
        x = gelu(self.norm(self.linear(x, "linear_proj.linear_proj"), "linear_proj.norm1", eps=1e-5))
        gated = silu(self.linear(x, "linear_proj.gate_proj")) * self.linear(x, "linear_proj.dense_h_to_4h")
        return self.linear(gated, "linear_proj.dense_4h_to_h")


@pytest.mark.parametrize("side", [32, 48], ids=["as many patches as queries", "more patches than queries"])
def test_qwen_vls_tower_computes_what_its_description_says(side: int) -> None:
    config = QwenVLVisionConfig(
        image_size=side,
        patch_size=8,
        width=32,
        layers=2,
        heads=4,
        mlp_ratio=2.0,
        output_dim=256,
        n_queries=16,
    )
    model = randomised(QwenVLVisual(config))
    compare(model, side, lambda pixels: Qwen(model, 4)(pixels, 8, 2))


def test_glm_4vs_tower_computes_what_its_description_says() -> None:
    config = Glm4VVisionConfig(
        image_size=32,
        patch_size=4,
        num_positions=65,
        hidden_size=32,
        num_hidden_layers=2,
        num_heads=4,
        intermediate_size=64,
        output_size=48,
        output_inner_size=80,
    )
    model = randomised(Glm4VVision(config))
    compare(model, 32, lambda pixels: Glm(model, 4)(pixels, 4, 2, 8.0))


def test_the_resamplers_table_is_a_sine_and_cosine_of_column_and_row() -> None:
    table = grid_sin_cos(16, 3).double().numpy()
    for row in range(3):
        for column in range(3):
            angles = [place / 10000 ** (n / 4) for place in (column, row) for n in range(4)]
            expected = [f(a) for half in (angles[:4], angles[4:]) for f in (math.sin, math.cos) for a in half]
            assert table[3 * row + column] == pytest.approx(expected, abs=1e-6)


def randomised(model: Any) -> Any:
    """Every weight drawn anew, so that biases, norms and positions take part."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.double().named_parameters():
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        norm = weight.ndim == 1 and name.endswith(".weight")
        weight.data = 1 + 0.1 * drawn if norm else 0.2 * drawn
    return model.eval()


def compare(model: Any, side: int, reference: Any) -> None:
    pixels = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        features = model(pixels).pooler_output.numpy()
    expected = np.stack([reference(image.numpy()) for image in pixels])
    assert expected.std() > 1000 * TOLERANCE and expected.shape == features.shape  # the comparison can fail
    assert np.abs(expected[0] - expected[1]).max() > 1000 * TOLERANCE  # and depends on the pixels
    assert features == pytest.approx(expected, abs=TOLERANCE)
