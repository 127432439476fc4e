"""The transport: updates and time on trained tokens, agreement with POT, memory, a device's work, and speed beside POT.

Updates are told of the embedded models' own tokens (both on the tiny model's scenes, and the photograph model on
--photos FOLDER where one is given), of tokens drawn to be like them at LLaVA's widths (tokens.py), and of random
ones. AIR() matches all tokens of an image, AIR.paper() its 100 prototypes, both at eps 0.1. Memory is that of one
image's evidence at LLaVA's widths above the tokens themselves, in buffers of the size of the crops' costs. A device's
work is counted on the tests' pretend accelerator and turned into seconds by the arithmetic that is printed.

    python -m experiments.speed.transport [--images 24] [--repeats 5] [--photos FOLDER]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from airvlm import AIR
from airvlm.bench.resident import begin_peak, peak
from airvlm.methods.evidence.crops import CropTokens, crop_boxes
from airvlm.methods.evidence.match import gather
from airvlm.methods.evidence.transport import EVERY, FIRST, TOLERANCE, cosine_cost, sinkhorn
from airvlm.methods.crop_blend import project
from experiments.speed import llava_widths as llava
from experiments.speed import pot
from experiments.speed.tokens import CROPS, Tokens, at_random, like_trained, scenes, trained, updates
from tests.device.pretend import FIRST as DEVICE
from tests.device.pretend import accelerator

SETTINGS = ((0.03, 1e-4), (0.03, 1e-6), (0.1, 1e-4), (0.1, 1e-6))  # eps, tolerance
GPU_FLOPS, GPU_BYTES = (
    150e12,
    1.5e12,
)  # an A100 in half precision: sustained products, memory read in a second
LAUNCH, READ_BACK = 5e-6, 20e-6  # seconds that a device's queue spends on an operation, and a host on waiting


def photographs(folder: Path, count: int) -> list[Image.Image]:
    """Some images of a folder."""
    return [Image.open(path).convert("RGB") for path in sorted(folder.glob("*.jpg"))[:count]]


def kinds(images: int, folder: Path | None) -> dict[str, Tokens]:
    """Tokens to solve, by name."""
    found = {
        f"tiny model, {images} scenes": trained("tiny", scenes(images)),
        "photograph model, 4 scenes": trained("photo", scenes(4)),
    }
    if folder is not None:
        found["photograph model, 8 photographs"] = trained("photo", photographs(folder, 8))
    wide = {"K": llava.K, "N": llava.K, "d": llava.WIDTH}
    return found | {
        "LLaVA's widths, drawn like trained": like_trained(1, **wide),
        "LLaVA's widths, at random": at_random(1, **wide),
    }


def solved(tokens: Tokens, repeats: int) -> list[dict[str, Any]]:
    """Updates and seconds an image, by setting; sixteen images together, as an evaluation's batches are."""
    parts = [cosine_cost(Z.unsqueeze(1), X) for Z, X in zip(*(t.split(16) for t in tokens), strict=True)]
    first, rows = parts[0], []
    for eps, tolerance in SETTINGS:
        found = [sinkhorn(C, eps, tolerance=tolerance) for C in parts]
        taken = [llava.seconds(lambda eps=eps, t=tolerance: sinkhorn(first, eps, tolerance=t)) for _ in range(repeats)]
        rows.append(
            {
                "eps": eps,
                "tolerance": tolerance,
                **updates(torch.cat([T.iterations for T in found])),
                "unconverged": sum(int((~T.converged).sum()) for T in found),
                "milliseconds": llava.median(taken) / len(first) * 1e3,
            }
        )
    return rows


def buffers(tokens: Tokens, air: AIR) -> float:
    """Peak memory of an image's evidence above its tokens, over one buffer of 12 x 576 x 576 in float32."""
    Z, X = tokens
    crops = CropTokens(tuple(crop_boxes((640, 480), CROPS)), (640, 480), X[0], None)
    gather([Z[0]], [crops], air, project)  # the libraries keep buffers of their own, as they do for vanilla
    before = begin_peak()
    if before is None:
        raise OSError("the kernel does not say what this process holds: this benchmark needs Linux")
    gather([Z[0]], [crops], air, project)
    return (peak() - before) / (4 * CROPS * llava.K**2)


def work_of_a_device(eps: float) -> dict[str, float]:
    """Operations and read-backs of one image's transport, whatever its size: each update is the same."""
    with accelerator() as log:
        Z, X = (t.to(DEVICE) for t in like_trained(1, 64, 64, 96))
        C = cosine_cost(Z.unsqueeze(1), X)
        log.clear()
        sinkhorn(C, eps)
        whole, read_backs = log.launches, len(log.read_backs)
        log.clear()
        sinkhorn(C, eps, max_iterations=10)
        ten = log.launches
        log.clear()
        sinkhorn(C, eps, max_iterations=15)
        update = (log.launches - ten) / 5
        return {"launches": whole, "read_backs": read_backs, "launches_an_update": update}


def on_a_gpu(eps: float, slowest: int) -> dict[str, float]:
    """Seconds by arithmetic beside a prefill of 32 layers.

    A device runs all crops until the host hears that the slowest has converged: it is waited for at update FIRST, and
    tells every EVERY updates from there on, which is reckoned to be heard EVERY updates late. Each update reads the
    crops' kernel twice. An operation counts as one launch, a look as three.
    """
    work = work_of_a_device(eps)
    run = FIRST if slowest <= FIRST else EVERY * (math.ceil(slowest / EVERY) + 1)
    launches = work["launches_an_update"] * run + 3 * (run - FIRST) // EVERY
    seconds = run * 2 * 4 * CROPS * llava.K**2 / GPU_BYTES + launches * LAUNCH + work["read_backs"] * READ_BACK
    length = llava.K + llava.TEXT_TOKENS
    prefill = 2 * length * llava.LAYERS * llava.LAYER_WEIGHTS / GPU_FLOPS
    return {
        **work,
        "launches": launches,
        "updates_run": run,
        "seconds": seconds,
        "of_a_prefill": seconds / prefill,
    }


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--photos", type=Path, default=None)
    given = parser.parse_args()
    result: dict[str, Any] = {"updates": {}}
    head = ["eps", "tolerance", "median", "90 %", "slowest", "most", "unconverged", "milliseconds"]
    found = kinds(given.images, given.photos)
    for name, tokens in found.items():
        rows = solved(tokens, min(2, given.repeats))
        result["updates"][name] = rows
        cells = [[f"{row[k]:g}" if k != "milliseconds" else f"{row[k]:.1f}" for k in head] for row in rows]
        title = f"{name}: updates of a crop, the slowest of the median image, milliseconds an image"
        llava.table(title, head, cells)

    own, wide = next(iter(found.values())), found["LLaVA's widths, drawn like trained"]
    result["pot_differs"] = pot.agreement(own, wide)
    for name, value in result["pot_differs"].items():
        print(f"{name}: the cost differs from POT's by {value:.1e} at most, at tolerance {TOLERANCE:g}")
    result["buffers"] = {"AIR()": buffers(wide, AIR())}
    print(f"\npeak memory of AIR()'s evidence: {result['buffers']['AIR()']:.2f} buffers of 12 x 576 x 576 (at most 3)")

    result["gpu"] = {}
    for name, eps in (("AIR()", AIR().eps), ("AIR.paper()", AIR.paper().eps)):
        slowest = next(row["slowest"] for row in solved_rows(result, eps))
        gpu = result["gpu"][name] = on_a_gpu(eps, slowest)
        print(
            f"{name} on a GPU by arithmetic: {slowest} updates needed and {gpu['updates_run']} run, "
            f"{gpu['launches_an_update']:.0f} launches each, {gpu['read_backs']} read-back(s): "
            f"{gpu['seconds'] * 1e3:.1f} ms, {gpu['of_a_prefill']:.3f} of a prefill"
        )
    result["pot"] = pot.speeds(
        {"drawn like trained": wide, "at random": found["LLaVA's widths, at random"]}, given.repeats
    )
    llava.write("transport", result)


def solved_rows(result: dict[str, Any], eps: float) -> list[dict[str, Any]]:
    rows = result["updates"]["LLaVA's widths, drawn like trained"]
    return [row for row in rows if row["eps"] == eps and row["tolerance"] == TOLERANCE]


if __name__ == "__main__":
    main()
