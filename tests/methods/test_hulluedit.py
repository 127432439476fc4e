"""HulluEdit against its formula in numpy, on states of plain passes."""

from typing import Any

import numpy as np
import pytest
import torch

from airvlm.methods.hulluedit import HulluEdit, main_directions
from airvlm.testing import check_method, small_models
from tests.methods.direct import finished, read, rows_with_images
from tests.methods.families import ALL

Array = np.ndarray[Any, Any]


def directions(X: Array, w: Array | None, rank: int) -> Array:
    w = np.full(len(X), 1 / len(X)) if w is None else w
    centered = (X - (w[:, None] * X).sum(0)) * np.sqrt(w)[:, None]
    found: Array = np.linalg.svd(centered, full_matrices=False)[2][:rank].T
    return found


def edited(m: HulluEdit, h: Array, visual: Array, text: Array) -> Array:
    cos = visual @ h / np.linalg.norm(visual, axis=1) / np.linalg.norm(h)
    w = np.exp(cos / m.temperature)
    U = directions(visual, w / w.sum(), m.rank)
    P = directions(text - text @ U @ U.T, None, m.rank_prior)
    u, p = U @ U.T @ h, P @ P.T @ h
    a, b = np.clip(u @ u / (h @ h), m.floor, 1), np.clip(p @ p / (h @ h), 0, m.ceiling)
    ln = min(m.kappa * (1 - a) / a, m.largest)
    lp = 0 if b < m.threshold else min(m.prior * b / (1 - b), m.largest)
    new = u + p / (1 + ln + lp) + (h - u - p) / (1 + ln)
    new *= (np.linalg.norm(h) / np.linalg.norm(new)) ** m.restore
    found: Array = (1 - m.blend) * h + m.blend * new
    return found


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3"])
@pytest.mark.parametrize(
    "method",
    [HulluEdit(), HulluEdit(rank=3, kappa=2.0, prior=4.0, blend=1.0, layer=1), HulluEdit(faithful=True)],
    ids=lambda m: m.label,
)
def test_the_last_state_is_edited_before_the_head(method: HulluEdit, family: str) -> None:
    model, processor = small_models.shared_model(family)
    batch = small_models.build_inputs(processor, rows_with_images()[:1])
    prompt = batch["input_ids"].shape[1]
    with method(model) as run:
        out = model.generate(
            **batch, max_new_tokens=3, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    assert run.report.tokens == 3
    inputs = finished(batch, out.sequences)
    states = read(model, inputs, "residual")
    kept = states[3 if method.layer is None else method.layer][0].double().numpy()
    visual = (out.sequences[0] == small_models.IMAGE).numpy()
    if method.faithful:  # the published code takes positions 1 to 576 of a prompt that begins with text
        moved = np.arange(len(visual))
        moved = (moved >= 1) & (moved <= visual.sum())
        assert (moved != visual).any()
        visual = moved
    with torch.no_grad():
        final = model.get_decoder().norm(states[-1])[0].double().numpy()
    for t in range(3):
        at = prompt - 1 + t
        text = kept[: at + 1][~visual[: at + 1]]
        new = edited(method, final[at], kept[: at + 1][visual[: at + 1]], text)
        with torch.no_grad():
            expected = model.get_output_embeddings()(torch.from_numpy(new).float())
        torch.testing.assert_close(out.logits[t][0], expected, rtol=2e-3, atol=5e-3)


def test_rows_without_variance_have_no_main_directions() -> None:
    assert not main_directions(torch.ones(4, 6), None, 2).any()
    assert main_directions(torch.eye(6)[:2], None, 2).any(0).tolist() == [True, False]


def test_beams_are_refused_and_layers_checked() -> None:
    model, processor = small_models.shared_model("llava")
    batch = small_models.build_inputs(processor, rows_with_images()[:1])
    with HulluEdit()(model), pytest.raises(ValueError, match=r"hulluedit .*beams"):
        model.generate(**batch, max_new_tokens=2, num_beams=2)
    with pytest.raises(ValueError, match="the decoder has 4 layers"):
        HulluEdit(layer=4)(model)


@pytest.mark.parametrize("family", ALL)
def test_laws(family: str) -> None:
    check_method(HulluEdit(), [family])
