"""Laws of the reinforcing term."""

import numpy as np
import pytest
import torch
from torch.nn.functional import silu

from airvlm.methods.air import identity, literal_term, reinforce, term

B, T, S, d = 2, 6, 5, 16


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def parts():
    return draw(B, T, d), draw(B, T, d, seed=1), draw(B, S, d, seed=2)


def numpy_silu(s):
    return s / (1 + np.exp(-s))


@pytest.mark.parametrize(("phi", "numpy_phi"), [(identity, lambda s: s), (silu, numpy_silu)])
def test_the_sum_is_the_equation_evaluated_with_numpy(parts, phi, numpy_phi):
    ffn, x, Z = parts
    out = reinforce(ffn, x, Z, phi=phi, strength=0.2).out
    for b in range(B):
        f, added = ffn[b].numpy(), numpy_phi(x[b].numpy() @ Z[b].numpy().T) @ Z[b].numpy()
        ratio = 0.2 * np.linalg.norm(f, axis=1) / np.linalg.norm(added, axis=1)
        np.testing.assert_allclose(out[b], f + ratio[:, None] * added, atol=1e-5)


def test_without_a_strength_the_literal_sum_is_added(parts):
    ffn, x, Z = parts
    out = reinforce(ffn, x, Z, phi=silu, strength=None).out
    expected = ffn.numpy() + numpy_silu(x.numpy() @ Z.mT.numpy()) @ Z.numpy()
    np.testing.assert_allclose(out, expected, atol=1e-4)


def test_strength_is_the_ratio_of_norms(parts):
    ffn, x, Z = parts
    done = reinforce(ffn, x, Z, phi=silu, strength=0.3)
    torch.testing.assert_close(done.ratio, torch.full((B, T), 0.3))
    torch.testing.assert_close((done.out - ffn).norm(dim=-1) / ffn.norm(dim=-1), done.ratio)


def test_strength_zero_is_bit_equal(parts):
    ffn, x, Z = parts
    done = reinforce(ffn, x, Z, strength=0.0)
    assert done.out is ffn and done.ratio.eq(0).all()


def test_only_the_asked_rows_change_and_padding_rows_change_nothing(parts):
    ffn, x, Z = parts
    rows = torch.tensor([[1, 4, 1], [0, 0, 0]])  # the last entries are padding that repeats a real position
    mask = torch.tensor([[True, True, False], [True, False, False]])
    done = reinforce(ffn, x, Z, strength=0.2, positions=rows, positions_mask=mask)
    whole = reinforce(ffn, x, Z, strength=0.2).out
    expected = ffn.clone()
    for b, t in ((0, 1), (0, 4), (1, 0)):
        expected[b, t] = whole[b, t]
    torch.testing.assert_close(done.out, expected)
    untouched = [(0, 0), (0, 2), (0, 3), (0, 5), (1, 1), (1, 5)]
    assert all(torch.equal(done.out[b, t], ffn[b, t]) for b, t in untouched)
    assert torch.equal(done.ratio > 0, mask)


def test_a_closed_gate_leaves_its_row_bit_equal(parts):
    ffn, x, Z = parts
    done = reinforce(ffn, x, Z, strength=0.2, gate=torch.tensor([True, False]))
    assert torch.equal(done.out[1], ffn[1]) and not torch.equal(done.out[0], ffn[0])
    assert done.ratio[1].eq(0).all()


def test_masked_memory_is_as_if_it_were_not_there(parts):
    ffn, x, Z = parts
    mask = torch.tensor([[True] * S, [True, True, False, False, False]])
    phi = torch.sigmoid  # phi(0) is not 0
    done = reinforce(ffn, x, Z, phi=phi, strength=0.2, memory_mask=mask).out
    alone = reinforce(ffn[1:], x[1:], Z[1:, :2], phi=phi, strength=0.2).out
    torch.testing.assert_close(done[1:], alone)


def test_empty_or_wholly_masked_memory_adds_nothing(parts):
    ffn, x, Z = parts
    assert torch.equal(reinforce(ffn, x, Z[:, :0], strength=0.2).out, ffn)
    assert torch.equal(reinforce(ffn, x, Z, strength=0.2, memory_mask=torch.zeros(B, S).bool()).out, ffn)


def test_zero_vectors_give_no_nan(parts):
    ffn, x, Z = parts
    for done in (
        reinforce(ffn, torch.zeros_like(x), Z, strength=0.2),
        reinforce(ffn, x, torch.zeros_like(Z), strength=0.2),
        reinforce(torch.zeros_like(ffn), x, Z, strength=0.2),
    ):
        assert done.out.isfinite().all() and done.ratio.isfinite().all()


def test_one_memory_serves_every_row_of_the_batch(parts):
    ffn, x, Z = parts
    shared = reinforce(ffn, x, Z[0], strength=0.2).out
    torch.testing.assert_close(shared, reinforce(ffn, x, Z[:1].expand(B, S, d), strength=0.2).out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("phi", [identity, silu])
def test_half_precision_neither_overflows_nor_loses_the_direction(dtype, phi):
    ffn, x = draw(1, 3, 512, dtype=dtype), (20 + draw(1, 3, 512, seed=1)).to(dtype)
    Z = (20 + draw(700, 512, seed=2)).to(dtype)  # x Z' is about 200000, the literal sum a billion
    done = reinforce(ffn, x, Z, phi=phi, strength=0.2)
    exact = reinforce(ffn.float(), x.float(), Z.float(), phi=phi, strength=0.2)
    assert done.out.dtype == dtype and done.out.isfinite().all()
    torch.testing.assert_close(done.out.float(), exact.out, atol=0.05, rtol=0.02)
    torch.testing.assert_close(done.ratio, exact.ratio, atol=0.01, rtol=0)


def test_the_term_is_the_literal_one_up_to_a_positive_factor_per_token(parts):
    _, x, Z = parts
    scaled, literal = term(x, Z, silu), literal_term(x, Z, silu)
    factor = literal.norm(dim=-1) / scaled.norm(dim=-1)
    torch.testing.assert_close(scaled * factor.unsqueeze(-1), literal, atol=1e-4, rtol=1e-4)
