"""What a method costs in prefill, at LLaVA-1.5-7B's widths: 616 tokens, 576 of them one picture's.

Crops are encoded beforehand (benchmarks.crops measures that). Two things are timed: the injection alone (evidence
known, so that only the hooks work), by reading, and for one, three, six and twelve crops kept; and the whole
block (picture hashed, transport solved, injection, report read). Extrapolation to 32 layers adds vanilla layers:

    over vanilla at 32 = 1 + extra seconds / (32 layers' seconds + the rest of a vanilla pass)

where the extra seconds of the paper's reading are first scaled from the layers reinforced here to its six.

    python -m benchmarks.prefill [--layers 2] [--repeats 5]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from airvlm import AIR
from airvlm.methods.base import Method
from airvlm.methods.run import DidNotAct
from benchmarks import llava_widths as llava

KEPT = (1, 3, 6, 12)


def reading(name: str, keep: int, layers: int) -> AIR:
    if name == "air-paper":
        return AIR.paper(layers=(0, layers), keep=keep)
    return AIR.lineage(layers=(0, layers), keep=keep, threshold=0.0)  # acts once: in layer 1


class Prefill:
    """One model, one picture, one prompt, and the ways of running a pass over it."""

    def __init__(self, layers: int) -> None:
        self.model, self.image = llava.build(layers), llava.picture()
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
        """Seconds of a pass whose evidence is known from a pass without arithmetic."""

        def job() -> float:
            with method(self.model, llava.processor(), images=[[self.image]]):
                with llava.without_arithmetic(self.model):
                    self.forward()
                return llava.seconds(self.forward)

        return job

    def whole(self, method: Method) -> Callable[[], float]:
        """Seconds of opening the block, a pass in it, and reading its report."""

        def job() -> float:
            started = llava.clock()
            with method(self.model, llava.processor(), images=[[self.image]]) as run:
                self.forward()
            assert run.report.fired
            return llava.clock() - started

        return job


def transport(prefill: Prefill, method: Method) -> Callable[[], float]:
    """Seconds of solving one picture's twelve crops, as the report counts them."""

    def job() -> float:
        with method(prefill.model, llava.processor(), images=[[prefill.image]]) as run:
            started = llava.clock()
            with llava.without_arithmetic(prefill.model):
                prefill.forward()
            total = llava.clock() - started
        seconds = run.report.seconds
        return total * seconds["transport"] / sum(seconds.values())

    return job


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
    extra = {
        name: llava.median([t - v for t, v in zip(own, taken["vanilla"], strict=True)])
        for name, own in taken.items()
    }
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
    given = llava.arguments(__doc__ or "", layers=2, repeats=5)
    warnings.simplefilter("ignore", DidNotAct)
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
    jobs = {"vanilla": prefill.vanilla} | {name: prefill.whole(m) for name, m in methods.items()}
    taken = llava.interleaved(jobs, given.repeats)
    solving = llava.interleaved({k: transport(prefill, m) for k, m in methods.items()}, given.repeats)
    at_32: dict[str, float] = {}
    for name in methods:
        extra = llava.median([t - v for t, v in zip(taken[name], taken["vanilla"], strict=True)])
        injected = found["extra"].get(f"{name}, 3 kept", 0.0)
        six = injected * (6 / n - 1) if name == "air-paper" else 0.0  # the layers not built here
        at_32[name] = 1 + (extra + six) / whole_pass
    share = {name: llava.median(own) / whole_pass for name, own in solving.items()}
    rows = [
        [name, f"{at_32[name]:.4f}", f"{llava.median(solving[name]):.3f}", f"{share[name]:.4f}"]
        for name in methods
    ]
    head = ["method", "whole block over vanilla", "transport seconds", "share of prefill (at most 0.02)"]
    llava.table(
        f"A prefill at {llava.LAYERS} layers ({whole_pass:.1f} s vanilla), extrapolated",
        head,
        rows,
    )
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
