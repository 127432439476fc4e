"""Entropic transport: its laws, and POT as the reference."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from airvlm import VLM, tiny
from airvlm.methods.evidence import transport
from airvlm.methods.evidence.crops import crop_boxes
from airvlm.methods.evidence.transport import Convergence, cosine_cost, sinkhorn

EPS = [0.005, 0.03, 0.1, 1.0, 10.0]


def cost(*shape, seed=0, high=2.0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * high


problems = st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(1, 15), st.integers(0, 10**6))


@settings(deadline=None, max_examples=40)
@given(problems, st.sampled_from(EPS))
def test_plans_are_non_negative_and_have_uniform_marginals(problem, eps):
    M, Q, N, seed = problem
    T = sinkhorn(cost(M, Q, N, seed=seed), eps)
    assert (T.plan >= 0).all()
    assert T.plan.isfinite().all() and T.cost.isfinite().all()
    # Nearly degenerate problems at a small eps converge slower than anyone wants to wait; they must say so.
    assert T.converged.all() or eps < 1
    error = (T.plan.sum(-1) - 1 / Q).abs().sum(-1)
    assert (error[T.converged] < 1.1 * transport.TOLERANCE).all()
    assert (error[~T.converged] > 0.9 * transport.TOLERANCE).all()
    assert ((T.plan.sum(-2) - 1 / N).abs().sum(-1) < 1e-5).all()


@pytest.mark.parametrize("eps", EPS)
def test_token_like_problems_converge_at_every_eps(eps):
    generator = torch.Generator().manual_seed(0)
    X, Y = torch.randn(40, 64, generator=generator) + 0.5, torch.randn(4, 60, 64, generator=generator) + 0.5
    assert sinkhorn(cosine_cost(X, Y), eps).converged.all()


@settings(deadline=None, max_examples=25)
@given(problems, st.sampled_from([0.1, 0.3, 1.0]))
def test_permuting_tokens_permutes_the_plan(problem, eps):
    M, Q, N, seed = problem
    C = cost(M, Q, N, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randperm(Q, generator=generator), torch.randperm(N, generator=generator)
    T, permuted = sinkhorn(C, eps, tolerance=1e-6), sinkhorn(C[:, rows][:, :, columns], eps, tolerance=1e-6)
    torch.testing.assert_close(T.plan[:, rows][:, :, columns], permuted.plan, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(T.cost, permuted.cost, atol=1e-5, rtol=0)


@settings(deadline=None, max_examples=25)
@given(problems, st.sampled_from([0.1, 0.3, 1.0]))
def test_the_distance_is_symmetric(problem, eps):
    M, Q, N, seed = problem
    C = cost(M, Q, N, seed=seed)
    there, back = sinkhorn(C, eps, tolerance=1e-6), sinkhorn(C.mT, eps, tolerance=1e-6)
    torch.testing.assert_close(there.cost, back.cost, atol=2e-5, rtol=0)


@settings(deadline=None, max_examples=20)
@given(problems)
def test_a_large_eps_gives_the_mean_cost(problem):
    M, Q, N, seed = problem
    C = cost(M, Q, N, seed=seed)
    torch.testing.assert_close(sinkhorn(C, 1e4).cost, C.mean((-1, -2)), atol=1e-4, rtol=0)


@settings(deadline=None, max_examples=15)
@given(st.integers(2, 8), st.integers(2, 8), st.integers(0, 10**6))
def test_a_small_eps_approaches_exact_transport(Q, N, seed):
    C = cost(1, Q, N, seed=seed)
    exact = ot.emd2(np.full(Q, 1 / Q), np.full(N, 1 / N), C[0].double().numpy())
    eps = 0.005
    ours = sinkhorn(C, eps, max_iterations=20000)
    # <T, C> of the entropic plan lies above the exact cost by at most eps times the entropy of a plan.
    assert exact - 1e-3 <= ours.cost.item() <= exact + eps * np.log(Q * N) + 1e-3


@pytest.mark.parametrize("eps", [0.05, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_pot_agrees_to_1e_5(eps, seed):
    C = cost(4, 20, 37, seed=seed)
    ours = sinkhorn(C, eps, tolerance=1e-6, max_iterations=5000)
    a, b = np.full(20, 1 / 20), np.full(37, 1 / 37)
    for m in range(4):
        oracle = ot.sinkhorn(a, b, C[m].double().numpy(), eps, method="sinkhorn_log", stopThr=1e-12, numItermax=20000)
        np.testing.assert_allclose(ours.plan[m].numpy(), oracle, atol=1e-5)
        assert abs(ours.cost[m].item() - (oracle * C[m].numpy()).sum()) < 1e-5


def test_pot_agrees_at_the_default_tolerance_on_token_like_vectors():
    generator = torch.Generator().manual_seed(0)
    X, Y = torch.randn(30, 64, generator=generator) + 1, torch.randn(5, 48, 64, generator=generator) + 1
    C = cosine_cost(X, Y)
    for eps in (0.05, 0.1, 1.0):
        ours = sinkhorn(C, eps)
        for m in range(5):
            T = ot.sinkhorn(np.full(30, 1 / 30), np.full(48, 1 / 48), C[m].double().numpy(), eps, stopThr=1e-12)
            assert abs(ours.cost[m].item() - (T * C[m].numpy()).sum()) < 1e-4


@pytest.fixture(scope="module")
def trained():
    """Costs of eight test scenes of the embedded model, all their tokens against their crops': (8, 12, 64, 64)."""
    vlm = VLM.load("tiny")
    images = [Image.open(scene.path).convert("RGB") for scene in tiny.scenes("test")[:8]]

    def tokens(images):
        return torch.stack(list(vlm.parts.encode(vlm.parts.pixels(vlm.processor, images))))

    crops = [tokens([image.crop(box) for box in crop_boxes(image.size)]) for image in images]
    return cosine_cost(tokens(images).unsqueeze(1), torch.stack(crops))


@pytest.mark.parametrize(("eps", "updates"), [(0.03, 40), (0.1, 16)])
def test_trained_tokens_converge_in_few_updates(trained, eps, updates):
    T = sinkhorn(trained, eps)
    assert T.converged.all() and T.iterations.max() <= 80
    assert T.iterations.amax(-1).median() <= updates  # the slowest crop of the median image


@pytest.mark.slow
@pytest.mark.parametrize("eps", [0.03, 0.1])
def test_pot_agrees_on_trained_tokens_to_1e_4(trained, eps):
    costs = trained[0, ::6]  # POT takes seconds for each
    ours, a = sinkhorn(costs, eps).cost, np.full(64, 1 / 64)
    for C, distance in zip(costs.double().numpy(), ours.tolist(), strict=True):
        T = ot.sinkhorn(a, a, C, eps, method="sinkhorn_log", stopThr=1e-6, numItermax=20000)
        assert abs(distance - (T * C).sum()) < 1e-4


def test_a_batch_of_trained_problems_equals_each_alone(trained):
    together = sinkhorn(trained[0], 0.03)
    for m, C in enumerate(trained[0]):
        alone = sinkhorn(C, 0.03)
        torch.testing.assert_close(together.plan[m], alone.plan, atol=1e-7, rtol=1e-5)
        assert together.iterations[m] == alone.iterations


@pytest.mark.parametrize("eps", [0.04, 0.1, 1.0])
def test_absorbing_the_scalings_into_the_kernel_changes_no_plan(eps, monkeypatch):
    C = cost(3, 9, 14)
    seldom = sinkhorn(C, eps, tolerance=1e-6, max_iterations=4000)
    monkeypatch.setattr(transport, "REFRESH", 2)
    often = sinkhorn(C, eps, tolerance=1e-6, max_iterations=4000)
    torch.testing.assert_close(seldom.plan, often.plan, atol=2e-6, rtol=1e-3)


def test_costs_a_thousand_times_eps_neither_underflow_nor_overflow():
    T = sinkhorn(cost(3, 9, 14, high=50.0), 0.005, max_iterations=300)
    assert T.plan.isfinite().all() and T.cost.isfinite().all()
    torch.testing.assert_close(T.plan.sum(-2), torch.full((3, 14), 1 / 14), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_dtype_is_solved_in_single_precision(dtype):
    C = cost(2, 5, 6).to(dtype)
    T = sinkhorn(C, 0.05)
    assert T.plan.dtype == T.cost.dtype == torch.float32
    assert torch.equal(T.plan, sinkhorn(C.float(), 0.05).plan)


@pytest.mark.parametrize("eps", EPS)
def test_a_batch_equals_its_problems_alone(eps):
    # Problem 0 has no spread (kernel form, converges at once), problem 2 a large one (log form for small eps).
    C = torch.stack([torch.full((6, 7), 0.3), cost(6, 7, high=0.2), cost(6, 7, seed=1)]).unflatten(0, (3, 1))
    together = sinkhorn(C, eps)
    for m in range(3):
        alone = sinkhorn(C[m], eps)
        torch.testing.assert_close(together.plan[m], alone.plan, atol=1e-7, rtol=1e-5)
        assert torch.equal(together.iterations[m], alone.iterations)


@pytest.mark.parametrize("eps", EPS)
def test_masked_tokens_are_as_if_they_were_not_there(eps):
    C = cost(2, 5, 8)
    padded = torch.full((2, 7, 11), torch.nan)
    padded[:, :5, :8] = C
    T = sinkhorn(padded, eps, mask_rows=torch.arange(7) < 5, mask_columns=(torch.arange(11) < 8).expand(2, 11))
    alone = sinkhorn(C, eps)
    torch.testing.assert_close(T.plan[:, :5, :8], alone.plan, atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(T.cost, alone.cost, atol=1e-5, rtol=0)
    assert T.plan[:, 5:].eq(0).all() and T.plan[:, :, 8:].eq(0).all()


def test_a_crop_without_tokens_is_infinitely_far_and_disturbs_nobody():
    C = cost(2, 4, 5)
    T = sinkhorn(C, 0.1, mask_columns=torch.tensor([[True] * 5, [False] * 5]))
    assert T.cost[1] == torch.inf and T.plan[1].eq(0).all()
    torch.testing.assert_close(T.cost[0], sinkhorn(C[0], 0.1).cost)


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 5), (3, 4, 0), (2, 0, 4, 5)])
def test_empty_problems_have_defined_shapes(shape):
    T = sinkhorn(torch.zeros(shape), 0.1)
    assert T.plan.shape == shape and T.cost.shape == T.converged.shape == T.iterations.shape == shape[:-2]
    assert not T.cost.isnan().any()


@pytest.mark.parametrize("eps", EPS)
def test_zero_vectors_and_constant_tokens_give_no_nan(eps):
    X = torch.zeros(4, 16)
    Y = torch.stack([torch.zeros(6, 16), torch.ones(6, 16)])
    for x in (X, torch.ones(4, 16), torch.cat([X, torch.ones(1, 16)])):
        C = cosine_cost(x, Y)
        T = sinkhorn(C, eps)
        assert C.isfinite().all() and T.plan.isfinite().all() and T.cost.isfinite().all() and T.converged.all()
    assert cosine_cost(X, Y).eq(1).all()
    torch.testing.assert_close(sinkhorn(cosine_cost(torch.ones(4, 16), Y), eps).cost, torch.tensor([1.0, 0.0]))


def test_cosine_cost_is_one_minus_the_cosine_and_broadcasts():
    generator = torch.Generator().manual_seed(0)
    X, Y = torch.randn(3, 1, 4, 8, generator=generator), torch.randn(5, 6, 8, generator=generator)
    C = cosine_cost(X, Y)
    x, y = X[2, 0, 1].numpy(), Y[4, 3].numpy()
    assert C.shape == (3, 5, 4, 6)
    assert C[2, 4, 1, 3].item() == pytest.approx(1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-6)


def test_half_precision_tokens_give_the_costs_of_their_own_values():
    generator = torch.Generator().manual_seed(0)
    X, Y = torch.randn(2, 1, 4, 8, generator=generator), torch.randn(2, 3, 5, 8, generator=generator)
    X, Y = X.bfloat16(), Y.bfloat16()
    torch.testing.assert_close(cosine_cost(X, Y), cosine_cost(X.float(), Y.float()))


def test_running_out_of_iterations_is_said():
    T = sinkhorn(cost(1, 20, 20), 0.01, max_iterations=20, tolerance=1e-6)
    assert not T.converged.item() and T.iterations.item() == 20 and T.plan.isfinite().all()


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="eps"):
        sinkhorn(cost(1, 2, 2), 0.0)
    with pytest.raises(ValueError, match="problem 1"):
        sinkhorn(torch.stack([torch.zeros(2, 2), torch.full((2, 2), torch.nan)]), 0.1)


@pytest.mark.parametrize("eps", [0.05, 0.5])
def test_on_a_cpu_no_update_follows_the_one_that_converged(eps):
    plan = sinkhorn(cost(3, 6, 5), eps)
    assert plan.converged.all() and plan.updates == int(plan.iterations.max())


def test_convergence_is_known_at_once_on_a_cpu():
    convergence = Convergence(torch.device("cpu"))
    assert convergence.first == 1
    assert [convergence.is_reached(1, torch.tensor([left, False])) for left in (True, False)] == [False, True]
