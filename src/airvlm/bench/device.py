"""`airvlm check --device`: the laws, synchronizations, speed and memory of every method on somebody's device.

Run one command on a machine with a GPU, and attach the file to an issue. Nothing is downloaded: the laws are checked
on small random models of every family, and speed is measured on a random LLaVA at the widths of the 7B model.
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import BatchFeature

from airvlm.bench.efficiency import noise_image
from airvlm.bench.resident import begin_peak, peak
from airvlm.bench.wide import IMAGE, WORDS, K, WideLlava, wide_processor
from airvlm.inputs.cache import cache_of
from airvlm.methods.base import Method
from airvlm.runtime.session import MethodInactiveWarning
from airvlm.testing import small_models
from airvlm.testing.acting import build_method, list_checked
from airvlm.testing.laws import OK, Law, run_law
from airvlm.testing.method_laws import FAMILIES, FLOAT32_ONLY, MethodOnFamily, list_laws, register_for_now, turn_off

__all__ = ["DeviceReport", "check_device", "count_synchronizations", "find_layers"]

# What waits for the device, as torch's profiler names it: calls of the driver on a GPU, reads of a number elsewhere
GPU_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
WAITS = ("aten::_local_scalar_dense",)
DEPTH, TOKENS, ROUNDS = 32, 16, 3
LAYER_BYTES = 4 * 4096 * 4096 + 3 * 4096 * 11008  # parameters of one decoder layer at 7B widths
# As long as the wide model's prompt, whose random token ids no tokenizer reads back
PROMPT = "the " * 4 + "<image>" + " the" * (WORDS - 5)
DTYPES = (torch.float32, torch.bfloat16)  # of the small models
MINUTES = 10.0
LAWS_FIRST, SPEED = 0.5, 0.8  # shares of the time after which the laws of the first families, and speed, must end


@dataclass
class DeviceReport:
    """What was found on a device."""

    device: str
    machine: dict[str, str]
    minutes: float = 0.0  # that it took
    laws: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)  # method -> family -> law -> OK or what
    cpu: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)  # the same on the CPU, of broken laws
    refused: dict[str, dict[str, str]] = field(default_factory=dict)  # method -> family -> why it does not run there
    skipped: list[str] = field(default_factory=list)  # what there was no time for
    synchronizations: dict[str, int | None] = field(default_factory=dict)  # method -> more than vanilla per decode step
    layers: int = 0  # of the wide model
    costs: list[dict[str, Any]] = field(default_factory=list)  # one per method, see `_measure`

    @property
    def broken(self) -> list[tuple[str, str, str, str]]:
        """(method, family, law, what is wrong), of laws that hold on the CPU, or if this is the CPU."""
        return [found for found in self._failed() if self._on_cpu(*found[:3]) in (None, OK)]

    @property
    def broken_on_cpu(self) -> list[tuple[str, str, str, str]]:
        """The same of laws that hold on neither: they say nothing about the device."""
        return [found for found in self._failed() if self._on_cpu(*found[:3]) not in (None, OK)]

    def _failed(self) -> list[tuple[str, str, str, str]]:
        return [
            (method, family, law, what)
            for method, families in self.laws.items()
            for family, laws in families.items()
            for law, what in laws.items()
            if what != OK
        ]

    def _on_cpu(self, method: str, family: str, law: str) -> str | None:
        return self.cpu.get(method, {}).get(family, {}).get(law)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def to_markdown(self) -> str:
        """A page to attach to an issue."""
        checked = sum(len(laws) for families in self.laws.values() for laws in families.values())
        pairs = sum(len(families) for families in self.laws.values())
        lines = [f"# airvlm on {self.device}", ""]
        lines += [f"* {name}: {value}" for name, value in self.machine.items()]
        lines += [f"* minutes: {self.minutes:.1f}", ""]
        lines += [f"Laws: {checked} checked ({pairs} pairs of method and family), {len(self.broken)} broken.", ""]
        lines += [f"* {method} on {family}: {law}: {what}" for method, family, law, what in self.broken]
        lines += ["", "Checked in float32 alone:", ""]
        for why in dict.fromkeys(FLOAT32_ONLY.values()):
            lines.append(f"* {'; '.join(law for law in FLOAT32_ONLY if FLOAT32_ONLY[law] == why)} ({why})")
        notes = {
            "Broken here and on the CPU": [f"{m} on {f}: {law}: {what}" for m, f, law, what in self.broken_on_cpu],
            "Refused by the method": [f"{m} on {f}: {why}" for m, on in self.refused.items() for f, why in on.items()],
            "Not reached in the time": self.skipped,
        }
        for title, entries in notes.items():
            lines += ["", f"{title}: {len(entries)}.", "", *(f"* {entry}" for entry in entries)] if entries else []
        if not self.costs:
            return "\n".join(lines) + "\n"
        lines += [
            "",
            f"LLaVA at 7B widths, {self.layers} of {DEPTH} decoder layers, {TOKENS} tokens: ratios to vanilla in the",
            f"same round, median [range] of {ROUNDS}; the peak of memory above the model at rest; synchronizations",
            "per decode step beyond vanilla's"
            + ("." if self.device != "cpu" else ": on a CPU, reads of single numbers."),
            "",
        ]
        head = ("method", "prefill", "decode", "memory (MiB)", "synchronizations")
        lines += ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        for cost in self.costs:
            memory = "" if cost["memory"] is None else f"{cost['memory']:.0f}"
            cells = [cost["method"], _show(cost["prefill"]), _show(cost["decode"]), memory]
            count = self.synchronizations.get(cost["method"])
            cells.append(cost["problem"] or ("" if count is None else str(count)))
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def _show(ratios: Sequence[float] | None) -> str:
    """Median and range."""
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]" if ratios else ""


def check_device(
    device: str,
    *,
    methods: dict[str, Method] | None = None,
    families: Sequence[str] | None = None,
    layers: int | None = None,
    scale: int = 1,
    minutes: float = MINUTES,
    progress: Callable[[str], None] = lambda _: None,
) -> DeviceReport:
    """Check and measure every method on a device.

    The laws are checked on one family per layout of pixels first, then speed is measured, then the laws are checked on
    the other families until the time is over. What is not reached is named in the report.

    Args:
        device: as torch names it.
        methods: by name; by default all, with options that act on the small models for the laws and with their own
            defaults for speed. What a user would have to give (boxes, names, artifacts) is made up.
        families: model types of the laws; by default all.
        layers: decoder layers of the wide model; by default as many as fit.
        scale: divides the wide model's widths, for tests.
        minutes: that it may take.
        progress: called before each step with what it is.
    """
    torch.empty(1, device=device)  # raises at once where there is no such device
    started = time.monotonic()
    names = list_checked() if methods is None else list(methods)
    report = DeviceReport(device, _describe_machine(device))
    known = list(families or small_models.list_families())
    first = [family for family in known if family in FAMILIES] or known
    with tempfile.TemporaryDirectory() as folder:
        laws = _LawChecks(report, methods, Path(folder), progress)
        laws.run(names, first, started + 60 * minutes * LAWS_FIRST)
        _measure_all(report, names, methods, Path(folder), layers, scale, started + 60 * minutes * SPEED, progress)
        laws.run(names, [family for family in known if family not in first], started + 60 * minutes)
    report.minutes = (time.monotonic() - started) / 60
    return report


@dataclass
class _LawChecks:
    """Checks laws into a report."""

    report: DeviceReport
    methods: dict[str, Method] | None
    folder: Path
    progress: Callable[[str], None]

    def run(self, names: Sequence[str], families: Sequence[str], until: float) -> None:
        for name in names:
            for family in families:
                if time.monotonic() > until:
                    self.report.skipped.append(f"laws of {name} on {family}")
                    continue
                self.progress(f"laws of {name} on {family}")
                self._check(name, family)

    def _check(self, name: str, family: str) -> None:
        device = self.report.device
        with small_models.use_device(device):
            model, _ = small_models.shared_model(family)
            method = build_method(name, model, self.folder) if self.methods is None else self.methods[name]
            subjects = [MethodOnFamily(family, method, turn_off(method), dtype) for dtype in DTYPES]
            with register_for_now(method):
                try:
                    subjects[0].acted()
                except ValueError as error:  # how a method refuses a model; any other error is a law's to report
                    self.report.refused.setdefault(name, {})[family] = " ".join(str(error).split())[:160]
                    return
                except Exception:
                    pass
                checks = {_title(law, s): (law, s) for s in subjects for law in list_laws(s)}
                found = {title: run_law(*check) for title, check in checks.items()}
                self.report.laws.setdefault(name, {})[family] = found
        failed = [title for title, what in found.items() if what != OK]
        if failed and torch.device(device).type != "cpu":
            with small_models.use_device("cpu"), register_for_now(method):
                again = {title: run_law(*checks[title]) for title in failed}
            self.report.cpu.setdefault(name, {})[family] = again


def _title(law: Law[MethodOnFamily], subject: MethodOnFamily) -> str:
    """The law, and the dtype if it is not float32."""
    return law.name if subject.dtype == torch.float32 else f"{law.name}, in {str(subject.dtype).removeprefix('torch.')}"


def find_layers(device: str) -> int:
    """Decoder layers of the wide model that fit: all 32 on a card of 24 GB, 4 on the CPU.

    Some methods name a layer by default, which fewer than 4 do not have.
    """
    if torch.device(device).type != "cuda":
        return 4
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    return max(4, min(DEPTH, int((free * 0.6 - 2e9) / (2 * LAYER_BYTES))))


def _describe_machine(device: str) -> dict[str, str]:
    found = {"machine": platform.platform(), "python": platform.python_version()}
    found |= {name: metadata.version(name) for name in ("airvlm", "transformers")}
    found["torch"] = torch.__version__  # with its build, as 2.13.0+cu130
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
        found["memory (GiB)"] = f"{torch.cuda.get_device_properties(torch.device(device)).total_memory / 2**30:.1f}"
    else:
        found["threads"] = str(torch.get_num_threads())
    return found


# -- speed, memory and synchronizations


class _WideProcessor:
    """The wide model's image processor beside the small models' word tokenizer, for methods that write prompts."""

    def __init__(self) -> None:
        self.image_processor = wide_processor()
        self.tokenizer = small_models.build_tokenizer()
        self.image_token, self.image_token_id = "<image>", IMAGE

    def __call__(self, images: Any = None, text: Any = None, **_: Any) -> BatchFeature:
        texts = [text] if isinstance(text, str) else list(text)
        mark = self.tokenizer.convert_tokens_to_ids(self.image_token)
        rows = []
        for one in texts:
            ids = self.tokenizer(one.replace("<image>", " <image> "), add_special_tokens=False)["input_ids"]
            rows.append([1, *(token for i in ids for token in ([IMAGE] * K if i == mark else [i]))])
        longest = max(map(len, rows))
        batch = {
            "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in rows]),
            "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
        }
        flat = [image for own in images or () for image in (own if isinstance(own, list | tuple) else [own])]
        pixels = self.image_processor(flat, return_tensors="pt") if flat else {}
        return BatchFeature({**batch, **pixels})

    def decode(self, ids: Any, **options: Any) -> Any:
        return self.tokenizer.decode(ids, **options)

    def batch_decode(self, ids: Any, **options: Any) -> Any:
        return self.tokenizer.batch_decode(ids, **options)


def _measure_all(
    report: DeviceReport,
    names: Sequence[str],
    methods: dict[str, Method] | None,
    folder: Path,
    layers: int | None,
    scale: int,
    until: float,
    progress: Callable[[str], None],
) -> None:
    """Fill the report's costs and synchronizations."""
    if time.monotonic() > until:
        report.skipped += [f"speed of {name}" for name in ["vanilla", *names]]
        return
    dtype = torch.bfloat16 if torch.device(report.device).type == "cuda" else torch.float32
    report.layers = find_layers(report.device) if layers is None else layers
    wide = WideLlava(report.layers, 24 if report.layers == DEPTH else 2, scale, report.device, dtype)
    processor = _WideProcessor()
    base = count_synchronizations(wide, None)
    for name in ["vanilla", *names]:
        if time.monotonic() > until:
            report.skipped.append(f"speed of {name}")
            continue
        progress(f"speed of {name}")
        found: dict[str, Any] = {"prefill": None, "decode": None, "memory": None, "problem": None}
        try:
            method = None
            if name != "vanilla":
                own = methods and methods[name]
                method = own or build_method(name, wide.model, folder, small=False)
            found |= _measure(wide, method, processor)
            report.synchronizations[name] = count_synchronizations(wide, method, processor) - base
        except Exception as error:  # a method that does not fit is a row that says so
            found["problem"] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        report.costs.append({"method": name, **found})


def _generate(wide: WideLlava, method: Method | None, number: int, tokens: int, processor: Any = None) -> None:
    fixed = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    image = noise_image(number)
    inputs = wide.inputs(image)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", MethodInactiveWarning)
        if method is None:
            wide.model.generate(**inputs, **fixed)
            return
        own = processor or wide.processor
        with method(wide.model, own, images=[[image]], prompts=[PROMPT], check_images=False):
            wide.model.generate(**inputs, **fixed)


def _time(wide: WideLlava, method: Method | None, number: int, tokens: int, processor: Any) -> float:
    """Seconds of one answer about an image that no cache knows."""
    device = wide.model.device
    cache_of(wide.model).clear()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    _generate(wide, method, number, tokens, processor)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _measure(wide: WideLlava, method: Method | None, processor: Any) -> dict[str, Any]:
    """Ratios of prefill and decode to vanilla in each round, and the peak of memory in MiB above the model at rest."""
    ratios: dict[str, list[float]] = {"prefill": [], "decode": []}
    for turn in range(ROUNDS + 1):
        seconds = []
        for one in [None, method]:
            prefill = _time(wide, one, turn, 1, processor)
            whole = _time(wide, one, turn, TOKENS, processor)
            seconds.append((prefill, max(1e-9, whole - prefill)))
            if method is None:
                break
        if turn:
            for part, own, base in zip(ratios, seconds[-1], seconds[0], strict=True):
                ratios[part].append(own / base)
    return {**ratios, "memory": _peak_memory(wide, method, processor)}


def _peak_memory(wide: WideLlava, method: Method | None, processor: Any) -> float | None:
    device = wide.model.device
    cache_of(wide.model).clear()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        _generate(wide, method, 0, TOKENS, processor)
        return (torch.cuda.max_memory_allocated(device) - held) / 2**20
    resting = begin_peak() if device.type == "cpu" else None
    if resting is None:
        return None
    _generate(wide, method, 0, TOKENS, processor)
    return (peak() - resting) / 2**20


def count_synchronizations(wide: WideLlava, method: Method | None, processor: Any = None) -> int:
    """How often a decode step waits for the device, by torch's profiler: of 5 tokens less those of 3, per token."""
    gpu = wide.model.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]

    def count(tokens: int) -> int:
        with profile(activities=activities) as profiler:
            _generate(wide, method, 0, tokens, processor)
        return sum(event.count for event in profiler.key_averages() if event.key in (GPU_WAITS if gpu else WAITS))

    return (count(5) - count(3)) // 2
