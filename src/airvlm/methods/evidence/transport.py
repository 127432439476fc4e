"""Entropic optimal transport between uniform token sets, batched, in single precision.

`sinkhorn(C, eps)` solves min <T, C> - eps H(T) with T 1 = a, T' 1 = b for every problem of a batch at once, by
Sinkhorn updates with Anderson acceleration. On the tokens of a trained encoder, which have few directions, plain
updates need hundreds of iterations and these about thirty.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from airvlm.runtime.threads import single_thread

__all__ = ["Transport", "cosine_cost", "sinkhorn"]

TOLERANCE = 1e-4  # total marginal error of a plan
# Updates after which the host checks the convergence on a device: see Convergence
FIRST = 20
EVERY = 5
LATE = (60, 250)  # together with FIRST they cover a range of 1000, a factor of four between them
MEMORY = 5  # updates that a step is extrapolated from
RELAXATION = 1.6  # of an update before it is extrapolated; 1 is Sinkhorn's own
RIDGE = 1e-3  # of the least squares that extrapolate, relative to the largest difference
STRIDE = 3.0  # largest extrapolation, in units of eps: far from the solution its linear model is wrong
REFRESH = 20  # updates after which the scalings are absorbed into the kernel, so that they stay near 1
EXPONENT = 60.0  # bound of a scaling's logarithm within single precision (1e-38 .. 1e38)


@dataclass(frozen=True)
class Transport:
    """The solution of every problem in the batch."""

    plan: Tensor  # (..., Q, N) float32, T; rows sum to 1/Q, columns to 1/N (over the tokens that exist)
    cost: Tensor  # (...) float32, <T, C>; inf where one side has no token at all
    iterations: Tensor  # (...) int64, updates spent: two passes over the cost each
    converged: Tensor  # (...) bool, total marginal error below the tolerance
    updates: int = 0  # run for the whole batch: on a device somewhat more than the slowest problem spent


def cosine_cost(X: Tensor, Y: Tensor) -> Tensor:
    """C(k, n) = 1 - cos(x_k, y_n) in [0, 2], float32: X (..., Q, d), Y (..., N, d) -> (..., Q, N).

    Leading dimensions broadcast. A zero vector has no direction; its cosine with anything counts as 0, so C = 1.
    """
    X = X.detach().float()
    X = X / _lengths(X)
    if Y.dtype == torch.float32 or Y.dim() < 3:
        return _cost(X, Y.detach().float())
    # Half precision is widened one crop at a time: all crops at once would be several times the costs' own memory.
    shape = (*torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), X.shape[-2], Y.shape[-2])
    C = X.new_empty(shape)
    X = X.expand(*shape[:-2], *X.shape[-2:])
    Y = Y.detach().expand(*shape[:-2], *Y.shape[-2:])
    for m in range(shape[-3]):
        C[..., m, :, :] = _cost(X[..., m, :, :], Y[..., m, :, :].float())
    return C


def _cost(X: Tensor, Y: Tensor) -> Tensor:
    """1 - cos, of X whose vectors have length 1."""
    cos = X @ Y.mT  # (..., Q, N)
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
    tolerance: float | None = None,
) -> Transport:
    """Solve every problem C (..., Q, N) of the batch, uniform weights over the tokens that exist.

    `mask_rows` (..., Q) and `mask_columns` (..., N) are True where a token exists and broadcast over the batch.
    Each problem is solved as if it were alone and keeps its state from the update at which it converged, so a batch
    gives what its problems give one by one. `tolerance` bounds the sum of a problem's marginal errors (TOLERANCE
    where it is None). Beside C one buffer of its size is held (two with a mask).
    """
    if not eps > 0:
        raise ValueError(f"eps = {eps}: the entropic regularizer must be above 0")
    *batch, Q, N = C.shape
    B = math.prod(batch)
    C = C.detach().float().reshape(B, Q, N)
    if not C.numel():
        none = C.new_zeros(B, dtype=torch.long)
        cost = C.new_full((B,), torch.inf)
        return Transport(C.view(*batch, Q, N), cost.view(batch), none.view(batch), (none == 0).view(batch))
    real = None
    if mask_rows is not None or mask_columns is not None:
        rows = _flat_mask(mask_rows, (*batch, Q), C)  # (B, Q)
        columns = _flat_mask(mask_columns, (*batch, N), C)  # (B, N)
        a, b = _weights(rows), _weights(columns)
        real = rows.unsqueeze(-1) & columns.unsqueeze(-2)  # (B, Q, N)
        C = C.masked_fill(~real, 0.0)  # by where, not by product: a padding token may hold anything, also NaN
    else:
        a, b = C.new_full((B, 1, Q), 1 / Q), C.new_full((B, 1, N), 1 / N)
    with single_thread() if C.device.type == "cpu" else nullcontext():
        solver = _Solver(C, real, a, b, eps, TOLERANCE if tolerance is None else tolerance)
        updates = solver.run(max_iterations)
        plan = solver.plan()
        cost = torch.where(a.amax((-1, -2)) * b.amax((-1, -2)) > 0, _inner(plan, C), torch.inf)
    iterations, done = solver.iterations.view(batch), ~solver.open.view(batch)
    return Transport(plan.view(*batch, Q, N), cost.view(batch), iterations, done, updates)


def _flat_mask(mask: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    if mask is None:
        mask = torch.ones((), dtype=torch.bool, device=like.device)
    return mask.to(like.device).bool().expand(shape).reshape(like.shape[0], shape[-1])


def _weights(mask: Tensor) -> Tensor:
    """Uniform weights over the tokens that exist: (B, n) -> (B, 1, n), each sums to 1."""
    return (mask / mask.sum(-1, keepdim=True).clamp_min(1)).unsqueeze(-2)


def _inner(X: Tensor, Y: Tensor) -> Tensor:
    """<x, y> of each pair of problems, (B, Q, N) -> (B)."""
    X, Y = X.flatten(1), Y.flatten(1)
    if X.device.type == "cpu":  # vecdot writes all products first
        return torch.stack([torch.dot(x, y) for x, y in zip(X, Y, strict=True)])
    return torch.linalg.vecdot(X, Y)


def _finite(low: Tensor) -> Tensor:
    """The lowest costs of rows or columns; 0 where all of one are masked."""
    return torch.where(low < torch.inf, low, 0.0)


class _Solver:
    """T = diag(u) K diag(v), K = exp(-(C - f - g) / eps): x = log u is iterated, v makes the columns exact.

    All vectors are rows (B, 1, n): a batched product with a single column is ten times slower on a CPU. On a device an
    update of small vectors costs what launching its operations costs, so that they are kept few.
    """

    def __init__(self, C: Tensor, real: Tensor | None, a: Tensor, b: Tensor, eps: float, tolerance: float) -> None:
        self.C, self.real, self.a, self.b, self.eps, self.tolerance = C, real, a, b, eps, tolerance
        B, _, Q = a.shape
        self.absent = None if real is None else a <= 0  # (B, 1, Q) rows that do not exist
        self.x = torch.zeros_like(a)  # since K last absorbed it
        self.v = torch.ones_like(b)
        # Every row and every column of K starts with a 1 in it, whatever eps: none can underflow as a whole.
        costs = C if real is None else C.masked_fill(~real, torch.inf)  # (B, Q, N)
        self.f = _finite(costs.amin(-1, keepdim=True).mT)  # (B, 1, Q)
        self.K = costs - self.f.mT if real is None else costs.sub_(self.f.mT)
        self.g = _finite(self.K.amin(-2, keepdim=True))  # (B, 1, N)
        self.K.sub_(self.g).mul_(-1 / eps).exp_()
        # A problem without tokens on one side is solved by the empty plan.
        self.open = a.amax((-1, -2), keepdim=True) * b.amax((-1, -2), keepdim=True) > 0  # (B, 1, 1)
        self.iterations = torch.zeros(B, 1, 1, dtype=torch.long, device=C.device)
        self.last: tuple[Tensor, Tensor] | None = None  # the update before: where it led, and its step
        self.steps = C.new_zeros(B, MEMORY, Q)  # differences between the steps of following updates
        self.leads = C.new_zeros(B, MEMORY, Q)  # and between where they led
        self.target = a.log().mul_(RELAXATION)

    def run(self, max_iterations: int) -> int:
        """Update until all have converged, as far as the host knows; how often."""
        convergence = Convergence(self.C.device)
        for iteration in range(max_iterations):
            if iteration and iteration % REFRESH == 0:
                self._absorb()
            self._update(iteration)
            update = iteration + 1
            first = update == convergence.first
            if self._check_first() if first else convergence.is_reached(update, self.open):
                return update
        return max_iterations

    def plan(self) -> Tensor:
        """T, in the kernel's own memory."""
        u, v = self._scalings()
        return self.K.mul_(u.mT).mul_(v)

    def _scalings(self) -> tuple[Tensor, Tensor]:
        u = self.x.clamp(-EXPONENT, EXPONENT).exp_()
        if self.absent is not None:
            u.masked_fill_(self.absent, 0.0)
        return u, self.b / torch.bmm(u, self.K).clamp_min_(torch.finfo(torch.float32).tiny)

    def _update(self, iteration: int) -> None:
        """One update of the problems that have not converged: two passes over K."""
        u, self.v = self._scalings()
        rows = torch.bmm(self.v, self.K.mT).mul_(u)  # (B, 1, Q) what the rows sum to
        error = (rows - self.a).abs_().sum(-1, keepdim=True)  # (B, 1, 1); the columns are exact
        self.iterations += self.open
        self.open = self.open & (error >= self.tolerance)
        step = torch.sub(self.target, rows.log_(), alpha=RELAXATION).nan_to_num_(0.0, EXPONENT, -EXPONENT)
        if self.absent is not None:
            step.masked_fill_(self.absent, 0.0)
        led = self.x + step
        if self.last is not None:
            slot = iteration % MEMORY
            torch.sub(led, self.last[0], out=self.leads[:, slot : slot + 1])
            torch.sub(step, self.last[1], out=self.steps[:, slot : slot + 1])
        self.last = (led, step)
        self.x = torch.where(self.open, led - self._extrapolation(step), self.x)

    def _extrapolation(self, step: Tensor) -> Tensor:
        """Anderson's: back from where the combination of the remembered steps that cancels this one would lead."""
        R = self.steps
        gram = torch.bmm(R, R.mT)  # (B, m, m)
        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        diagonal.add_(diagonal.amax(-1, keepdim=True).clamp_min_(1e-27), alpha=RIDGE)
        L, _ = torch.linalg.cholesky_ex(gram)  # the plain cholesky would read back
        c = torch.cholesky_solve(torch.bmm(R, step.mT), L)  # (B, m, 1)
        move = torch.bmm(c.mT, self.leads)  # (B, 1, Q)
        far = torch.linalg.vector_norm(move, torch.inf, -1, keepdim=True).mul_(1 / STRIDE).clamp_min_(1.0)
        return move.div_(far).nan_to_num_(0.0, 0.0, 0.0)

    def _absorb(self) -> None:
        """Put the scalings into K, so that u and v begin at 1 again."""
        self.f = self.f + self.eps * self.x
        self.g = self.g + self.eps * torch.where(self.b > 0, self.v.log(), 0.0)
        if self.last is not None:
            self.last = (self.last[0] - self.x, self.last[1])
        self.x = torch.zeros_like(self.x)
        self.K.copy_(self.C).sub_(self.f.mT).sub_(self.g).mul_(-1 / self.eps).exp_()
        if self.real is not None:
            self.K.masked_fill_(~self.real, 0.0)

    def _check_first(self) -> bool:
        """Whether every problem has converged; costs that no update can solve are refused here, in one read-back."""
        finite, left = torch.stack([self.C.sum((-1, -2)).isfinite(), self.open.flatten()]).tolist()
        if not all(finite):
            raise ValueError(
                f"the cost of problem {finite.index(False)} holds NaN or infinity; transport needs finite costs"
            )
        return not any(left)


class Convergence:
    """Whether every problem of a batch has converged, as far as the host knows.

    On a CPU this is checked after each update. A device works behind the host and idles while the host waits for it, so
    the host waits once, at update FIRST, which is enough for most batches. From then on the device writes the answer
    into pinned memory every EVERY updates, and the host reads it without waiting: it learns of convergence a few
    updates late, which changes nothing. Where memory cannot be pinned, the host waits at the updates LATE instead.
    """

    def __init__(self, device: torch.device) -> None:
        self.host = device.type == "cpu"
        self.first = 1 if self.host else FIRST  # the caller checks this one, and waits
        self.flag = None if self.host else _pin_flag()

    def is_reached(self, update: int, unconverged: Tensor) -> bool:
        """Whether all have converged after this update, counted from 1; `unconverged` is bool, of any shape."""
        if self.host or (self.flag is None and update in LATE):
            return not bool(unconverged.any())
        if self.flag is None or update < self.first:
            return False
        if update % EVERY == 0:
            # What has converged stays converged: one byte goes from 0 to 1, and a read is at worst late.
            self.flag.copy_(unconverged.any().logical_not_(), non_blocking=True)
        return bool(self.flag)


def _pin_flag() -> Tensor | None:
    """A False on the host that a device can write into by itself; None where memory cannot be pinned."""
    try:
        return torch.zeros((), dtype=torch.bool, pin_memory=True)
    except (RuntimeError, NotImplementedError):
        return None
