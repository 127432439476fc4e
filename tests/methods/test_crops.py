"""CRoPS against the decoder written out with explicit masks."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods import crops
from airvlm.methods.crops import CRoPS, visible_text
from tests.methods.reference import IMAGE, TOKENS, Written, answer, check_close, pass_over
from tests.methods.test_sid import LOWEST, least_attended


def scraps(ids: Tensor, layer: int, row: int, faithful: bool = False) -> Tensor:
    """Logits of the text alone, each query seeing the tokens that it attended to least in the layer before."""
    ids = ids[ids != IMAGE]
    last = len(ids) - TOKENS - 1
    chosen: list[Tensor] = []
    blind: list[int] = []  # queries that see nothing

    def spread(number: int, p: Tensor) -> Tensor:
        new = p.clone()
        if faithful and number >= layer:
            new[:, blind] = (torch.arange(len(ids)) <= last) / (last + 1)  # the prompt, later positions included
        return new

    def visible(number: int, before: Tensor | None) -> Tensor | None:
        if number < layer:
            return None
        if number == layer:
            assert before is not None
            seen = torch.zeros(len(ids), len(ids), dtype=torch.bool)
            for q in range(len(ids)):
                at = max(q, last)
                order = np.argsort(before.mean(0)[at][: at + 1].numpy(), kind="stable")
                kept = [k for k in order[: crops.visible_text(1 + at - last)] if k <= q]
                seen[q, kept or [q]] = True
                blind.extend([] if kept else [q])
            chosen[:] = [seen]
        return chosen[0]

    return Written(row, visible=visible, probabilities=spread).run(ids)


def expected(ids: Tensor, method: CRoPS, row: int) -> tuple[Tensor, Tensor]:
    """Logits (TOKENS, V), and which steps were unsure."""
    at = slice(-TOKENS - 1, -1)
    l, u = pass_over(ids, row=row)[at], scraps(ids, method.layer, row, method.faithful)[at]
    s = least_attended(ids, method.layer, method.keep, row)[at]
    new, unsure = [], []
    for t in range(TOKENS):
        cut = l[t].clone()
        cut[l[t] < l[t].max() + math.log(method.beta)] = -torch.inf
        lp = cut.log_softmax(0)
        unsure.append(bool(lp.exp().max() <= method.gate))
        g = math.exp(-method.decay * (t + 1))
        x = lp + (1 - g) / g * (lp - u[t].log_softmax(0))
        x = (1 + method.alpha) * x - method.alpha * s[t].log_softmax(0)
        new.append(torch.where(torch.isfinite(cut), x if unsure[-1] else cut, LOWEST))
    return torch.stack(new), torch.tensor(unsure)


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize(
    ("use_cache", "faithful"),
    [(True, False), (False, False), (True, True)],  # without a cache the published form would see the answer, too
    ids=["cache", "no cache", "faithful"],
)
@pytest.mark.parametrize("layer", [1, 2])
def test_both_contrasts_are_the_formula(
    row: int, use_cache: bool, faithful: bool, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the small prompts have about ten words: show fewer
    monkeypatch.setattr(crops, "visible_text", lambda t: 3 + t)
    method = CRoPS(decay=0.4, gate=0.8, beta=0.02, layer=layer, faithful=faithful)
    ids, logits, report = answer(method, row=row, use_cache=use_cache)
    wanted, unsure = expected(ids, method, row)
    assert unsure.any()
    kept = wanted > LOWEST / 2
    assert torch.equal(logits > LOWEST / 2, kept)
    for found, new, own in zip(logits, wanted, kept, strict=True):  # log-probabilities: equal up to a constant
        torch.testing.assert_close(found[own].softmax(0), new[own].softmax(0), rtol=2e-3, atol=2e-4)
    assert report.passes == TOKENS
    if faithful and layer == 2:  # where some queries of these prompts see nothing
        other = answer(dataclasses.replace(method, faithful=False), row=row)[1]
        assert not torch.allclose(other, logits, atol=1e-3)


def test_sure_steps_are_only_cut() -> None:
    ids, logits, _ = answer(CRoPS(gate=0.0))
    l = pass_over(ids)[-TOKENS - 1 : -1]
    p = l.softmax(-1)
    check_close(logits, l.masked_fill(p < 0.1 * p.amax(-1, keepdim=True), LOWEST))


def test_the_number_of_visible_text_tokens_grows_as_published() -> None:
    assert [visible_text(t) for t in (1, 100, 1000, 10**6)] == [10, 12, 28, 40]


def test_a_layer_that_the_decoder_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="the decoder has 4 layers"):
        answer(CRoPS(layer=4))
