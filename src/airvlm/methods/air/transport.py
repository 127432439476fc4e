"""Entropic optimal transport between uniform token sets, batched, in single precision.

`sinkhorn(C, eps)` solves min <T, C> - eps H(T) with T 1 = a, T' 1 = b for every problem of a batch at once.
Knows nothing of models, pictures or what the tokens mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# exp(-C / eps) and its scalings stay inside single precision (1e-38 .. 1e38) while the spread of C / eps is below
# this; beyond it the potentials are iterated in the log domain.
SAFE_EXPONENT = 70.0
CHECK_EVERY = 10  # iterations between two looks at the marginals; a look is the only host sync in the loop
FIRST_LOOK = 2  # most token sets have converged by then; the later looks follow at 12, 22, ...
ANNEALING = 4.0  # the log form starts at a large eps and divides by this, each stage warm-starting the next


@dataclass(frozen=True)
class Transport:
    """The solution of every problem in the batch."""

    plan: Tensor  # (..., Q, N) float32, T; rows sum to 1/Q, columns to 1/N (over the tokens that exist)
    cost: Tensor  # (...) float32, <T, C>; inf where one side has no token at all
    iterations: Tensor  # (...) int64, Sinkhorn updates spent
    converged: Tensor  # (...) bool, total marginal error below the tolerance


def cosine_cost(X: Tensor, Y: Tensor) -> Tensor:
    """C(k, n) = 1 - cos(x_k, y_n) in [0, 2], float32: X (..., Q, d), Y (..., N, d) -> (..., Q, N).

    Leading dimensions broadcast. A zero vector has no direction; its cosine with anything counts as 0, so C = 1.
    """
    X, Y = X.detach().float(), Y.detach().float()
    cos = (X / _lengths(X)) @ Y.mT  # (..., Q, N)
    return cos.div_(_lengths(Y).mT).neg_().add_(1).clamp_(0, 2)


def _lengths(X: Tensor) -> Tensor:
    """Norms (..., n, 1), with 1 in place of 0 so that a zero vector stays zero."""
    norm = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
    return torch.where(norm > 0, norm, 1.0)


@torch.no_grad()
def sinkhorn(
    C: Tensor,
    eps: float,
    *,
    mask_rows: Tensor | None = None,
    mask_columns: Tensor | None = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-4,
) -> Transport:
    """Solve every problem C (..., Q, N) of the batch, uniform weights over the tokens that exist.

    `mask_rows` (..., Q) and `mask_columns` (..., N) are True where a token exists and broadcast over the batch.
    Each problem is solved as if it were alone: it picks the kernel or the log form by its own spread of costs and
    stops at its own convergence, so a batch gives what its problems give one by one.
    """
    if not eps > 0:
        raise ValueError(f"eps = {eps}: the entropic regulariser must be above 0")
    *batch, Q, N = C.shape
    B = math.prod(batch)
    C = C.detach().float().reshape(B, Q, N).contiguous()
    rows = _flat_mask(mask_rows, (*batch, Q), C)  # (B, Q)
    columns = _flat_mask(mask_columns, (*batch, N), C)  # (B, N)
    plan = C.new_empty(0)
    iterations = torch.zeros(B, dtype=torch.long, device=C.device)
    converged = torch.ones(B, dtype=torch.bool, device=C.device)
    cost = C.new_full((B,), torch.inf)
    if C.numel():
        if mask_rows is None and mask_columns is None:
            low, high = C.amin((-1, -2)), C.amax((-1, -2))
        else:
            real = rows.unsqueeze(-1) & columns.unsqueeze(-2)  # (B, Q, N)
            low = C.masked_fill(~real, torch.inf).amin((-1, -2))
            high = C.masked_fill(~real, -torch.inf).amax((-1, -2))
            C = C.masked_fill(~real, 0.0)
        # The one look before the loop: which form each problem takes; a spread of -inf marks an empty problem.
        spread = (high - low).tolist()
        for i, value in enumerate(spread):
            if math.isnan(value) or value == math.inf:
                raise ValueError(
                    f"the cost of problem {i} holds NaN or infinity; transport needs finite costs"
                )
        kernel = [i for i, value in enumerate(spread) if 0 <= value <= SAFE_EXPONENT * eps]
        log = [i for i, value in enumerate(spread) if value > SAFE_EXPONENT * eps]
        for form, chosen in ((_kernel_form, kernel), (_log_form, log)):
            if not chosen:
                continue
            whole = len(chosen) == B
            part = slice(None) if whole else torch.tensor(chosen, device=C.device)
            a, b = _weights(rows[part]), _weights(columns[part])
            solved = form(C[part], low[part], a, b, eps, max_iterations, tolerance)
            part_plan, iterations[part], converged[part] = solved
            if whole:
                plan = part_plan
            else:
                plan = torch.zeros_like(C) if plan.numel() == 0 else plan
                plan[part] = part_plan
            cost[part] = _inner(part_plan.flatten(1), C[part].flatten(1))
    if plan.numel() == 0:
        plan = torch.zeros_like(C)
    shapes = (plan.view(*batch, Q, N), cost.view(batch), iterations.view(batch), converged.view(batch))
    return Transport(*shapes)


def _flat_mask(mask: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    if mask is None:
        mask = torch.ones((), dtype=torch.bool, device=like.device)
    return mask.to(like.device).bool().expand(shape).reshape(like.shape[0], shape[-1])


def _inner(X: Tensor, Y: Tensor) -> Tensor:
    """<x, y> of each pair of rows, (B, n) -> (B)."""
    if X.device.type == "cpu":  # vecdot writes all products first
        return torch.stack([torch.dot(x, y) for x, y in zip(X, Y, strict=True)])
    return torch.linalg.vecdot(X, Y)


def _weights(mask: Tensor) -> Tensor:
    """Uniform weights over the tokens that exist: (B, n), rows sum to 1."""
    return mask / mask.sum(-1, keepdim=True).clamp_min(1)


def _kernel_form(
    C: Tensor, low: Tensor, a: Tensor, b: Tensor, eps: float, max_iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """T = diag(u) exp(-C / eps) diag(v): two matrix-vector products an update."""
    # Shifted by the lowest cost, which changes no plan. One allocation for shift, kernel and, at the end, plan:
    # for twelve crops fresh memory costs more than arithmetic.
    K = (C - low[:, None, None]).mul_(-1 / eps).exp_()  # (B, Q, N)
    state = _Progress(C.shape[0], C.device, tolerance)
    # Row vectors (B, 1, n): a batched product with a single column is ten times slower on a CPU.
    a, b = a.unsqueeze(-2), b.unsqueeze(-2)
    u, v = torch.zeros_like(a), torch.where(b > 0, 1.0, 0.0)
    best_u, best_v = u, v
    tiny = torch.finfo(torch.float32).tiny
    for iteration in range(max_iterations + 1):
        Kv = torch.bmm(v, K.mT)  # (B, 1, Q)
        # Columns are exact after an update of v, so the rows carry the whole error; Kv is needed anyway.
        if iteration % CHECK_EVERY == FIRST_LOOK or iteration == max_iterations:
            best_u, best_v = state.keep(best_u, u), state.keep(best_v, v)
            if state.finished((u * Kv - a).abs().sum((-1, -2)), iteration):
                break
        u = a / Kv.clamp_min(tiny)
        v = b / torch.bmm(u, K).clamp_min(tiny)
    return K.mul_(best_u.mT).mul_(best_v), state.iterations, state.done


def _log_form(
    C: Tensor, low: Tensor, a: Tensor, b: Tensor, eps: float, max_iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """T = exp((f + g - C) / eps) with potentials f, g; annealed, since a small eps alone converges slowly."""
    C = C - low[:, None, None]
    log_a, log_b = a.log(), b.log()  # -inf where a token does not exist
    state = _Progress(C.shape[0], C.device, tolerance)
    f, g = torch.zeros_like(a), torch.zeros_like(b)

    def soft_rows(g: Tensor, eps: float) -> Tensor:  # f(g): makes the rows exact, (B, Q)
        lse = torch.logsumexp(log_b.unsqueeze(-2) + (g.unsqueeze(-2) - C) / eps, -1)
        return torch.where(a > 0, -eps * lse, 0.0)

    def soft_columns(f: Tensor, eps: float) -> Tensor:  # g(f): makes the columns exact, (B, N)
        lse = torch.logsumexp(log_a.unsqueeze(-1) + (f.unsqueeze(-1) - C) / eps, -2)
        return torch.where(b > 0, -eps * lse, 0.0)

    # Stages depend on eps alone (costs are O(1)), not on the batch, so that a problem's result is its own.
    stage = eps * ANNEALING ** max(0, math.ceil(math.log(1 / eps, ANNEALING)))
    spent = 0
    while stage > eps * 1.01 and spent + CHECK_EVERY < max_iterations:
        for _ in range(CHECK_EVERY):
            f = soft_rows(g, stage)
            g = soft_columns(f, stage)
        spent += CHECK_EVERY
        stage /= ANNEALING

    best_f, best_g = f, g
    for iteration in range(spent, max_iterations + 1):
        new_f = soft_rows(g, eps)
        if iteration > spent and (iteration % CHECK_EVERY == 0 or iteration == max_iterations):
            best_f, best_g = state.keep(best_f, f), state.keep(best_g, g)
            # a * exp((f - f_new) / eps) is the row sum of the plan at (f, g).
            if state.finished((a * torch.expm1((f - new_f) / eps)).abs().sum(-1), iteration):
                break
        f = new_f
        g = soft_columns(f, eps)
    log_plan = (
        (best_f.unsqueeze(-1) + best_g.unsqueeze(-2) - C) / eps + log_a.unsqueeze(-1) + log_b.unsqueeze(-2)
    )
    return torch.exp(log_plan), state.iterations, state.done


class _Progress:
    """Which problems have converged. A finished problem keeps its state while the others go on."""

    def __init__(self, B: int, device: torch.device, tolerance: float) -> None:
        self.tolerance = tolerance
        self.done = torch.zeros(B, dtype=torch.bool, device=device)
        self.iterations = torch.zeros(B, dtype=torch.long, device=device)

    def keep(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.where(self.done.view(-1, *[1] * (new.dim() - 1)), old, new)

    def finished(self, error: Tensor, iteration: int) -> bool:
        self.iterations = torch.where(self.done, self.iterations, iteration)
        self.done = self.done | (error < self.tolerance)
        return bool(self.done.all())
