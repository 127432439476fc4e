"""`airvlm check --device`: the laws, synchronizations, speed and memory of every method on somebody's device.

Run one command on a machine with a GPU, and attach the file to an issue. Nothing is downloaded: the laws are checked
on small random models of every family, and speed is measured on a random LLaVA at the widths of the 7B model.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from airvlm.bench.efficiency import noise_image
from airvlm.bench.wide import WideLlava
from airvlm.methods.base import Method
from airvlm.methods.controls import Wrapper
from airvlm.methods.names import METHODS
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import small_models
from airvlm.testing.laws import OK, run_law
from airvlm.testing.method_laws import METHOD_LAWS, MethodOnFamily, register_for_now, turn_off

__all__ = ["DeviceReport", "check_device", "count_synchronizations", "find_layers", "list_checked"]

ACTING = {"air": {"keep": 3}, "air-memory": {"keep": 3}}  # options with which a method acts on the small models
SYNCHRONIZES = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")
DEPTH, TOKENS, ROUNDS = 32, 16, 3
LAYER_BYTES = 4 * 4096 * 4096 + 3 * 4096 * 11008  # parameters of one decoder layer at 7B widths


@dataclass
class DeviceReport:
    """What was found on a device."""

    device: str
    machine: dict[str, str]
    laws: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)  # method -> family -> law -> OK or what
    synchronizations: dict[str, int | None] = field(default_factory=dict)  # method -> more than vanilla per decode step
    layers: int = 0  # of the wide model
    costs: list[dict[str, Any]] = field(default_factory=list)  # one per method, see `_measure`

    @property
    def broken(self) -> list[tuple[str, str, str, str]]:
        """(method, family, law, what is wrong)."""
        return [
            (method, family, law, what)
            for method, families in self.laws.items()
            for family, laws in families.items()
            for law, what in laws.items()
            if what != OK
        ]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def to_markdown(self) -> str:
        """A page to attach to an issue."""
        checked = sum(len(laws) for families in self.laws.values() for laws in families.values())
        lines = [f"# airvlm on {self.device}", ""]
        lines += [f"* {name}: {value}" for name, value in self.machine.items()]
        lines += ["", f"Laws: {checked} checked, {len(self.broken)} broken.", ""]
        lines += [f"* {method} on {family}: {law}: {what}" for method, family, law, what in self.broken]
        lines += [
            "",
            f"LLaVA at 7B widths, {self.layers} of {DEPTH} decoder layers, {TOKENS} tokens, medians of {ROUNDS}",
        ]
        lines += ["rounds as ratios to vanilla; synchronizations per decode step beyond vanilla's.", ""]
        head = ("method", "prefill", "decode", "memory (MiB)", "synchronizations")
        lines += ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        for cost in self.costs:
            cells = [cost["method"], *(_show(cost.get(name)) for name in ("prefill", "decode", "memory"))]
            count = self.synchronizations.get(cost["method"])
            cells.append(cost["problem"] or ("" if count is None else str(count)))
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def _show(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def list_checked() -> dict[str, Method]:
    """The methods that need nothing from the user, with options that act on small models."""
    kinds = {name: METHODS[name] for name in METHODS}
    return {
        name: kind(**ACTING.get(name, {}))
        for name, kind in kinds.items()
        if not kind.data and not issubclass(kind, Wrapper)
    }


def check_device(
    device: str,
    *,
    methods: dict[str, Method] | None = None,
    families: Sequence[str] | None = None,
    layers: int | None = None,
    scale: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> DeviceReport:
    """Check and measure every method on a device.

    Args:
        device: as torch names it.
        methods: by name; by default all that need nothing from the user.
        families: model types of the laws; by default all.
        layers: decoder layers of the wide model; by default as many as fit.
        scale: divides the wide model's widths, for tests.
        progress: called before each step with what it is.
    """
    torch.empty(1, device=device)  # raises at once where there is no such device
    chosen = list_checked() if methods is None else methods
    report = DeviceReport(device, _describe_machine(device))
    with small_models.use_device(device):
        for name, method in chosen.items():
            report.laws[name] = {}
            for family in families or small_models.list_families():
                progress(f"laws of {name} on {family}")
                subject = MethodOnFamily(family, method, turn_off(method))
                with register_for_now(method):
                    report.laws[name][family] = {
                        law.name: run_law(law, subject) for law in METHOD_LAWS if law.applies(subject)
                    }
    dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    report.layers = find_layers(device) if layers is None else layers
    wide = WideLlava(report.layers, 24 if report.layers == DEPTH else 2, scale, device, dtype)
    vanilla = None
    measured: dict[str, Method | None] = {"vanilla": None, **chosen}
    for name, one in measured.items():
        progress(f"speed of {name}")
        found = _measure(wide, one)
        vanilla = found if one is None else vanilla
        assert vanilla is not None
        ratios = {part: found[part] / vanilla[part] if found[part] else None for part in ("prefill", "decode")}
        report.costs.append({"method": name, **ratios, "memory": found["memory"], "problem": found["problem"]})
        report.synchronizations[name] = (
            None if found["synchronizations"] is None else found["synchronizations"] - vanilla["synchronizations"]
        )
    return report


def find_layers(device: str) -> int:
    """Decoder layers of the wide model that fit: all 32 on a card of 24 GB, 2 on the CPU."""
    if torch.device(device).type != "cuda":
        return 2
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    return max(2, min(DEPTH, int((free * 0.6 - 2e9) / (2 * LAYER_BYTES))))


def _describe_machine(device: str) -> dict[str, str]:
    found = {"machine": platform.platform(), "python": platform.python_version()}
    found |= {name: metadata.version(name) for name in ("airvlm", "torch", "transformers")}
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
    else:
        found["threads"] = str(torch.get_num_threads())
    return found


def _generate(wide: WideLlava, method: Method | None, number: int, tokens: int) -> None:
    fixed = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    image = noise_image(number)
    inputs = wide.inputs(image)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", MethodInactiveWarning)
        if method is None:
            wide.model.generate(**inputs, **fixed)
            return
        with method(wide.model, wide.processor, images=[[image]], check_images=False):
            wide.model.generate(**inputs, **fixed)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measure(wide: WideLlava, method: Method | None) -> dict[str, Any]:
    """Seconds of prefill and decode, peak memory in MiB (on a GPU), and synchronizations per decode step."""
    device = wide.model.device
    found: dict[str, Any] = {"prefill": None, "decode": None, "memory": None, "synchronizations": None, "problem": None}
    prefill, whole = list[float](), list[float]()
    try:
        for turn in range(ROUNDS + 1):
            for tokens, times in ((1, prefill), (TOKENS, whole)):
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(device)
                _wait(device)
                started = time.perf_counter()
                _generate(wide, method, 2 * turn + (tokens > 1), tokens)
                _wait(device)
                if turn:
                    times.append(time.perf_counter() - started)
        found["synchronizations"] = count_synchronizations(wide, method)
    except Exception as error:  # a method that does not fit is a row that says so
        found["problem"] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        return found
    found["prefill"] = statistics.median(prefill)
    found["decode"] = max(1e-9, statistics.median(whole) - found["prefill"]) / (TOKENS - 1)
    if device.type == "cuda":
        found["memory"] = torch.cuda.max_memory_allocated(device) / 2**20
    return found


def count_synchronizations(wide: WideLlava, method: Method | None) -> int:
    """How often a decode step waits for the device, by torch's profiler: of 5 tokens less those of 3, per token."""
    activities = [ProfilerActivity.CPU]
    if wide.model.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)

    def count(tokens: int) -> int:
        with profile(activities=activities) as profiler:
            _generate(wide, method, 0, tokens)
        return sum(event.count for event in profiler.key_averages() if event.key in SYNCHRONIZES)

    return (count(5) - count(3)) // 2
