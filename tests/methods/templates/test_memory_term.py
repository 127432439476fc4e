"""The term phi(x Z^T) Z of AIR and MemVR."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from airvlm.methods.templates.memory_term import identity, literal_term, term

B, T, S, d = 2, 6, 5, 16


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_literal_term_is_the_equation_evaluated_with_numpy() -> None:
    x, Z = draw(B, T, d, seed=1), draw(B, S, d, seed=2)
    scores = x.numpy() @ Z.mT.numpy()
    np.testing.assert_allclose(literal_term(x, Z), scores @ Z.numpy(), atol=1e-4)
    expected = scores / (1 + np.exp(-scores)) @ Z.numpy()
    np.testing.assert_allclose(literal_term(x, Z, silu), expected, atol=1e-4)


@pytest.mark.parametrize("phi", [identity, silu])
def test_the_term_is_the_literal_one_up_to_a_positive_factor_per_token(phi) -> None:  # type: ignore[no-untyped-def]
    x, Z = draw(B, T, d, seed=1), draw(B, S, d, seed=2)
    scaled, literal = term(x, Z, phi), literal_term(x, Z, phi)
    factor = literal.norm(dim=-1) / scaled.norm(dim=-1)
    torch.testing.assert_close(scaled * factor.unsqueeze(-1), literal, atol=1e-4, rtol=1e-4)


def test_masked_tokens_of_the_memory_add_nothing_even_where_phi_of_0_is_not_0() -> None:
    x, Z = draw(B, T, d, seed=1), draw(B, S, d, seed=2)
    mask = torch.tensor([[True] * S, [True, True, False, False, False]])
    found = literal_term(x, Z, torch.sigmoid, mask)
    torch.testing.assert_close(found[1], literal_term(x[1:], Z[1:, :2], torch.sigmoid)[0])


def test_an_empty_memory_gives_zeros() -> None:
    assert not term(draw(B, T, d), draw(B, 0, d)).any()


def test_half_precision_does_not_overflow() -> None:
    x, Z = (20 + draw(1, 3, 512, seed=1)).half(), (20 + draw(700, 512, seed=2)).half()  # x Z' is about 200000
    assert term(x, Z).isfinite().all() and literal_term(x, Z).isfinite().all()
