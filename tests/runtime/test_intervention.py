"""What an intervention is shown, and the statistics of what it changed."""

from typing import Any

import pytest
import torch

from airvlm.runtime.intervention import (
    CHUNK,
    INPUT,
    ChangeStats,
    ForwardPass,
    GenerateCall,
    RowStats,
    norm_ratio,
    token_chunks,
)


def forward_pass(mask: Any, length: int, *, is_prefill: bool = True, is_decode: bool = False) -> ForwardPass:
    return ForwardPass(None, mask, length, 2, 1, is_prefill, is_decode, 0, 0, {})


# -- statistics


def test_ratios_are_summed_per_layer_and_row_and_zeros_are_unchanged_tokens() -> None:
    stats = ChangeStats()
    stats.add(3, torch.tensor([[0.1, 0.3], [0.0, 0.0]]), rows=2)
    stats.start_pass()
    stats.add(3, torch.tensor([[0.5, 0.0], [0.2, 0.0]]), rows=2)
    stats.add(4, torch.tensor([[0.1], [0.0]]), rows=2)
    first, second = stats.read(2, {})[0]
    assert (first.tokens, first.passes) == (4, 2)
    assert first.norm_ratio is not None
    assert first.norm_ratio.mean == pytest.approx(1.0 / 4)
    assert first.norm_ratio.max == pytest.approx(0.5)
    assert first.norm_ratio.layers == pytest.approx({3: 0.3, 4: 0.1})
    assert (second.tokens, second.passes, set(second.layers)) == (1, 1, {3})


def test_the_decoders_input_is_none_of_its_layers() -> None:
    assert INPUT < 0


def test_beams_count_for_their_row() -> None:
    stats = ChangeStats()
    stats.add(0, torch.tensor([[0.1], [0.1], [0.0], [0.0]]), rows=2)
    assert [row.tokens for row in stats.read(2, {})[0]] == [2, 0]


def test_a_batch_is_the_sum_of_its_rows_and_the_rows_share_their_passes() -> None:
    stats = ChangeStats()
    stats.add(0, torch.tensor([[0.1, 0.1], [0.4, 0.0]]), rows=2)
    whole = RowStats.merge(stats.read(2, {})[0])
    assert (whole.tokens, whole.passes) == (3, 1)
    assert whole.norm_ratio is not None and whole.norm_ratio.mean == pytest.approx(0.2)


def test_tokens_counted_without_a_ratio_have_no_layer() -> None:
    stats = ChangeStats()
    stats.count(torch.tensor([3, 0]))
    stats.start_pass()
    stats.count(torch.tensor([1, 0]))
    first, second = stats.read(2, {})[0]
    assert (first.tokens, first.passes, first.layers, first.norm_ratio) == (4, 2, {}, None)
    assert (second.tokens, second.passes) == (0, 0)


def test_without_changes_there_is_no_ratio() -> None:
    stats = ChangeStats()
    stats.add(0, torch.zeros(1, 4), rows=1)
    assert stats.read(1, {})[0][0].norm_ratio is None
    assert ChangeStats().read(2, {})[0][1].tokens == 0


def test_further_tensors_are_read_together_with_the_statistics() -> None:
    stats = ChangeStats()
    stats.add(0, torch.tensor([[0.5], [0.0]]), rows=2)
    rows, more = stats.read(2, {"entropy": torch.tensor([0.25, 0.75])})
    assert [row.tokens for row in rows] == [1, 0] and more == {"entropy": [0.25, 0.75]}


def test_the_norm_ratio_is_per_token() -> None:
    old = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert norm_ratio(torch.tensor([[3.0, 4.0], [0.0, 3.0]]), old).tolist() == pytest.approx([0.0, 0.5])


def test_chunks_cover_every_position_once() -> None:
    chunks = token_chunks(2 * CHUNK + 3)
    assert [i for chunk in chunks for i in range(chunk.start, chunk.stop)] == list(range(2 * CHUNK + 3))


# -- calls and passes


class Configured:
    class generation_config:
        eos_token_id = 2
        num_beams = 1


class Config:
    num_beams = 4
    top_k = None


def test_an_option_of_generate_is_the_argument_then_the_config_then_the_models() -> None:
    def call(**arguments: Any) -> GenerateCall:
        return GenerateCall(arguments, Configured(), 1, 1)  # type: ignore[arg-type]

    assert call(num_beams=3, generation_config=Config()).option("num_beams") == 3
    assert call(generation_config=Config()).option("num_beams") == 4
    assert call().option("eos_token_id") == 2
    assert call(generation_config=Config()).option("top_k", 50) == 50
    assert call(inputs=torch.ones(1, 3)).input_ids.shape == (1, 3)


def test_padding_is_set_to_zero() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    values = torch.ones(2, 5)
    assert forward_pass(mask, 5).zero_padding(values).tolist() == mask.tolist()
    # on top of a cache, the mask is that of the whole sequence: the last positions are this pass's
    more = forward_pass(mask, 2, is_prefill=False).zero_padding(torch.ones(2, 2))
    assert more.tolist() == [[1, 1], [1, 1]]
    one = torch.ones(2, 1)
    assert forward_pass(mask, 1, is_prefill=False, is_decode=True).zero_padding(one) is one
    assert forward_pass(None, 5).zero_padding(values) is values


def test_the_largest_ratio_of_a_batch_is_that_of_a_row_however_small() -> None:
    rows = [RowStats({0: (0.04, 0.04, 1), 2: (0.01, 0.01, 1)}, 0, 1), RowStats({0: (0.05, 0.03, 2)}, 0, 1)]
    ratio = RowStats.merge(rows).norm_ratio
    assert ratio is not None
    assert ratio.max == 0.04
    assert ratio.layers == pytest.approx({0: 0.03, 2: 0.01})
