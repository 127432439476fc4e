"""SID against the decoder written out with an explicit mask."""

import numpy as np
import pytest
import torch
from torch import Tensor

from airvlm.methods.sid import SID
from tests.methods.reference import IMAGE, TOKENS, Written, answer, check_close, pass_over

LOWEST = torch.finfo(torch.float32).min


def least_attended(ids: Tensor, layer: int, keep: float, row: int = 0) -> Tensor:
    """Logits (L, V) of the second stream: each query sees the image tokens it attended to least in the layer before."""
    visual = (ids == IMAGE).nonzero().flatten()
    count = max(1, round(keep * len(visual)))
    last = len(ids) - TOKENS - 1  # of the prompt: it chooses for all before it
    chosen: list[Tensor] = []

    def visible(number: int, before: Tensor | None) -> Tensor | None:
        if number < layer:
            return None
        if number == layer:  # the attention before is of layer - 1, which sees everything
            assert before is not None
            seen = torch.ones(len(ids), len(ids), dtype=torch.bool)
            for q in range(len(ids)):
                attended = before.mean(0)[max(q, last)][visual].numpy()
                hidden = np.argsort(attended, kind="stable")[count:]
                seen[q, visual[hidden]] = False
            chosen[:] = [seen]
        return chosen[0]

    return Written(row, visible=visible).run(ids)


@pytest.mark.parametrize(("layer", "keep", "row"), [(2, 0.17, 0), (1, 0.5, 0), (3, 0.25, 2)])
@pytest.mark.parametrize("use_cache", [True, False])
def test_only_the_least_attended_tokens_are_seen_in_the_second_stream(
    layer: int, keep: float, row: int, use_cache: bool
) -> None:
    ids, logits, report = answer(SID(alpha=0.8, beta=0.0, layer=layer, keep=keep), row=row, use_cache=use_cache)
    seen = pass_over(ids, row=row)[-TOKENS - 1 : -1]
    other = least_attended(ids, layer, keep, row)[-TOKENS - 1 : -1]
    assert not torch.allclose(seen, other, atol=0.05)
    check_close(logits, 1.8 * seen - 0.8 * other)
    assert report.passes == TOKENS


def contrast(ids: Tensor, alpha: float, beta: float) -> Tensor:
    seen = pass_over(ids)[-TOKENS - 1 : -1]
    mixed = (1 + alpha) * seen - alpha * least_attended(ids, 2, 0.17)[-TOKENS - 1 : -1]
    p = seen.softmax(-1)
    return mixed.masked_fill(p < beta * p.amax(-1, keepdim=True), LOWEST)


def test_the_default_has_a_cut_off_in_greedy_decoding() -> None:
    ids, logits, _ = answer(SID())
    check_close(logits, contrast(ids, 1.0, 0.1))


def test_faithful_has_half_the_weight_and_no_cut_off_in_greedy_decoding() -> None:
    ids, logits, _ = answer(SID(faithful=True))
    check_close(logits, contrast(ids, 0.5, 0.0))


def test_faithful_has_the_cut_off_when_sampling() -> None:
    torch.manual_seed(0)
    ids, logits, _ = answer(SID(faithful=True), do_sample=True)
    check_close(logits, contrast(ids, 0.5, 0.1))


def test_a_layer_that_the_decoder_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="the decoder has 4 layers"):
        answer(SID(layer=4))
    for options in ({"layer": 0}, {"keep": 0.0}, {"alpha": -1.0}, {"beta": 1.5}):
        with pytest.raises(ValueError, match=next(iter(options))):
            SID(**options)  # type: ignore[arg-type]
