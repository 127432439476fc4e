"""What a method costs in prefill, at LLaVA-1.5-7B's widths: 616 tokens, 576 of them one image's.

Crops are encoded beforehand (benchmarks.crops measures that). Two things are timed: the injection alone, where it
happens, by reading, and for one, three, six and twelve crops kept; and the transport with what is made of its plan,
on tokens drawn to be like trained ones and on random ones (tokens.py), whose updates are told. A prefill of 32 layers
takes minutes on a CPU, so that it is reckoned from the layers run here:

    over vanilla at 32 = 1 + (transport + injection) / (32 layers' seconds + the rest of a vanilla pass)

where the injection of the paper's reading is scaled from the layers reinforced here to its six.

    python -m experiments.speed.prefill [--layers 2] [--repeats 3]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from airvlm import AIR
from airvlm.methods.base import Method
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.methods.evidence.crops import CropTokens, crop_boxes
from airvlm.methods.evidence.match import Projection, gather
from airvlm.methods.crop_blend import project
from experiments.speed import llava_widths as llava
from experiments.speed.tokens import CROPS, Tokens, at_random, like_trained

KEPT = (1, 3, 6, 12)


def reading(name: str, keep: int, layers: int) -> AIR:
    if name == "air-paper":
        return AIR.paper(layers=(0, layers), keep=keep)
    return AIR.lineage(layers=(0, layers), keep=keep, threshold=0.0)  # acts once: in layer 1


class Prefill:
    """One model, one image, one prompt, and the ways of running a pass over it."""

    def __init__(self, layers: int) -> None:
        self.model, self.image = llava.build(layers), llava.sample_image()
        self.layers = layers
        self.inputs = {**llava.prompt(), **llava.encoded(self.model, self.image)}
        self.in_layers: list[float] = []  # seconds of all layers, of each vanilla pass

    def forward(self) -> None:
        self.model(**self.inputs, use_cache=True, logits_to_keep=1)

    def vanilla(self) -> float:
        times: list[float] = []
        decoder = self.model.get_decoder()
        first = decoder.layers[0].register_forward_pre_hook(lambda *_: times.append(llava.clock()))
        last = decoder.layers[-1].register_forward_hook(lambda *_: times.append(llava.clock()))
        taken = llava.seconds(self.forward)
        first.remove()
        last.remove()
        self.in_layers.append(times[1] - times[0])
        return taken

    def injection(self, method: Method) -> Callable[[], float]:
        """Seconds that the method spends on injecting, as its report counts them, in a pass that does nothing else.

        Two passes of many seconds differ by more than an injection costs, so it is timed where it happens.
        """

        def job() -> float:
            with (
                method(self.model, llava.processor(), images=[[self.image]], check_images=False) as run,
                llava.without_arithmetic(self.model),
                llava.one_clock(),
            ):
                self.forward()
            return run.report.seconds["injection"]

        return job


def transport(method: AIR, tokens: Tokens) -> Callable[[], float]:
    """Seconds of the evidence of one image whose twelve crops are encoded."""
    Z, X = tokens
    crops = CropTokens(tuple(crop_boxes((640, 480), CROPS)), (640, 480), X[0], None)

    def job() -> float:
        return llava.seconds(lambda: gather([Z[0]], [crops], method, _projection(method)))

    return job


def spent(method: AIR, tokens: Tokens) -> int:
    """Updates of the slowest crop."""
    Z, X = tokens
    crops = CropTokens(tuple(crop_boxes((640, 480), CROPS)), (640, 480), X[0], None)
    return int(gather([Z[0]], [crops], method, _projection(method))[0].iterations)


def _projection(method: AIR) -> Projection | None:
    return project if method.reading == "carry" else None


def growth(extra: dict[int, float]) -> tuple[float, float, float]:
    """Least squares line through the extra seconds by crops kept: slope, intercept, and R squared."""
    x = torch.tensor([float(k) for k in extra], dtype=torch.float64)
    y = torch.tensor(list(extra.values()), dtype=torch.float64)
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    intercept = y.mean() - slope * x.mean()
    left = ((y - slope * x - intercept) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return float(slope), float(intercept), float(1 - left)


def injections(prefill: Prefill, n: int, repeats: int) -> dict[str, Any]:
    """The injection by reading and crops kept, over the layers it acts in."""
    jobs: dict[str, Callable[[], float]] = {"vanilla": prefill.vanilla}
    for name in ("air-paper", "air-lineage"):
        jobs |= {f"{name}, {k} kept": prefill.injection(reading(name, k, n)) for k in KEPT}
    jobs["air-transported"] = prefill.injection(AIR.transported())
    taken = llava.interleaved(jobs, repeats)
    layer = llava.median(prefill.in_layers) / n  # seconds of one vanilla layer
    extra = {name: llava.median(own) for name, own in taken.items() if name != "vanilla"}
    acting = {name: n if "paper" in name else 1 for name in jobs}
    each = {name: 1 + extra[name] / acting[name] / layer for name in jobs if name != "vanilla"}
    lines = {
        name: growth({k: extra[f"{name}, {k} kept"] / acting[f"{name}, {k} kept"] for k in KEPT})
        for name in ("air-paper", "air-lineage")
    }
    rest = llava.median(taken["vanilla"]) - layer * n
    return {"layer": layer, "rest": rest, "extra": extra, "per_layer": each, "lines": lines, "acting": acting}


@torch.no_grad()
def main() -> None:
    given = llava.arguments(__doc__ or "", layers=2, repeats=3)
    warnings.simplefilter("ignore", MethodInactiveWarning)
    prefill, n = Prefill(given.layers), given.layers
    found = injections(prefill, n, given.repeats)
    whole_pass = found["layer"] * llava.LAYERS + found["rest"]  # seconds of a vanilla prefill of 32 layers
    targets = {"air-paper, 3 kept": 1.05, "air-lineage, 3 kept": 1.15}
    rows = [
        [name, f"{found['extra'][name]:.3f}", f"{ratio:.4f}", str(targets.get(name, ""))]
        for name, ratio in found["per_layer"].items()
    ]
    title = f"Injection in prefill, {n} layers of {found['layer']:.2f} s, {given.repeats} interleaved turns"
    llava.table(title, ["method", "extra seconds", "per layer it acts in", "at most"], rows)
    for name, (slope, intercept, fit) in found["lines"].items():
        print(f"{name}: {intercept:.4f} s + {slope:.4f} s a crop kept and layer, R² {fit:.4f}")

    methods = {
        "air-paper": reading("air-paper", 3, n),
        "air-lineage": reading("air-lineage", 3, n),
        "air-transported": AIR.transported(),
    }
    wide = {"K": llava.K, "N": llava.K, "d": llava.WIDTH}
    kinds = {"like trained": like_trained(1, **wide), "random": at_random(1, **wide)}
    jobs = {(name, kind): transport(m, kinds[kind]) for name, m in methods.items() for kind in kinds}
    solving = llava.interleaved({", ".join(key): job for key, job in jobs.items()}, given.repeats)
    at_32: dict[str, float] = {}
    share: dict[str, float] = {}
    rows = []
    for name, kind in jobs:
        injected = found["extra"].get(f"{name}, 3 kept", found["extra"].get(name, 0.0))
        # the paper's reading acts in six layers, the others once
        layers = 6 / n if name == "air-paper" else 1.0
        which, seconds = f"{name}, {kind}", llava.median(solving[f"{name}, {kind}"])
        at_32[which], share[which] = 1 + (seconds + injected * layers) / whole_pass, seconds / whole_pass
        updates = spent(methods[name], kinds[kind])
        rows.append([which, f"{at_32[which]:.4f}", f"{updates}", f"{seconds:.3f}", f"{share[which]:.4f}"])
    head = [
        "method, tokens",
        "over vanilla, crops apart",
        "updates",
        "seconds",
        "share of prefill (at most 0.02)",
    ]
    title = f"A prefill at {llava.LAYERS} layers ({whole_pass:.1f} s vanilla), extrapolated; transport and its plan"
    llava.table(title, head, rows)
    llava.write(
        "prefill",
        {
            "layers": n,
            "injection": found,
            "vanilla_seconds_at_32_layers": whole_pass,
            "whole_over_vanilla_at_32_layers": at_32,
            "transport_share_at_32_layers": share,
            "targets": {**targets, "air-transported, whole": 1.01, "transport share": 0.02},
        },
    )


if __name__ == "__main__":
    main()
