"""Prototype reduction: the farthest tokens from the mean."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from airvlm.methods.evidence.prototypes import select_prototypes


def tokens(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_kept_tokens_are_the_farthest_from_the_mean_as_numpy_says():
    Z = tokens(3, 20, 8)
    kept = select_prototypes(Z, 5)
    for z, indices in zip(Z.numpy(), kept.indices.numpy()):
        d = np.linalg.norm(z - z.mean(0), axis=1)
        assert set(indices) == set(np.argsort(-d)[:5])
        assert list(indices) == sorted(indices)


def test_q_above_k_keeps_every_token_once():
    kept = select_prototypes(tokens(2, 6, 4), 50)
    assert kept.indices.tolist() == [list(range(6))] * 2
    assert kept.mask.all()


@pytest.mark.parametrize("q", [0, 3])
def test_no_tokens_and_no_prototypes_are_defined(q):
    assert select_prototypes(tokens(2, 0, 4), q).indices.shape == (2, 0)
    assert select_prototypes(tokens(2, 5, 4), 0).gather(tokens(2, 5, 4)).shape == (2, 0, 4)


def test_constant_tokens_keep_the_first_ones():
    kept = select_prototypes(torch.ones(1, 9, 4), 3)
    assert kept.indices.tolist() == [[0, 1, 2]]


def test_masked_tokens_neither_count_nor_move_the_mean():
    Z = tokens(1, 10, 4)
    padded = torch.cat([Z, torch.full((1, 5, 4), torch.nan)], 1)
    mask = torch.arange(15)[None] < 10
    kept = select_prototypes(padded, 4, mask)
    assert torch.equal(kept.indices, select_prototypes(Z, 4).indices)
    few = select_prototypes(padded, 12, mask)
    assert few.mask.sum() == 10 and few.gather(padded).isfinite().all()


def test_a_batch_with_its_own_count_per_row_equals_its_rows_alone():
    Z = tokens(3, 12, 6)
    together = select_prototypes(Z, torch.tensor([2, 5, 12]))
    for row, q in enumerate([2, 5, 12]):
        alone = select_prototypes(Z[row], q)
        assert torch.equal(together.indices[row][together.mask[row]], alone.indices)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 30), st.integers(0, 35), st.integers(0, 10**6))
def test_permuting_the_tokens_permutes_the_choice(K, q, seed):
    Z = tokens(K, 5, seed=seed)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(seed))
    chosen = {tuple(z.tolist()) for z in select_prototypes(Z, q).gather(Z)}
    assert chosen == {tuple(z.tolist()) for z in select_prototypes(Z[order], q).gather(Z[order])}
    assert len(chosen) == min(q, K)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_tokens_are_measured_in_single_precision(dtype):
    Z = (tokens(1, 30, 64) * 400).to(dtype)  # squared distances pass 65504
    assert torch.equal(select_prototypes(Z, 7).indices, select_prototypes(Z.float(), 7).indices)
