"""Cost of a method in prefill, at the widths of LLaVA-1.5-7B: 616 tokens, 576 of them visual.

Crops are encoded beforehand (experiments.speed.crops measures that). Two parts are timed: the injection, where it
happens, also for 1, 3, 6 and 12 kept crops; and the transport with the projection of its plan, on tokens drawn to be
like trained ones and on random ones (tokens.py). A prefill of 32 layers takes minutes on a CPU, so it is extrapolated:

    ratio to vanilla at 32 layers = 1 + (transport + injection) / (seconds of 32 layers + rest of a vanilla pass)

where the injection of air is scaled from the layers that are run here to six.

    python -m experiments.speed.prefill [--layers 2] [--rounds 3]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from airvlm import AIR, AIRMemory, CropBlend, MethodInactiveWarning
from airvlm.bench.wide import WIDTH, K, wide_processor, wide_prompt
from airvlm.methods.evidence.base import CropMethod
from airvlm.methods.evidence.crops import CropTokens, crop_boxes
from airvlm.methods.evidence.matching import Evidence, gather_evidence
from experiments.speed import llava_widths as llava
from experiments.speed import timing
from experiments.speed.tokens import Tokens, draw_like_trained, draw_random

KEPT = (1, 3, 6, 12)
AIR_LAYERS = 6  # of 32, in which air acts


def list_methods(layers: int) -> dict[str, CropMethod]:
    """The methods that are measured; air-memory acts once, in the second layer."""
    found: dict[str, CropMethod] = {"crop-blend": CropBlend(), "crop-blend, 12 crops": CropBlend(num_crops=12)}
    for k in KEPT:
        found[f"air, {k} kept"] = AIR(layers=(0, layers), keep=k)
        found[f"air-memory, {k} kept"] = AIRMemory(layers=(0, layers), keep=k, threshold=0.0)
    return found


class Prefill:
    """One model, one image and one prompt, and the ways of running a pass over them."""

    def __init__(self, layers: int) -> None:
        self.model, self.image = llava.build(layers), llava.sample_image()
        self.inputs = {**wide_prompt(), **llava.encode_image(self.model, self.image)}
        self.in_layers: list[float] = []  # seconds of all layers, per vanilla pass

    def forward(self) -> None:
        """One pass."""
        self.model(**self.inputs, use_cache=True, logits_to_keep=1)

    def time_vanilla(self) -> float:
        """Seconds of a vanilla pass; those inside the layers are recorded."""
        times: list[float] = []
        layers = self.model.get_decoder().layers
        hooks = [
            layers[0].register_forward_pre_hook(lambda *_: times.append(timing.clock())),
            layers[-1].register_forward_hook(lambda *_: times.append(timing.clock())),
        ]
        taken = timing.time_job(self.forward)
        for hook in hooks:
            hook.remove()
        self.in_layers.append(times[1] - times[0])
        return taken

    def injection_job(self, method: CropMethod) -> Callable[[], float]:
        """Seconds of the injection as the report counts them, in a pass that does nothing else.

        Two passes of many seconds differ by more than an injection costs, so it is timed where it happens.
        """

        def job() -> float:
            with (
                method(self.model, wide_processor(), images=[[self.image]], check_images=False) as session,
                llava.without_arithmetic(self.model),
                timing.one_clock(),
            ):
                self.forward()
            return float(session.report.seconds["injection"])

        return job


def gather(method: CropMethod, tokens: Tokens) -> Evidence:
    """The evidence of one image whose crops are encoded."""
    Z, X = tokens
    boxes = tuple(crop_boxes((640, 480), method.num_crops))
    crops = CropTokens(boxes, (640, 480), X[0, : method.num_crops], None)
    return gather_evidence([Z[0]], [crops], method.evidence_spec())[0]


def fit_line(extra: dict[int, float]) -> tuple[float, float, float]:
    """Least-squares line through seconds by crops kept: slope, intercept and R squared."""
    x = torch.tensor([float(k) for k in extra], dtype=torch.float64)
    y = torch.tensor(list(extra.values()), dtype=torch.float64)
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    intercept = y.mean() - slope * x.mean()
    residual = ((y - slope * x - intercept) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return float(slope), float(intercept), float(1 - residual)


def measure_injection(prefill: Prefill, layers: int, rounds: int) -> dict[str, Any]:
    """Seconds of a vanilla layer and of the rest of a pass, and of each method's injection."""
    jobs: dict[str, Callable[[], float]] = {"vanilla": prefill.time_vanilla}
    jobs |= {name: prefill.injection_job(method) for name, method in list_methods(layers).items()}
    taken = timing.interleave(jobs, rounds)
    layer = timing.median(prefill.in_layers) / layers
    vanilla = taken.pop("vanilla")
    return {"layer": layer, "rest": timing.median(vanilla) - layer * layers, "injection": taken}


@torch.no_grad()
def main() -> None:
    given = timing.parse_arguments(__doc__ or "", layers=2, rounds=3)
    warnings.simplefilter("ignore", MethodInactiveWarning)
    n = given.layers
    found = measure_injection(Prefill(n), n, given.rounds)
    acting = {name: n if name.startswith("air,") else 1 for name in found["injection"]}  # layers
    per_layer = {
        name: [1 + seconds / acting[name] / found["layer"] for seconds in own]
        for name, own in found["injection"].items()
    }
    rows = [
        [name, f"{timing.median(found['injection'][name]):.3f}", timing.show(own, 4)] for name, own in per_layer.items()
    ]
    title = f"Injection in prefill, {n} layers of {found['layer']:.2f} s, {given.rounds} rounds"
    timing.print_table(title, ["method", "seconds", "ratio per layer in which it acts: median [range]"], rows)
    lines = {}
    for name in ("air", "air-memory"):
        medians = {
            k: timing.median(found["injection"][f"{name}, {k} kept"]) / acting[f"{name}, {k} kept"] for k in KEPT
        }
        slope, intercept, fit = lines[name] = fit_line(medians)
        print(f"{name}: {intercept:.4f} s + {slope:.4f} s per kept crop and layer, R² {fit:.4f}")

    whole = found["layer"] * llava.LAYERS + found["rest"]  # seconds of a vanilla prefill of 32 layers
    methods = {name: m for name, m in list_methods(n).items() if "blend" in name or ", 3 kept" in name}
    kinds = {"like trained": draw_like_trained(1, K, K, WIDTH), "random": draw_random(1, K, K, WIDTH)}
    jobs: dict[str, Callable[[], float]] = {
        f"{name}, {kind}": lambda m=method, t=tokens: timing.time_job(lambda: gather(m, t))
        for name, method in methods.items()
        for kind, tokens in kinds.items()
    }
    taken = timing.interleave(jobs, given.rounds)
    at_32, rows = {}, []
    for name, method in methods.items():
        injection = timing.median(found["injection"][name]) * (AIR_LAYERS / n if name.startswith("air,") else 1)
        for kind, tokens in kinds.items():
            key = f"{name}, {kind}"
            at_32[key] = [1 + (seconds + injection) / whole for seconds in taken[key]]
            updates = int(gather(method, tokens).iterations)
            rows.append([key, timing.show(at_32[key], 4), str(updates), f"{timing.median(taken[key]):.3f}"])
    head = ["method, tokens", "ratio to vanilla without crops: median [range]", "updates", "seconds of transport"]
    title = f"Prefill extrapolated to {llava.LAYERS} layers ({whole:.1f} s without a method)"
    timing.print_table(title, head, rows)
    timing.write_result(
        "prefill",
        {
            "layers": n,
            **found,
            "lines_by_kept_crops": lines,
            "vanilla_seconds_at_32_layers": whole,
            "transport_seconds": taken,
            "ratios_at_32_layers": at_32,
        },
    )


if __name__ == "__main__":
    main()
