"""RUDDER against its formula, on attention outputs and states of plain passes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.rudder import RUDDER
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import check_method, small_models
from tests.methods.direct import finished, forward, read, rows_with_images
from tests.methods.families import ALL, FEW

TOKENS = 4


def softplus(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.log1p(np.exp(x))


def expected_change(rudder: RUDDER, h: Tensor, a: Tensor, prompt: int, visual: Tensor) -> Tensor:
    """What is added to the attention outputs (L, d) of one row: h are the layer's inputs, a its attention outputs."""
    states, written = h.double().numpy(), a[:prompt].double().numpy()
    weight = {
        "weighted": np.linalg.norm(written, axis=-1),
        "mean": np.ones(prompt),
        "image": visual.double().numpy(),
        "text": 1 - visual.double().numpy(),
    }[rudder.pool]
    pooled = (written * weight[:, None]).sum(0)
    v = pooled / np.linalg.norm(pooled)
    lengths = np.linalg.norm(states[:prompt], axis=-1)
    if rudder.pool in ("image", "text"):
        lengths = lengths[weight > 0]
    scale = rudder.strength * (1.0 if rudder.absolute else np.sort(lengths)[(len(lengths) - 1) // 2])
    s = states @ v / np.linalg.norm(states, axis=-1)
    up, down = softplus(rudder.k * s + rudder.c), softplus(-rudder.k * s + rudder.c)
    gate = np.clip(up / (up + down), rudder.lowest, 1) if rudder.gate else np.ones(len(s))
    added = scale * gate[:, None] * v
    added[:prompt] = 0
    return torch.from_numpy(added).float()


@pytest.mark.parametrize(
    "rudder",
    [
        RUDDER(),
        RUDDER(pool="mean", layer=1, strength=0.6),
        RUDDER(pool="image", gate=False),
        RUDDER(pool="text", strength=2.0, absolute=True, layer=0),
        RUDDER(k=20.0, lowest=0.4),
    ],
    ids=lambda rudder: rudder.label,
)
@pytest.mark.parametrize("family", FEW)
def test_decode_steps_are_moved_along_what_attention_wrote(rudder: RUDDER, family: str) -> None:
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, rows_with_images()[:1])
    prompt, layer = batch["input_ids"].shape[1], 3 if rudder.layer is None else rudder.layer
    with rudder(model):
        out = model.generate(
            **batch, max_new_tokens=TOKENS, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    inputs = finished(batch, out.sequences)
    if layer:
        h = read(model, inputs, "residual")[layer - 1][0]
    else:
        kept: list[Tensor] = []
        hook = (
            model.get_decoder()
            .layers[0]
            .register_forward_pre_hook(lambda m, a, k: kept.append(a[0] if a else k["hidden_states"]), with_kwargs=True)
        )
        forward(model, inputs)
        hook.remove()
        h = kept[0][0]
    a = read(model, inputs, "attention")[layer][0]
    added = expected_change(rudder, h, a, prompt, batch["input_ids"][0] == small_models.IMAGE)
    expected = forward(model, inputs, attention=lambda i, y: y + added if i == layer else y)[:, prompt - 1 : -1]
    torch.testing.assert_close(torch.stack(out.logits, 1), expected, rtol=1e-3, atol=2e-3)
    assert added[prompt:].norm() > 0


def test_rudder_add_is_the_gate_of_steepness_0_at_twice_the_strength() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images()[:1])
    logits = []
    for rudder in (RUDDER(gate=False, strength=0.2), RUDDER(k=0.0, strength=0.4)):
        with rudder(model):
            out = model.generate(**batch, max_new_tokens=3, return_dict_in_generate=True, output_logits=True)
        logits.append(torch.stack(out.logits))
    torch.testing.assert_close(*logits)


def test_the_first_token_is_not_steered() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images()[:1])
    with pytest.warns(MethodInactiveWarning, match="second generated token"), RUDDER()(model):
        model.generate(**batch, max_new_tokens=1)
    with pytest.raises(ValueError, match="the decoder has 4 layers"):
        RUDDER(layer=4)(model)
    with pytest.raises(ValueError, match="lowest"):
        RUDDER(lowest=1.5)


@pytest.mark.parametrize("family", ALL)
def test_laws(family: str) -> None:
    check_method(RUDDER(strength=0.5), [family])
