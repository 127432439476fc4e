"""DeCo against its formula in numpy, on the hidden states of plain passes."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from airvlm.methods.deco import DeCo
from airvlm.testing import small_models
from tests.methods.reference import TOKENS, Written, answer, check_close

LOWEST = np.finfo(np.float32).min
Array = NDArray[np.float64]


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


@torch.no_grad()
def lens_and_logits(ids: Tensor, row: int, layers: range, normed: bool = True) -> tuple[Array, Array]:
    """What layers would say at the answer's positions (n, TOKENS, V), and the logits there (TOKENS, V)."""
    written = Written(row)
    logits = written.run(ids)
    model, _ = small_models.shared_model("llava")
    after = [written.inputs[layer + 1] for layer in layers]  # a layer's output is the next one's input
    norm = model.get_decoder().norm
    lens = torch.stack([model.lm_head(norm(h) if normed else h) for h in after])
    at = slice(-TOKENS - 1, -1)
    return lens[:, at].double().numpy(), logits[at].double().numpy()


def correct(l: Array, lens: Array, alpha: float, top_p: float, top_k: int) -> tuple[Array, int]:
    """One step of the formula, written as a loop: the new logits (V,), and how many candidates there were."""
    p = softmax(l)
    candidates: list[int] = []
    for token in np.argsort(-p)[:top_k]:
        candidates.append(int(token))
        if p[candidates].sum() >= top_p:
            break
    q = softmax(lens)  # (n, V)
    layer = int(q[:, candidates].max(1).argmax())
    m = q[layer, candidates].max()
    new = np.full_like(l, LOWEST)
    new[candidates] = l[candidates] + alpha * m * lens[layer, candidates]
    return new, len(candidates)


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, 20), (0.99, 5), (0.5, 20)])
def test_the_surest_layer_is_added_on_the_candidates(row: int, top_p: float, top_k: int) -> None:
    ids, logits, report = answer(DeCo(top_p=top_p, top_k=top_k, layers=(0, 3)), row=row)
    lens, l = lens_and_logits(ids, row, range(3))
    steps = [correct(l[t], lens[:, t], 0.6, top_p, top_k) for t in range(TOKENS)]
    check_close(logits, torch.from_numpy(np.stack([new for new, _ in steps])).float())
    assert report.layers == (0, 1, 2) and report.passes == TOKENS
    assert max(count for _, count in steps) > 1


def test_a_sure_model_is_left_alone() -> None:
    """With top_p at or below the likeliest token's probability, only that token can be said: as in greedy decoding."""
    ids, logits, report = answer(DeCo(top_p=0.01, layers=(0, 3)))
    assert ((logits > LOWEST / 2).sum(-1) == 1).all()
    assert torch.equal(ids, answer(None)[0]) and report.extra["likeliest_changed"] == 0


def test_a_batch_and_beams_choose_a_layer_per_row() -> None:
    model, processor = small_models.shared_model("llava")
    rows = small_models.sample_rows()
    batch = small_models.build_inputs(processor, rows)
    with DeCo(layers=(0, 3))(model, processor):
        together = model.generate(**batch, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
    for row in range(len(rows)):
        assert together[row, -TOKENS:].tolist() == answer(DeCo(layers=(0, 3)), row=row)[0][-TOKENS:].tolist()


@pytest.mark.parametrize(
    ("depth", "layers"), [(32, range(19, 28)), (40, range(24, 35)), (28, range(17, 24)), (4, range(2, 4))]
)
def test_layers_are_the_published_ones_scaled_to_the_decoder(depth: int, layers: range) -> None:
    assert DeCo().lens_layers(depth) == layers


def test_wrong_options_are_refused() -> None:
    for options in ({"alpha": -1.0}, {"top_p": 0.0}, {"top_k": 0}, {"layers": (3, 3)}):
        with pytest.raises(ValueError, match=next(iter(options))):
            DeCo(**options)  # type: ignore[arg-type]
