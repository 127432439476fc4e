"""Speed of the transport against POT, looped and batched, in one interleaved run.

The job is AIR's for one image: 12 crops of 576 tokens against 100 prototypes, all of width 4096. Two parts are
timed: the solver alone on ready costs, and the whole way from tokens to distances. POT looped is what one writes
with it: ot.dist for the costs (from tokens) and ot.sinkhorn with its own defaults for each crop. "Eager" gives POT
every advantage: our costs, one matrix product, and a stop at our tolerance, which its rule (an L2 norm, looked at
after the first update already) meets earlier than ours (the sum of all marginal errors). "Torch" is the same loop on
the float32 tensors that a model gives.

    python -m benchmarks.transport [--repeats 9]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import ot
import torch

from airvlm.methods.air.transport import cosine_cost, sinkhorn
from benchmarks import llava_widths as llava

M, Q, N, d = 12, 100, 576, 4096
TOLERANCE = 1e-4


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Token-like vectors: a common direction (cosine about 0.5) and variation around it."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(d, generator=generator)
    return common + torch.randn(Q, d, generator=generator), common + torch.randn(M, N, d, generator=generator)


def pot_costs(X: torch.Tensor, Y: torch.Tensor) -> np.ndarray:
    X, Y = X / X.norm(dim=-1, keepdim=True), Y / Y.norm(dim=-1, keepdim=True)
    return (1 - X @ Y.mT).numpy()


def pot_dist(X: torch.Tensor, Y: torch.Tensor) -> np.ndarray:
    return np.stack([ot.dist(X.numpy(), crop, metric="cosine") for crop in Y.numpy()])


def pot_looped(C: np.ndarray, eps: float, **stop: float) -> list[float]:
    a, b = np.full(Q, 1 / Q), np.full(N, 1 / N)
    return [float((ot.sinkhorn(a, b, c, eps, **stop) * c).sum()) for c in C.astype(np.float64)]


def pot_torch(C: np.ndarray, eps: float) -> list[float]:
    a, b = torch.full((Q,), 1 / Q), torch.full((N,), 1 / N)
    return [float((ot.sinkhorn(a, b, c, eps) * c).sum()) for c in torch.from_numpy(C)]


def pot_batched(C: np.ndarray, eps: float) -> list[float]:
    result = ot.solve_batch(torch.from_numpy(C), reg=eps, tol=TOLERANCE, max_iter=1000)
    return [float(value) for value in result.value_linear]


def ours(C: np.ndarray, eps: float) -> list[float]:
    return [float(value) for value in sinkhorn(torch.from_numpy(C), eps, tolerance=TOLERANCE).cost]


def main() -> None:
    given = llava.arguments(__doc__ or "", repeats=9)
    warnings.simplefilter("ignore")  # POT warns where it does not converge; its distance is compared below

    X, Y = tokens()
    C = pot_costs(X, Y)
    results = []
    for eps in (0.1, 0.03):
        distances = {
            name: f(C, eps) for name, f in (("ours", ours), ("looped", pot_looped), ("batched", pot_batched))
        }
        off = max(
            abs(a - b) for name in ("looped", "batched") for a, b in zip(distances["ours"], distances[name])
        )
        parts: dict[str, dict[str, Callable[[], object]]] = {
            "solver": {
                "ours": lambda eps=eps: ours(C, eps),
                "POT looped": lambda eps=eps: pot_looped(C, eps),
                "POT looped, eager": lambda eps=eps: pot_looped(C, eps, stopThr=TOLERANCE),
                "POT looped, torch": lambda eps=eps: pot_torch(C, eps),
                "POT batched": lambda eps=eps: pot_batched(C, eps),
            },
            "tokens to distances": {
                "ours": lambda eps=eps: sinkhorn(cosine_cost(X, Y), eps, tolerance=TOLERANCE).cost.tolist(),
                "POT looped": lambda eps=eps: pot_looped(pot_dist(X, Y), eps),
                "POT looped, eager": lambda eps=eps: pot_looped(pot_costs(X, Y), eps, stopThr=TOLERANCE),
                "POT batched": lambda eps=eps: pot_batched(pot_costs(X, Y), eps),
            },
        }
        for part, jobs in parts.items():
            timed = {name: lambda job=job: llava.seconds(job) for name, job in jobs.items()}
            taken = llava.interleaved(timed, given.repeats)
            over = {name: llava.median(own) for name, own in llava.ratios(taken, "ours").items()}
            rows = [
                [name, f"{llava.median(own) * 1e3:.1f}", f"{over[name]:.1f}"] for name, own in taken.items()
            ]
            title = f"eps {eps}, {part}, {given.repeats} interleaved turns (distances agree to {off:.0e})"
            llava.table(title, ["", "milliseconds", "x ours"], rows)
            results.append({"eps": eps, "part": part, "x_ours": over, "largest_difference": off})
    llava.write("transport", {"M": M, "Q": Q, "N": N, "d": d, "results": results})


if __name__ == "__main__":
    main()
