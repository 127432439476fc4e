"""Memory above vanilla while tokens are decoded, and the size of the evidence that explains it.

Each method runs in a process of its own, at the widths of LLaVA-1.5-7B: resident memory once the evidence is gathered,
minus the resident memory of the same process before. Expected are the tokens of the crops (M x N x d, kept for the next
question) and what the method holds itself: the memory Z~, or the projected tokens. The peak above vanilla is that of
the encoder's activations, which are freed before the first token; it is reported too.

    python -m experiments.speed.memory
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch

from airvlm import AIR, AIRMemory, CropBlend
from airvlm.bench.resident import begin_peak, peak, resident
from airvlm.bench.wide import wide_processor, wide_prompt
from airvlm.inputs.cache import cache_of
from airvlm.methods.evidence.base import CropIntervention, CropMethod
from experiments.speed import llava_widths as llava
from experiments.speed import timing

METHODS: dict[str, CropMethod] = {
    "crop-blend": CropBlend(),
    "crop-blend, 12 crops": CropBlend(num_crops=12),
    "air, 3 kept": AIR(layers=(0, 1), keep=3),
    "air-memory, 3 kept": AIRMemory(layers=(0, 2), keep=3, threshold=0.0),
}


@torch.no_grad()
def measure(name: str) -> dict[str, Any]:
    """Bytes held, and at the peak, above those of the same prefill without the method."""
    model, image = llava.build(2), llava.sample_image()
    inputs = {**wide_prompt(), **llava.encode_image(model, image)}

    def prefill() -> None:
        model(**inputs, use_cache=True, logits_to_keep=1)

    # Once before, without and with a method: libraries keep the buffers that they allocate at first
    prefill()
    warm_up = AIR(layers=(0, 1), keep=1, num_crops=1)
    with (
        warm_up(model, wide_processor(), images=[[llava.sample_image(1)]], check_images=False),
        llava.without_arithmetic(model),
    ):
        prefill()
    cache_of(model).clear()
    begin_peak()
    prefill()
    vanilla, before = peak(), begin_peak()
    if before is None:
        raise OSError("resident memory cannot be read: this benchmark needs Linux")
    with METHODS[name](model, wide_processor(), images=[[image]], check_images=False) as session:
        # What is held does not depend on the products in the layers
        with llava.without_arithmetic(model):
            prefill()
        held = resident() - before
        intervention = session.intervention
        assert isinstance(intervention, CropIntervention)
        ((shown,),) = intervention.matched
        evidence = cache_of(model).bytes  # tokens of the crops, and what was computed from them
        padded = getattr(intervention, "_memory", None)
        if padded is not None and padded[0].data_ptr() != shown.evidence.memory.data_ptr():
            evidence += padded[0].numel() * padded[0].element_size()  # the padded copy of the batch
    return {"held": held, "evidence": evidence, "peak": peak() - vanilla}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    found: dict[str, Any] = {}
    for name in METHODS:
        out = subprocess.run([sys.executable, "-m", "experiments.speed.memory", name], capture_output=True, text=True)
        if out.returncode:
            raise RuntimeError(out.stderr)
        found[name] = json.loads(out.stdout.splitlines()[-1])
    rows = [
        [name, *(f"{v[k] / 2**20:.0f}" for k in ("held", "evidence", "peak")), f"{v['held'] / v['evidence']:.2f}"]
        for name, v in found.items()
    ]
    head = ["method", "held, MiB", "evidence, MiB", "peak in prefill, MiB", "held over evidence"]
    timing.print_table("Memory above vanilla, fp32", head, rows)
    timing.write_result("memory", {"bytes": found})


if __name__ == "__main__":
    main()
