"""VISTA against its formulas: directions from two plain passes, states moved by the test's own hooks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.vista import VISTA
from airvlm.testing import check_method, small_models
from tests.methods.direct import forward, read, rows_with_images
from tests.methods.families import ALL

FAMILIES = ("llava", "qwen2_5_vl", "gemma3")


def unit(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def without_image(model: Any, batch: Any) -> dict[str, Tensor]:
    """The prompt's text alone, without the marks around the image that the config names."""
    config = model.config
    marks = [getattr(config, n, None) for n in ("vision_start_token_id", "vision_end_token_id")]
    marks += [getattr(config, n, None) for n in ("image_start_token_id", "image_end_token_id")]
    marks += [getattr(config, n, None) for n in ("boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id")]
    removed = {small_models.IMAGE, *marks}
    ids = torch.tensor([[t for t in batch["input_ids"][0].tolist() if t not in removed]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def steered(vista: VISTA, y: Tensor, v: Tensor) -> Tensor:
    """The published formula in numpy: y (1, L, d), v (d,)."""
    a, b = y.double().numpy(), v.double().numpy()
    length = np.linalg.norm(a, axis=-1, keepdims=True)
    if vista.faithful:
        against = np.maximum(0, -(unit(a) @ unit(b)))[..., None]
        new = unit(unit(a) + vista.strength * (1 + against) * unit(b)) * length
    else:
        new = unit(a + vista.strength * b) * length
    return torch.from_numpy(new).float()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vista", [VISTA(), VISTA(strength=0.5, faithful=True, window=1)], ids=lambda v: v.label)
def test_states_are_steered_and_late_layers_are_mixed_in(vista: VISTA, family: str) -> None:
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, rows_with_images()[:1])
    shown, blind = read(model, batch, "residual"), read(model, without_image(model, batch), "residual")
    v = [a[0, -1] - b[0, -1] for a, b in zip(shown, blind, strict=True)]
    if vista.faithful:
        v[0][0] += 1  # the principal component of a single sample
    kept: dict[int, Tensor] = {}

    def residual(i: int, r: Tensor) -> Tensor:
        kept[i] = r if vista.faithful else steered(vista, r, v[i])
        return kept[i]

    ffn = (lambda i, y: steered(vista, y, v[i])) if vista.faithful else None
    l = forward(model, batch, ffn=ffn, residual=residual)
    window = range(1, 3) if vista.faithful else range(3)  # one layer more than `window` in the code; four layers
    with torch.no_grad():
        late = torch.stack([model.get_output_embeddings()(kept[i]) for i in window]).mean(0)
    expected = (1 - vista.gamma) * l + vista.gamma * late
    with vista(model) as run, torch.no_grad():
        found = model(**batch).logits
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=5e-3)
    assert run.report.fired


def test_faithful_moves_feed_forwards_and_reads_a_layer_more() -> None:
    paper, code = VISTA(window=2), VISTA(window=2, faithful=True)
    assert (paper.writes, code.writes) == ("residual", "ffn")
    assert list(paper.lens_layers(32)) == [29, 30]
    assert list(code.lens_layers(32)) == [28, 29, 30]
    assert list(VISTA(faithful=True).lens_layers(32)) == list(range(25, 31))  # "25,30" in the published scripts


@pytest.mark.parametrize("half", [{"gamma": 0.0}, {"strength": 0.0}], ids=["steering", "late layers"])
def test_either_half_may_be_left_out(half: dict[str, float]) -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images())
    plain = forward(model, batch)
    with VISTA(**half)(model) as run, torch.no_grad():
        found = model(**batch).logits
    assert not torch.allclose(found, plain, atol=1e-2)
    assert (run.report.norm_ratio is None) == ("strength" in half)


def test_directions_are_those_of_each_prompt_in_generate() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images())
    vista = VISTA(strength=0.4)
    with vista(model):
        out = model.generate(**batch, max_new_tokens=1, return_dict_in_generate=True, output_logits=True)
    with vista(model), torch.no_grad():
        plain = model(**batch).logits[:, -1]
    torch.testing.assert_close(out.logits[0], plain, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ALL)
def test_laws(family: str) -> None:
    check_method(VISTA(strength=0.3), [family])


def test_laws_of_the_faithful_form() -> None:
    check_method(VISTA(strength=0.3, faithful=True), ["llava", "qwen2_5_vl"])
