"""The decoders of the two ported models against a second computation, in numpy and from their description alone.

Everyone can run these: the weights are random, and nothing of the original code or its outputs is needed. The
reference knows neither torch nor the ports' code; it reads their weights by name and computes in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from airvlm.testing.small_models import build
from tests import all_families  # noqa: F401 - adds the ported families to small_models

Array = NDArray[np.float64]
TOLERANCE = 1e-4  # float32 against float64 over four layers


class Reference:
    """A pre-norm decoder with rotary positions and a gated feed-forward, one sequence at a time."""

    def __init__(self, model: Any, layers: int, heads: int, eps: float) -> None:
        self.weights = {name: w.detach().double().numpy() for name, w in model.state_dict().items()}
        self.layers, self.heads, self.eps = layers, heads, eps

    def __call__(self, ids: list[int]) -> Array:
        """(tokens, vocabulary): the logits."""
        h = self.weights["model.language_model.embed_tokens.weight"][ids]
        for n in range(self.layers):
            place = f"model.language_model.layers.{n}."
            h = h + self.attention(self.norm(h, place + "input_layernorm"), place + "self_attn.")
            h = h + self.feed_forward(self.norm(h, place + "post_attention_layernorm"), place + "mlp.")
        return self.norm(h, "model.language_model.norm") @ self.weights["lm_head.weight"].T

    def norm(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * self.weights[f"{name}.weight"]

    def linear(self, x: Array, name: str) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def attention(self, x: Array, place: str) -> Array:
        q, k, v = (self.linear(x, f"{place}{part}_proj") for part in "qkv")
        size = q.shape[-1] // self.heads
        groups = k.shape[-1] // size
        tokens = np.arange(len(x))
        out = []
        for head in range(self.heads):
            own = head * groups // self.heads  # consecutive heads share keys and values
            mine, theirs = slice(head * size, (head + 1) * size), slice(own * size, (own + 1) * size)
            queries = self.queries(self.rotated(q[:, mine]))
            scores = queries @ self.rotated(k[:, theirs]).T / np.sqrt(size)
            scores[tokens[:, None] < tokens[None, :]] = -np.inf
            share = np.exp(scores - scores.max(-1, keepdims=True))
            out.append(share / share.sum(-1, keepdims=True) @ v[:, theirs])
        return self.linear(np.concatenate(out, axis=-1), f"{place}o_proj")

    def queries(self, q: Array) -> Array:
        return q

    def rotated(self, x: Array) -> Array:
        raise NotImplementedError

    def feed_forward(self, x: Array, place: str) -> Array:
        raise NotImplementedError


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


class Qwen(Reference):
    """Rotation of halves over the whole head; beyond seq_length a larger base, and queries that grow with log n."""

    length = 48

    def rotated(self, x: Array) -> Array:
        tokens, size = x.shape
        alpha = max(2 ** np.ceil(np.log2(tokens / self.length) + 1) - 1, 1.0)
        base = 10000 * alpha ** (size / (size - 2))
        angle = np.arange(tokens)[:, None] / base ** (np.arange(0, size, 2) / size)  # (tokens, size / 2)
        first, second = x[:, : size // 2], x[:, size // 2 :]
        turned = [
            first * np.cos(angle) - second * np.sin(angle),
            second * np.cos(angle) + first * np.sin(angle),
        ]
        return np.concatenate(turned, axis=-1)

    def queries(self, q: Array) -> Array:
        n = np.arange(1, len(q) + 1)
        return q * np.where(n > self.length, np.log(n) / np.log(self.length), 1.0)[:, None]

    def feed_forward(self, x: Array, place: str) -> Array:
        gated = silu(self.linear(x, place + "gate_proj")) * self.linear(x, place + "up_proj")
        return self.linear(gated, place + "down_proj")


class Glm(Reference):
    """Rotation of neighbouring pairs in the first half of each head."""

    def rotated(self, x: Array) -> Array:
        tokens, size = x.shape
        part = size // 2
        angle = np.arange(tokens)[:, None] / 10000 ** (np.arange(0, part, 2) / part)  # (tokens, part / 2)
        even, odd = x[:, 0:part:2], x[:, 1:part:2]
        turned = x.copy()
        turned[:, 0:part:2] = even * np.cos(angle) - odd * np.sin(angle)
        turned[:, 1:part:2] = odd * np.cos(angle) + even * np.sin(angle)
        return turned

    def feed_forward(self, x: Array, place: str) -> Array:
        gate, up = np.split(self.linear(x, place + "gate_up_proj"), 2, axis=-1)
        return self.linear(silu(gate) * up, place + "down_proj")


@pytest.mark.parametrize("tokens", [12, 48, 60], ids=["short", "at seq_length", "beyond seq_length"])
def test_qwen_vls_decoder_computes_what_its_description_says(tokens: int) -> None:
    model, _ = build("qwen")
    reference = Qwen(model, 4, 4, 1e-6)
    expected = _check(model, reference, tokens)
    if tokens > Qwen.length:  # the two rules for long prompts show far above the tolerance
        reference.length = 10**6
        assert np.abs(reference(_ids(tokens)) - expected).max() > 10 * TOLERANCE


@pytest.mark.parametrize("tokens", [5, 40])
def test_glm_4vs_decoder_computes_what_its_description_says(tokens: int) -> None:
    model, _ = build("chatglm")
    _check(model, Glm(model, 4, 4, model.config.layernorm_epsilon), tokens)


def _ids(tokens: int) -> list[int]:
    return [8 + (7 * n) % 100 for n in range(tokens)]  # words, no image tokens


def _check(model: Any, reference: Reference, tokens: int) -> Array:
    ids = _ids(tokens)
    mask = torch.ones(1, tokens, dtype=torch.long)
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([ids]), attention_mask=mask).logits
    expected = reference(ids)
    assert np.abs(expected).max() > 100 * TOLERANCE  # the comparison can fail
    assert logits[0].double().numpy() == pytest.approx(expected, abs=TOLERANCE)
    return expected
