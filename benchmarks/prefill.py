"""What a method costs in prefill, at LLaVA-1.5-7B's widths: 616 tokens, 576 of them one image's.

Crops are encoded beforehand (benchmarks.crops measures that). Two things are timed: the injection alone, where it
happens, by reading, and for one, three, six and twelve crops kept; and the transport. A prefill of 32 layers takes
minutes on a CPU, so that it is reckoned from the layers run here:

    over vanilla at 32 = 1 + (transport + injection) / (32 layers' seconds + the rest of a vanilla pass)

where the injection of the paper's reading is scaled from the layers reinforced here to its six.

    python -m benchmarks.prefill [--layers 2] [--repeats 5]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from airvlm import AIR
from airvlm.hooks.method import Method
from airvlm.hooks.run import DidNotAct
from benchmarks import llava_widths as llava

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
            ):
                self.forward()
            return run.report.seconds["injection"]

        return job


def transport(prefill: Prefill, method: Method) -> Callable[[], float]:
    """Seconds of solving one image's twelve crops, as the report counts them."""

    def job() -> float:
        with method(prefill.model, llava.processor(), images=[[prefill.image]], check_images=False) as run:
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
    solving = llava.interleaved({k: transport(prefill, m) for k, m in methods.items()}, given.repeats)
    at_32: dict[str, float] = {}
    for name in methods:
        injected = found["extra"].get(f"{name}, 3 kept", found["extra"].get(name, 0.0))
        layers = (
            6 / n if name == "air-paper" else 1.0
        )  # the paper's reading acts in six layers, the others once
        at_32[name] = 1 + (llava.median(solving[name]) + injected * layers) / whole_pass
    share = {name: llava.median(own) / whole_pass for name, own in solving.items()}
    rows = [
        [name, f"{at_32[name]:.4f}", f"{llava.median(solving[name]):.3f}", f"{share[name]:.4f}"]
        for name in methods
    ]
    head = ["method", "over vanilla, crops apart", "transport seconds", "share of prefill (at most 0.02)"]
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
