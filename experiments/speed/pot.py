"""POT beside our transport: whether the costs agree, and what solving one image takes, looped and batched.

POT looped is what one writes with it: ot.sinkhorn with its own defaults for each crop, in numpy's double precision.
"Eager" stops it at our tolerance, which its rule (an L2 norm, looked at after the first update already) meets earlier
than ours (the sum of all marginal errors). "Torch" is the same loop on the float32 tensors that a model gives. The
job is AIR.paper()'s: 12 crops of 576 tokens against 100 prototypes, on ready costs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import ot
import torch
from torch import Tensor

from airvlm.methods.evidence.transport import TOLERANCE, cosine_cost, sinkhorn
from experiments.speed import llava_widths as llava
from experiments.speed.tokens import Tokens

Q = 100  # prototypes
EPS = (0.1, 0.03)


def looped(C: np.ndarray, eps: float, **options: Any) -> list[float]:
    a, b = np.full(C.shape[1], 1 / C.shape[1]), np.full(C.shape[2], 1 / C.shape[2])
    return [float((ot.sinkhorn(a, b, c, eps, **options) * c).sum()) for c in C.astype(np.float64)]


def looped_in_torch(C: Tensor, eps: float) -> list[float]:
    a, b = torch.full((C.shape[1],), 1 / C.shape[1]), torch.full((C.shape[2],), 1 / C.shape[2])
    return [float((ot.sinkhorn(a, b, c, eps) * c).sum()) for c in C]


def batched(C: Tensor, eps: float) -> list[float]:
    return ot.solve_batch(C, reg=eps, tol=TOLERANCE, max_iter=1000).value_linear.tolist()


def agreement(own: Tokens, wide: Tokens) -> dict[str, float]:
    """Largest difference of a crop's cost from POT's, solved in double precision to 1e-9."""
    exact = {"method": "sinkhorn_log", "stopThr": 1e-9, "numItermax": 20_000, "warn": False}
    problems = {
        "64 x 64, the tiny model's own": cosine_cost(own[0][:4].unsqueeze(1), own[1][:4, ::3]).flatten(0, 1),
        "100 x 576, drawn like trained": cosine_cost(wide[0][0, :Q], wide[1][0, ::6]),
    }
    found = {}
    for name, C in problems.items():
        for eps in EPS:
            ours, theirs = sinkhorn(C, eps).cost.tolist(), looped(C.numpy(), eps, **exact)
            found[f"{name}, eps {eps}"] = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    return found


def speeds(kinds: Mapping[str, Tokens], repeats: int) -> dict[str, Any]:
    """Milliseconds of one image's twelve crops, interleaved."""
    warnings.simplefilter("ignore")  # POT warns where it does not converge in its 1000 updates
    result = {}
    for kind, (Z, X) in kinds.items():
        C = cosine_cost(Z[0, :Q], X[0])
        for eps in EPS:
            jobs: dict[str, Callable[[], object]] = {
                "ours": lambda eps=eps, C=C: sinkhorn(C, eps),
                "POT looped": lambda eps=eps, C=C: looped(C.numpy(), eps),
                "POT looped, eager": lambda eps=eps, C=C: looped(C.numpy(), eps, stopThr=TOLERANCE),
                "POT looped, torch": lambda eps=eps, C=C: looped_in_torch(C, eps),
                "POT batched": lambda eps=eps, C=C: batched(C, eps),
            }
            taken = llava.interleaved({name: lambda job=job: llava.seconds(job) for name, job in jobs.items()}, repeats)
            over = {name: llava.median(own) for name, own in llava.ratios(taken, "ours").items()}
            rows = [[n, f"{llava.median(own) * 1e3:.1f}", f"{over[n]:.1f}"] for n, own in taken.items()]
            slowest = int(sinkhorn(C, eps).iterations.max())
            title = f"12 x {Q} x {llava.K}, {kind}, eps {eps}, {repeats} turns; ours takes {slowest} updates"
            llava.table(title, ["", "milliseconds", "x ours"], rows)
            result[f"{kind}, eps {eps}"] = over
    return result
