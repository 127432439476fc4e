"""Attention is changed at an image's own keys, also where turns without an image were cached before it."""

from typing import Any

import pytest
import torch
from transformers.modeling_utils import AttentionInterface

from airvlm.methods import ADHH, MLIHE, PAI, SPIN, VAF, Method
from airvlm.runtime.attention import PREFIX
from airvlm.testing import small_models

TEXT = "USER: how many . ASSISTANT: two . "


def build(text: str, images: list[Any]) -> tuple[Any, dict[str, Any]]:
    model, processor = small_models.shared_model("llava")
    return model, dict(small_models.build_inputs(processor, [(text, images)]))


@torch.no_grad()
def test_an_image_after_a_cached_text_turn_is_found_at_its_own_keys() -> None:
    image = small_models.sample_image(1)
    method = VAF(suppress=0.0, enhance=0.5)  # text before an image of a later turn is not suppressed
    model, whole = build(TEXT + "USER: <image> is there a fork ? ASSISTANT:", [image])
    _, first = build(TEXT, [])
    split = first["input_ids"].shape[1]
    assert torch.equal(whole["input_ids"][:, :split], first["input_ids"])
    with method(model):
        expected = model(**whole).logits[:, split:]
    plain = model(**whole).logits[:, split:]
    assert not torch.allclose(plain, expected, atol=1e-3)
    with method(model) as run:
        cache = model(input_ids=whole["input_ids"][:, :split], use_cache=True).past_key_values
        found = model(
            input_ids=whole["input_ids"][:, split:], pixel_values=whole["pixel_values"], past_key_values=cache
        ).logits
    assert run.report.fired
    assert torch.allclose(found, expected, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    "method",
    [
        VAF(enhance=0.8, suppress=0.4, layers=(1, 4)),
        VAF(enhance=0.8, suppress=0.4, layers=(1, 4), faithful=True),
        PAI(gamma=1.0),
        MLIHE(),
        SPIN(keep=0.5),
        ADHH(heads=((1, 0), (1, 2), (2, 1)), tau=0.1),
    ],
    ids=lambda method: method.label,
)
def test_text_after_a_cached_turn_that_ended_with_the_image_is_changed_alike(method: Method) -> None:
    model, whole = build("USER: <image> is there a fork ? ASSISTANT:", [small_models.sample_image(1)])
    split = int((whole["input_ids"][0] == small_models.IMAGE).nonzero()[-1]) + 1
    with method(model):
        expected = model(**whole).logits[:, split:]
    with method(model) as run:
        cache = model(
            input_ids=whole["input_ids"][:, :split], pixel_values=whole["pixel_values"], use_cache=True
        ).past_key_values
        found = model(input_ids=whole["input_ids"][:, split:], past_key_values=cache).logits
    assert run.report.fired
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("outer_first", [True, False])
def test_the_attention_is_ours_until_the_last_of_two_sessions_ends(outer_first: bool) -> None:
    model, _ = build(TEXT, [])
    config = model.config.text_config
    before = config._attn_implementation
    outer, inner = VAF()(model), VAF(enhance=0.1)(model)
    outer.__enter__()
    inner.__enter__()
    order = [outer, inner] if outer_first else [inner, outer]
    if outer_first:
        with pytest.warns(RuntimeWarning, match="ended before blocks"):
            order[0].__exit__(None, None, None)
    else:
        order[0].__exit__(None, None, None)
    assert config._attn_implementation == PREFIX + before
    order[1].__exit__(None, None, None)
    assert config._attn_implementation == before
    assert not [name for name in AttentionInterface._global_mapping if name.startswith(PREFIX)]


def test_the_attention_is_ours_as_long_as_any_of_three_sessions() -> None:
    model, _ = build(TEXT, [])
    config = model.config.text_config
    before = config._attn_implementation
    with VAF()(model):
        with VAF()(model):
            with VAF()(model):
                pass
            assert config._attn_implementation == PREFIX + before
        assert config._attn_implementation == PREFIX + before
    assert config._attn_implementation == before
