"""The transport: updates and time on trained tokens, agreement with POT, memory, work on a device, speed beside POT.

Updates are counted on the embedded models' own tokens (of emoji scenes, and of photographs with --photos FOLDER), on
tokens drawn to be like them at the widths of LLaVA (tokens.py), and on random ones. crop-blend matches all tokens of an
image, air its 100 prototypes, both at eps 0.1. Memory is that of one image's evidence at the widths of LLaVA above the
tokens themselves, in buffers of the size of the crops' costs. Work on a device is counted on the pretend accelerator of
the tests and turned into seconds by the arithmetic that is printed.

    python -m experiments.speed.transport [--images 24] [--rounds 5] [--photos FOLDER]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from airvlm import AIR, CropBlend
from airvlm.bench.resident import begin_peak, peak
from airvlm.bench.wide import WIDTH, WORDS, K
from airvlm.methods.evidence.base import CropMethod
from airvlm.methods.evidence.transport import EVERY, FIRST, TOLERANCE, cosine_cost, sinkhorn
from experiments.speed import llava_widths as llava
from experiments.speed import pot, timing
from experiments.speed.prefill import gather
from experiments.speed.tokens import (
    Tokens,
    draw_like_trained,
    draw_random,
    encode_trained,
    load_scenes,
    summarize_updates,
)
from tests.device.pretend import FIRST as DEVICE
from tests.device.pretend import accelerator

SETTINGS = ((0.03, 1e-4), (0.03, 1e-6), (0.1, 1e-4), (0.1, 1e-6))  # eps, tolerance
# An A100 in half precision: sustained products, and memory read per second
GPU_FLOPS, GPU_BYTES = 150e12, 1.5e12
# Seconds that a device's queue spends on an operation, and a host on waiting
LAUNCH, READ_BACK = 5e-6, 20e-6
LIKE_TRAINED, RANDOM = "widths of LLaVA, drawn like trained", "widths of LLaVA, random"


def collect_tokens(images: int, photos: Path | None) -> dict[str, Tokens]:
    """Tokens to solve, by name."""
    found = {
        f"emoji model, {images} scenes": encode_trained("tiny", load_scenes(images)),
        "photograph model, 4 scenes": encode_trained("photo", load_scenes(4)),
    }
    if photos is not None:
        some = [Image.open(path).convert("RGB") for path in sorted(photos.glob("*.jpg"))[:8]]
        found["photograph model, 8 photographs"] = encode_trained("photo", some)
    return found | {LIKE_TRAINED: draw_like_trained(1, K, K, WIDTH), RANDOM: draw_random(1, K, K, WIDTH)}


def solve(tokens: Tokens, rounds: int) -> list[dict[str, Any]]:
    """Updates, and milliseconds per image, by setting; sixteen images together, as in the batches of an evaluation."""
    parts = [cosine_cost(Z.unsqueeze(1), X) for Z, X in zip(*(t.split(16) for t in tokens), strict=True)]
    first, rows = parts[0], []
    for eps, tolerance in SETTINGS:
        found = [sinkhorn(C, eps, tolerance=tolerance) for C in parts]
        taken = [
            timing.time_job(lambda eps=eps, t=tolerance: sinkhorn(first, eps, tolerance=t)) / len(first) * 1e3
            for _ in range(rounds)
        ]
        rows.append(
            {
                "eps": eps,
                "tolerance": tolerance,
                **summarize_updates(torch.cat([T.iterations for T in found])),
                "unconverged": sum(int((~T.converged).sum()) for T in found),
                "milliseconds": taken,
            }
        )
    return rows


def count_buffers(tokens: Tokens, method: CropMethod) -> float:
    """Peak memory of an image's evidence above its tokens, in float32 buffers of the size of the crops' costs."""
    gather(method, tokens)  # libraries keep buffers that they allocate at first
    before = begin_peak()
    if before is None:
        raise OSError("resident memory cannot be read: this benchmark needs Linux")
    gather(method, tokens)
    return (peak() - before) / (4 * method.num_crops * K * method.evidence_spec().count_prototypes(K))


def count_operations(eps: float) -> dict[str, float]:
    """Operations and read-backs of one image's transport on a device; they do not depend on its size."""
    with accelerator() as log:
        Z, X = (t.to(DEVICE) for t in draw_like_trained(1, 64, 64, 96))
        C = cosine_cost(Z.unsqueeze(1), X)
        counts = []
        for limit in (1000, 10, 15):
            log.clear()
            sinkhorn(C, eps, max_iterations=limit)
            counts.append((log.launches, len(log.read_backs)))
    (_, read_backs), (ten, _), (fifteen, _) = counts
    return {"read_backs": read_backs, "launches_per_update": (fifteen - ten) / 5}


def estimate_gpu(eps: float, slowest: int, num_crops: int, prototypes: int) -> dict[str, float]:
    """Seconds of one image's transport by arithmetic, and as a fraction of a prefill of 32 layers.

    A device runs all crops until the host learns that the slowest has converged: the host waits at update FIRST, and
    the device reports every EVERY updates from there on, which is assumed to arrive EVERY updates late. Each update
    reads the kernel of all crops twice. An operation counts as one launch, a report as three.
    """
    work = count_operations(eps)
    run = FIRST if slowest <= FIRST else EVERY * (math.ceil(slowest / EVERY) + 1)
    launches = work["launches_per_update"] * run + 3 * (run - FIRST) // EVERY
    kernel = 4 * num_crops * prototypes * K  # bytes
    seconds = run * 2 * kernel / GPU_BYTES + launches * LAUNCH + work["read_backs"] * READ_BACK
    prefill = 2 * (K + WORDS) * llava.LAYERS * llava.LAYER_WEIGHTS / GPU_FLOPS
    return {**work, "launches": launches, "updates_run": run, "seconds": seconds, "of_a_prefill": seconds / prefill}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--photos", type=Path, default=None)
    given = parser.parse_args()
    result: dict[str, Any] = {"updates": {}}
    head = ["eps", "tolerance", "median", "90 %", "slowest", "maximum", "unconverged"]
    found = collect_tokens(given.images, given.photos)
    for name, tokens in found.items():
        rows = result["updates"][name] = solve(tokens, min(2, given.rounds))
        cells = [[*(f"{row[k]:g}" for k in head), timing.show(row["milliseconds"], 1)] for row in rows]
        title = f"{name}: updates of a crop (slowest: of the median image)"
        timing.print_table(title, [*head, "milliseconds per image: median [range]"], cells)

    own, wide = next(iter(found.values())), found[LIKE_TRAINED]
    result["difference_from_pot"] = pot.compare_costs(own, wide)
    for name, value in result["difference_from_pot"].items():
        print(f"{name}: costs differ from POT's by at most {value:.1e}, at tolerance {TOLERANCE:g}")

    methods: dict[str, CropMethod] = {"crop-blend": CropBlend(), "crop-blend, 12 crops": CropBlend(num_crops=12)}
    methods["air"] = AIR()
    slowest_by_eps = {
        row["eps"]: row["slowest"] for row in result["updates"][LIKE_TRAINED] if row["tolerance"] == TOLERANCE
    }
    result["methods"], rows_ = {}, []
    for name, method in methods.items():
        spec = method.evidence_spec()
        slowest = slowest_by_eps[spec.eps]
        gpu = estimate_gpu(spec.eps, slowest, method.num_crops, spec.count_prototypes(K))
        buffers = count_buffers(wide, method)
        result["methods"][name] = {"buffers": buffers, "gpu": gpu}
        cells_ = [f"{slowest}", f"{gpu['updates_run']:g}", f"{gpu['launches']:.0f}", f"{gpu['read_backs']:g}"]
        rows_.append([name, f"{buffers:.2f}", *cells_, f"{gpu['seconds'] * 1e3:.1f}", f"{gpu['of_a_prefill']:.3f}"])
    head = ["method", "peak, buffers", "updates needed", "run", "launches", "read-backs", "ms", "of a prefill"]
    timing.print_table("One image at the widths of LLaVA: memory here, and a GPU by arithmetic", head, rows_)
    result["pot"] = pot.compare_speed({"drawn like trained": wide, "random": found[RANDOM]}, given.rounds)
    timing.write_result("transport", result)


if __name__ == "__main__":
    main()
