"""Counting on the device, reading once."""

import pytest
import torch

from airvlm.runtime.stats import Changes, Counts


def test_ratios_are_summed_by_layer_and_row_and_zeros_are_tokens_left_alone() -> None:
    changes = Changes()
    changes.add(3, torch.tensor([[0.1, 0.3], [0.0, 0.0]]), rows=2)
    changes.start_pass()
    changes.add(3, torch.tensor([[0.5, 0.0], [0.2, 0.0]]), rows=2)
    changes.add(4, torch.tensor([[0.1], [0.0]]), rows=2)
    first, second = changes.read(2, {})[0]
    assert (first.tokens, first.passes) == (4, 2)
    assert first.ratio is not None
    assert first.ratio.mean == pytest.approx(1.0 / 4)
    assert first.ratio.max == pytest.approx(0.5)
    assert first.ratio.layers == pytest.approx({3: 0.3, 4: 0.1})
    assert (second.tokens, second.passes, set(second.layers)) == (1, 1, {3})


def test_copies_of_a_row_count_for_it() -> None:
    changes = Changes()
    changes.add(0, torch.tensor([[0.1], [0.1], [0.0], [0.0]]), rows=2)
    assert [row.tokens for row in changes.read(2, {})[0]] == [2, 0]


def test_a_batch_is_the_sum_of_its_rows_but_their_passes_are_shared() -> None:
    changes = Changes()
    changes.add(0, torch.tensor([[0.1, 0.1], [0.4, 0.0]]), rows=2)
    whole = Counts.joined(changes.read(2, {})[0])
    assert (whole.tokens, whole.passes) == (3, 1)
    assert whole.ratio is not None and whole.ratio.mean == pytest.approx(0.2)


def test_nothing_counted_is_no_ratio() -> None:
    changes = Changes()
    changes.add(0, torch.zeros(1, 4), rows=1)
    assert changes.read(1, {})[0][0].ratio is None
    changes.clear()
    assert changes.read(2, {})[0][1].tokens == 0
