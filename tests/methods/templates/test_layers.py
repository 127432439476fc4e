"""Spans of layers: given, or scaled from a published setting."""

import pytest

from airvlm.methods.templates.layers import layer_span, scale_span


def test_a_span_is_the_layers_from_the_first_to_the_one_before_the_last() -> None:
    assert layer_span((1, 3), 4) == range(1, 3)
    with pytest.raises(ValueError, match=r"layers = \(26, 32\), but the decoder has 4 layers: the span may end at 4"):
        layer_span((26, 32), 4)


@pytest.mark.parametrize(
    ("depth", "span"), [(32, range(9, 15)), (40, range(11, 19)), (8, range(2, 4)), (4, range(1, 2)), (1, range(1))]
)
def test_a_published_span_is_scaled_and_keeps_at_least_one_layer(depth: int, span: range) -> None:
    assert scale_span((9, 15), 32, depth) == span
