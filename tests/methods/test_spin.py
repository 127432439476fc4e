"""SPIN against the decoder written out."""

import pytest
import torch
from torch import Tensor

from airvlm.methods.spin import SPIN
from tests.methods.reference import IMAGE, TOKENS, Written, answer, check_close


def suppressed(ids: Tensor, method: SPIN, layers: range, row: int = 0) -> Tensor:
    """Logits (L, V) with the heads that look at the image least multiplied by the factor, for late queries."""
    sums: list[Tensor] = []  # of scores on the image, (H, L)
    first = len(ids) - TOKENS - 1
    image = ids == IMAGE

    def read(layer: int, s: Tensor) -> Tensor:
        sums[:] = [(s * image).sum(-1)]
        return s

    def scale(layer: int, o: Tensor) -> Tensor:
        if layer not in layers:
            return o
        by = sums[0] if method.faithful else (current[0] * image).sum(-1)
        o = o.clone()
        kept = int(method.keep * o.shape[1])
        for q in range(first, len(ids)):
            for head in by[:, q].argsort(descending=True)[kept:]:
                o[q, head] *= method.factor
        return o

    current: list[Tensor] = []

    def keep_attention(layer: int, p: Tensor) -> Tensor:
        current[:] = [p]
        return p

    return Written(row, scores=read, probabilities=keep_attention, heads=scale).run(ids)


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("faithful", [False, True], ids=["attention", "scores"])
@pytest.mark.parametrize("use_cache", [True, False])
def test_heads_that_look_away_are_turned_down(row: int, faithful: bool, use_cache: bool) -> None:
    method = SPIN(factor=0.1, keep=0.5, faithful=faithful)
    ids, logits, report = answer(method, row=row, use_cache=use_cache)
    check_close(logits, suppressed(ids, method, range(4), row)[-TOKENS - 1 : -1])
    assert report.layers == (0, 1, 2, 3) and report.passes == TOKENS


def test_a_span_of_layers_can_be_chosen() -> None:
    method = SPIN(factor=0.0, keep=0.75, layers=(1, 3))
    ids, logits, report = answer(method)
    check_close(logits, suppressed(ids, method, range(1, 3))[-TOKENS - 1 : -1])
    assert report.layers == (1, 2)


def test_the_two_rankings_differ() -> None:
    """A sharp peak on the image holds most attention, and many small scores have the larger sum."""
    peak, flat = torch.tensor([6.0, -1, -1, -1, 0]), torch.tensor([1.0, 1, 1, 1, 3])  # the last key is text
    mass = [s.softmax(0)[:4].sum() for s in (peak, flat)]
    assert mass[0] > mass[1] and peak[:4].sum() < flat[:4].sum()
    _, logits, _ = answer(SPIN(keep=0.5))
    assert not torch.allclose(logits, answer(SPIN(keep=0.5, faithful=True))[1], atol=1e-2)


def test_the_number_of_heads_is_rounded_down_as_published() -> None:
    shares = torch.arange(32.0)[None, None]
    assert int((SPIN(keep=0.95).head_factors(shares, 0) == 1).sum()) == 30
    assert SPIN(keep=0.95).head_factors(shares, 0)[0, 0, :2].tolist() == pytest.approx([0.08, 0.08])


def test_wrong_options_are_refused() -> None:
    for options in ({"factor": 2.0}, {"keep": -0.1}, {"layers": (3, 3)}):
        with pytest.raises(ValueError, match=next(iter(options))):
            SPIN(**options)  # type: ignore[arg-type]
    assert SPIN(factor=1.0).disabled_reason == "its factor is 1"
