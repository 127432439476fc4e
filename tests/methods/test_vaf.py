"""VAF against its formula, evaluated directly with numpy on the layer's own queries and keys."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from airvlm.methods.base import Method
from airvlm.methods.vaf import VAF
from airvlm.methods.vcd import VCD
from airvlm.models.parts import ModelParts
from airvlm.testing import small_models

FORMS = pytest.mark.parametrize("faithful", [False, True], ids=["sign-safe", "faithful"])


def attention_pass(model: Any, batch: Any, layer: int, method: Method | None = None) -> tuple[Any, np.ndarray]:
    """(keyword arguments, output) of one layer's attention in one pass."""
    seen: list[Any] = []

    def keep(module: Any, args: Any, kwargs: Any, out: Any) -> None:
        seen.append((kwargs, out[0].numpy()))

    handle = ModelParts.of(model).layers[layer].self_attn.register_forward_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            if method is None:
                model(**batch)
            else:
                with method(model):
                    model(**batch)
    finally:
        handle.remove()
    return seen[0]


def attend_directly(
    module: Any, kwargs: Any, batch: Any, faithful: bool, enhance: float, suppress: float
) -> np.ndarray:
    """The whole attention of a Llama layer in numpy, with VAF's change of scores."""
    x = kwargs["hidden_states"]
    B, L, _ = x.shape
    heads = lambda t: t.view(B, L, -1, module.head_dim).transpose(1, 2)  # noqa: E731 - three uses, one line
    with torch.no_grad():
        q, k, v = heads(module.q_proj(x)), heads(module.k_proj(x)), heads(module.v_proj(x))
        q, k = apply_rotary_pos_emb(q, k, *kwargs["position_embeddings"])
    q, k, v = (t.numpy() for t in (q, k, v))
    k, v = (np.repeat(t, q.shape[1] // k.shape[1], 1) for t in (k, v))
    s = q @ k.swapaxes(-1, -2) * module.scaling  # (B, H, L, L)
    ids, real = batch["input_ids"].numpy(), batch["attention_mask"].numpy().astype(bool)
    for b in range(B):
        image = np.flatnonzero(ids[b] == small_models.IMAGE)
        for i in range(L):
            if len(image) and i > image[0] and i not in image:
                for j in range(L):
                    a = enhance if j in image else -suppress if real[b, j] and j < image[0] else 0.0
                    s[b, :, i, j] = s[b, :, i, j] * (1 + a) if faithful else s[b, :, i, j] + a * np.abs(s[b, :, i, j])
    causal = np.tril(np.ones((L, L), bool))
    s = np.where(causal & real[:, None, None, :], s, -1e30)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = (p @ v).swapaxes(1, 2).reshape(B, L, -1)
    return out @ module.o_proj.weight.detach().numpy().T


@FORMS
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [True, False])
def test_scores_change_as_the_formula_says(faithful: bool, attention: str, padded: bool) -> None:
    model, processor = small_models.build("llava")
    model.set_attn_implementation({"text_config": attention})
    rows = small_models.sample_rows() if padded else small_models.sample_rows()[2:3]
    batch = small_models.build_inputs(processor, rows)
    vaf = VAF(enhance=0.6, suppress=0.3, layers=(1, 3), faithful=faithful)
    kwargs, found = attention_pass(model, batch, 1, vaf)
    expected = attend_directly(ModelParts.of(model).layers[1].self_attn, kwargs, batch, faithful, 0.6, 0.3)
    real = batch["attention_mask"].numpy().astype(bool)
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5, rtol=1e-4)
    _, plain = attention_pass(model, batch, 1)
    without = attend_directly(ModelParts.of(model).layers[1].self_attn, kwargs, batch, faithful, 0.0, 0.0)
    np.testing.assert_allclose(plain[real], without[real], atol=1e-5, rtol=1e-4)
    assert not np.allclose(found[real], plain[real], atol=1e-3)


def test_the_sign_safe_form_raises_and_the_faithful_form_may_lower_attention_to_the_image() -> None:
    s = torch.tensor([-4.0, -4.0, -3.0])  # two image columns, one of text
    for mean, lowered in ((s, True), (-s, False)):
        mass = mean.softmax(0)[:2].sum()
        w = torch.tensor([0.15, 0.15, 0.0])
        assert bool((mean * (1 + w)).softmax(0)[:2].sum() < mass) is lowered
        assert (mean + w * mean.abs()).softmax(0)[:2].sum() > mass


@FORMS
def test_only_queries_after_the_image_change(faithful: bool) -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows())
    _, plain = attention_pass(model, batch, 1)
    _, acted = attention_pass(model, batch, 1, VAF(enhance=0.6, layers=(1, 2), faithful=faithful))
    visual = (batch["input_ids"] == small_models.IMAGE).numpy()
    after = (visual.cumsum(1) > 0) & ~visual
    np.testing.assert_array_equal(acted[~after], plain[~after])
    assert (np.abs(acted - plain).max(-1)[after] > 0).all()


def test_the_second_stream_of_another_method_is_not_changed() -> None:
    """The second stream of VCD is seen by no other method."""
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, small_models.sample_rows()[:1])
    with torch.no_grad():
        with VAF(enhance=0.6)(model):
            amplified = model(**batch).logits
        with VCD(alpha=1.0, beta=0.0)(model):
            contrasted = model(**batch).logits
        plain = model(**batch).logits
        with VCD(alpha=1.0, beta=0.0)(model), VAF(enhance=0.6)(model):
            both = model(**batch).logits
    torch.testing.assert_close(both, 2 * amplified - (2 * plain - contrasted), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("depth", "span"), [(32, range(9, 15)), (40, range(11, 19)), (4, range(1, 2)), (8, range(2, 4))]
)
def test_layers_are_the_published_ones_scaled_to_the_decoder(depth: int, span: range) -> None:
    assert VAF().span(depth) == span


def test_wrong_options_are_refused() -> None:
    for options in ({"enhance": -0.1}, {"suppress": 1.5}, {"layers": (3, 3)}):
        with pytest.raises(ValueError, match=next(iter(options))):
            VAF(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="may end at 4"):
        VAF(layers=(2, 9)).span(4)
