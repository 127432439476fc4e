"""VCD against its formula, evaluated by two plain passes of the model."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.base import Method
from airvlm.methods.noise import noised, schedule
from airvlm.methods.vcd import VCD, contrast
from airvlm.runtime.session import MethodInactiveWarning
from tests import tiny_models

TOKENS = 5


def plain_logits(model: Any, batch: Any, ids: Tensor) -> Tensor:
    """Logits of the generated tokens (B, TOKENS, V), in one pass over the finished sequences, without any method."""
    new = ids.shape[1] - batch["input_ids"].shape[1]
    more = {
        k: v
        for k, v in batch.items()
        if k not in ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
    }
    mask = torch.cat([batch["attention_mask"], torch.ones(len(ids), new, dtype=torch.long)], 1)
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in batch:
            more[name] = (ids == tiny_models.IMAGE).long()
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask, **more).logits
    return out[:, -new - 1 : -1]


def said(model: Any, batch: Any, **options: Any) -> Any:
    return model.generate(
        **batch,
        **{"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, **options},
        return_dict_in_generate=True,
        output_logits=True,
    )


def with_noise(batch: Any, vcd: VCD) -> dict[str, Any]:
    return {**batch, **noised(batch, vcd.noise_step, vcd.seed)}


@pytest.mark.parametrize("family", ["llava", "llava_next", "qwen2_5_vl", "glm4v", "idefics3", "internvl", "gemma3"])
@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True}, {"use_cache": False}], ids=["greedy", "sampled", "uncached"]
)
def test_every_step_is_the_contrast_of_two_plain_passes(family: str, options: dict[str, Any]) -> None:
    model, processor = tiny_models.shared(family)
    rows = [row for row in tiny_models.rows() if row[1]]
    batch = tiny_models.inputs(processor, rows)
    vcd = VCD(alpha=0.8, beta=0.05)
    with vcd(model) as run:
        out = said(model, batch, **options)
    clean, noisy = (plain_logits(model, b, out.sequences) for b in (batch, with_noise(batch, vcd)))
    expected = contrast(clean, noisy, vcd.alpha, vcd.beta)
    found = torch.stack(out.logits, 1)
    sure = (clean - clean.amax(-1, keepdim=True) - np.log(0.05)).abs() > 1e-2  # not at the edge of the cut
    torch.testing.assert_close(found[sure], expected[sure], rtol=1e-3, atol=5e-3)
    assert run.report.fired and run.report.passes == TOKENS


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "gemma3"])  # GLM's own beams differ without a cache
def test_beams_reorder_both_streams(family: str) -> None:
    model, processor = tiny_models.shared(family)
    batch = tiny_models.inputs(processor, [row for row in tiny_models.rows() if row[1]])
    vcd = VCD(beta=0.0)  # a cut may leave fewer tokens than beams, whose order then means nothing
    with vcd(model):
        out = said(model, batch, num_beams=3)
        uncached = said(model, batch, num_beams=3, use_cache=False)
    assert torch.equal(out.sequences, uncached.sequences)
    for cached, fresh in zip(out.logits, uncached.logits, strict=True):
        torch.testing.assert_close(cached, fresh, rtol=1e-3, atol=5e-3)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "glm46v"])
def test_the_streams_do_not_disturb_each_others_rope_state(family: str) -> None:
    model, processor = tiny_models.shared(family)
    first, second = (tiny_models.inputs(processor, tiny_models.rows()[i : i + 1]) for i in (0, 3))  # unlike grids
    plain = said(model, first)
    state = model.base_model.rope_deltas.clone()
    with VCD()(model):
        said(model, first)
        assert torch.equal(model.base_model.rope_deltas, state)
        ours = said(model, second)
        assert torch.equal(torch.stack(ours.logits), torch.stack(said(model, second).logits))
    assert torch.equal(torch.stack(said(model, first).logits), torch.stack(plain.logits))


def test_the_contrast_is_the_formula_in_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    l, m = torch.randn(3, 50, generator=generator), torch.randn(3, 50, generator=generator)
    found = contrast(l, m, 1.0, 0.1).numpy()
    a, b = l.numpy(), m.numpy()
    p = np.exp(a) / np.exp(a).sum(-1, keepdims=True)
    plausible = p >= 0.1 * p.max(-1, keepdims=True)
    np.testing.assert_allclose(found[plausible], (2 * a - b)[plausible], atol=1e-6)
    assert (found[~plausible] == np.finfo(np.float32).min).all() and (~plausible).any()
    assert torch.equal(contrast(l, m, 0.0, 0.0), l)


@pytest.mark.parametrize(
    ("step", "weights"), [(250, (0.99, 0.15)), (500, (0.86, 0.51)), (700, (0.59, 0.81)), (999, (0.29, 0.96))]
)
def test_the_schedule_is_the_published_one(step: int, weights: tuple[float, float]) -> None:
    assert schedule(step) == pytest.approx(weights, abs=0.005)


def test_a_images_noise_depends_on_nothing_but_the_image_and_the_seed() -> None:
    pixels = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    one = noised({"pixel_values": pixels}, 500, 0)["pixel_values"]
    torch.manual_seed(2)
    assert torch.equal(one[[2, 0, 1]], noised({"pixel_values": pixels[[2, 0, 1]]}, 500, 0)["pixel_values"])
    assert not torch.equal(one, noised({"pixel_values": pixels}, 500, 1)["pixel_values"])
    noise = (one - schedule(500)[0] * pixels) / schedule(500)[1]
    assert noise.std().item() == pytest.approx(1, abs=0.1)


def test_padding_is_no_image_and_gets_no_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    tiles = torch.randn(1, 2, 3, 4, 4, generator=generator)
    padded = torch.cat([tiles, torch.zeros(1, 1, 3, 4, 4)], 1)
    found = noised({"pixel_values": padded}, 500, 0)["pixel_values"]
    assert torch.equal(found[:, :2], noised({"pixel_values": tiles}, 500, 0)["pixel_values"])
    assert found[:, 2].eq(0).all()
    small = torch.randn(1, 3, 4, 6, generator=generator)
    wide = torch.zeros(1, 3, 8, 8)
    wide[..., :4, :6] = small
    found = noised({"pixel_values": wide, "image_sizes": torch.tensor([[4, 6]])}, 500, 0)["pixel_values"]
    assert torch.equal(found[..., :4, :6], noised({"pixel_values": small}, 500, 0)["pixel_values"])
    assert found[..., 4:, :].eq(0).all()
    patches = torch.randn(12, 5, generator=generator)
    grids = torch.tensor([[1, 2, 2], [1, 2, 4]])
    both = noised({"pixel_values": patches, "image_grid_thw": grids}, 500, 0)["pixel_values"]
    last = noised({"pixel_values": patches[4:], "image_grid_thw": grids[1:]}, 500, 0)["pixel_values"]
    assert torch.equal(both[4:], last)


def test_faithful_does_nothing_unless_tokens_are_sampled() -> None:
    model, processor = tiny_models.shared("llava")
    batch = tiny_models.inputs(processor, tiny_models.rows()[:1])
    plain = said(model, batch)
    with pytest.warns(MethodInactiveWarning, match="not sampled"):
        with VCD(faithful=True)(model):
            greedy = said(model, batch)
    assert torch.equal(torch.stack(greedy.logits), torch.stack(plain.logits))
    with VCD(faithful=True)(model) as run:
        torch.manual_seed(0)
        one = said(model, batch, do_sample=True)
        two = said(model, batch, do_sample=True)
    assert run.report.fired
    assert not torch.equal(one.logits[0], two.logits[0])  # the global generator has moved on
    with VCD()(model):
        one, two = said(model, batch, do_sample=True), said(model, batch, do_sample=True)
    assert torch.equal(one.logits[0], two.logits[0])


def test_what_it_cannot_serve_is_refused() -> None:
    model, processor = tiny_models.shared("llava")
    batch = tiny_models.inputs(processor, tiny_models.rows()[:1])
    with pytest.raises(ValueError, match="prompt_lookup_num_tokens"):
        with VCD()(model):
            said(model, batch, prompt_lookup_num_tokens=2)
    with torch.no_grad():
        features = model.base_model.get_image_features(batch["pixel_values"], return_dict=True)
    rest = {k: v for k, v in batch.items() if k != "pixel_values"}
    with pytest.raises(ValueError, match="give pixel_values"):
        with VCD()(model):
            said(model, {**rest, "mm_encoder_outputs": {"image": features}})
    for field in ({"alpha": -1.0}, {"beta": 2.0}, {"noise_step": 1000}):
        with pytest.raises(ValueError, match=next(iter(field))):
            VCD(**field)  # type: ignore[arg-type]


def test_it_round_trips_through_json() -> None:
    vcd = VCD(alpha=0.5, beta=0.2, seed=3)
    assert Method.from_json(vcd.to_json()) == vcd
