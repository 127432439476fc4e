"""MLIHE against the decoder written out."""

import pytest
import torch
from torch import Tensor

from airvlm.methods.mlihe import MLIHE
from tests.methods.reference import IMAGE, TOKENS, Written, answer, check_close


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("use_cache", [True, False])
def test_every_head_is_raised_by_the_mean_of_all(row: int, use_cache: bool) -> None:
    ids, logits, report = answer(MLIHE(alpha=1.5, layers=(1, 3)), row=row, use_cache=use_cache)
    late = torch.arange(len(ids)) >= len(ids) - TOKENS - 1

    def raised(layer: int, s: Tensor) -> Tensor:
        common = sum(head.abs() for head in s) / len(s)
        return s + 1.5 * common * (ids == IMAGE) * late[:, None] if layer in (1, 2) else s

    check_close(logits, Written(row, scores=raised).run(ids)[-TOKENS - 1 : -1])
    assert report.layers == (1, 2) and report.passes == TOKENS


@pytest.mark.parametrize(("depth", "span"), [(32, range(5, 19)), (40, range(6, 24)), (4, range(1, 2))])
def test_layers_are_the_published_ones_scaled_to_the_decoder(depth: int, span: range) -> None:
    assert MLIHE().span(depth) == span


def test_wrong_options_are_refused() -> None:
    for options in ({"alpha": -1.0}, {"layers": (3, 3)}):
        with pytest.raises(ValueError, match=next(iter(options))):
            MLIHE(**options)  # type: ignore[arg-type]
