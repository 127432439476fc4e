"""POT (Python Optimal Transport) beside our transport: whether costs agree, and the time for one image.

"POT, loop" is ot.sinkhorn with its own defaults for each crop, in double precision. "POT, loop, our tolerance" stops at
our tolerance, which its rule (an L2 norm, first checked after one update) reaches earlier than ours (the sum of all
marginal errors). "POT, loop, torch" is the same loop on float32 tensors. The problem is that of air: 12 crops of 576
tokens against 100 prototypes, with costs given.

    python -m experiments.speed.pot [--rounds 9] [--busy 2]

compares the numpy loops with ours at torch's default number of threads, by the clock, beside as many busy processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import ot
import torch
from torch import Tensor

from airvlm import AIR
from airvlm.bench.wide import WIDTH, K
from airvlm.methods.evidence.transport import TOLERANCE, cosine_cost, sinkhorn
from experiments.speed import timing
from experiments.speed.runner import busy_processes
from experiments.speed.tokens import Tokens, draw_like_trained, draw_random

Q = AIR().evidence_spec().count_prototypes(K)
EPS = (0.1, 0.03)


def solve_in_numpy(C: np.ndarray, eps: float, **options: Any) -> list[float]:
    """POT's cost of each crop, one after the other, in double precision."""
    a, b = np.full(C.shape[1], 1 / C.shape[1]), np.full(C.shape[2], 1 / C.shape[2])
    return [float((ot.sinkhorn(a, b, c, eps, **options) * c).sum()) for c in C.astype(np.float64)]


def solve_in_torch(C: Tensor, eps: float) -> list[float]:
    """The same on float32 tensors."""
    a, b = torch.full((C.shape[1],), 1 / C.shape[1]), torch.full((C.shape[2],), 1 / C.shape[2])
    return [float((ot.sinkhorn(a, b, c, eps) * c).sum()) for c in C]


def solve_batch(C: Tensor, eps: float) -> list[float]:
    """POT's batched solver."""
    return ot.solve_batch(C, reg=eps, tol=TOLERANCE, max_iter=1000).value_linear.tolist()


def compare_costs(own: Tokens, wide: Tokens) -> dict[str, float]:
    """Largest difference of a crop's cost from POT's, which is solved in double precision to 1e-9."""
    exact = {"method": "sinkhorn_log", "stopThr": 1e-9, "numItermax": 20_000, "warn": False}
    problems = {
        "64 x 64, of the emoji model": cosine_cost(own[0][:4].unsqueeze(1), own[1][:4, ::3]).flatten(0, 1),
        f"{Q} x {K}, drawn like trained": cosine_cost(wide[0][0, :Q], wide[1][0, ::6]),
    }
    found = {}
    for name, C in problems.items():
        for eps in EPS:
            ours, theirs = sinkhorn(C, eps).cost.tolist(), solve_in_numpy(C.numpy(), eps, **exact)
            found[f"{name}, eps {eps}"] = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    return found


def compare_speed(kinds: Mapping[str, Tokens], rounds: int, *, only_numpy: bool = False) -> dict[str, Any]:
    """Milliseconds for the twelve crops of one image, and ratios to ours.

    Args:
        kinds: the tokens of one image, by what they are.
        rounds: recorded rounds.
        only_numpy: leave out POT on tensors, which takes minutes with several threads on a busy machine.
    """
    warnings.simplefilter("ignore")  # POT warns where it does not converge in its 1000 updates
    result = {}
    for kind, (Z, X) in kinds.items():
        C = cosine_cost(Z[0, :Q], X[0])
        for eps in EPS:
            solvers: dict[str, Callable[[], object]] = {
                "ours": lambda eps=eps, C=C: sinkhorn(C, eps),
                "POT, loop": lambda eps=eps, C=C: solve_in_numpy(C.numpy(), eps),
                "POT, loop, our tolerance": lambda eps=eps, C=C: solve_in_numpy(C.numpy(), eps, stopThr=TOLERANCE),
                "POT, loop, torch": lambda eps=eps, C=C: solve_in_torch(C, eps),
                "POT, batched": lambda eps=eps, C=C: solve_batch(C, eps),
            }
            if only_numpy:
                del solvers["POT, loop, torch"], solvers["POT, batched"]
            jobs = {name: lambda solver=solver: timing.time_job(solver) for name, solver in solvers.items()}
            taken = timing.interleave(jobs, rounds)
            over = result[f"{kind}, eps {eps}"] = timing.ratios(taken, "ours")
            rows = [[n, f"{timing.median(own) * 1e3:.1f}", timing.show(over[n], 1)] for n, own in taken.items()]
            slowest = int(sinkhorn(C, eps).iterations.max())
            title = f"{len(C)} x {Q} x {K}, {kind}, eps {eps}, {rounds} rounds; ours takes {slowest} updates"
            timing.print_table(title, ["solver", "milliseconds", "ratio to ours: median [range]"], rows)
    return result


@torch.no_grad()
def main() -> None:
    given = timing.parse_arguments(__doc__ or "", rounds=9, busy=0)
    kinds = {"drawn like trained": draw_like_trained(1, K, K, WIDTH), "random": draw_random(1, K, K, WIDTH)}
    print(f"{torch.get_num_threads()} threads, beside {given.busy} busy processes")
    with busy_processes(given.busy):
        result = compare_speed(kinds, given.rounds, only_numpy=True)
    timing.write_result(f"pot-beside-{given.busy}", result)


if __name__ == "__main__":
    main()
