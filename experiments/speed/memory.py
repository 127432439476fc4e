"""Memory above vanilla while tokens are decoded, beside the size of the evidence that explains it.

Each reading runs in a process of its own, at LLaVA-1.5-7B's widths: resident memory once the evidence is gathered,
less the resident memory of the same process before. Expected are the crops' tokens (M x N x d, kept for the next
question) and what the reading holds for itself: the memory Z~, or the carried tokens. The peak above vanilla is the
encoder's activations, which are gone before the first token; it is reported too.

    python -m experiments.speed.memory
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch

from airvlm import AIR
from airvlm.bench.resident import begin_peak, peak, resident
from airvlm.inputs.cache import cache_of
from airvlm.methods.evidence.match import WithEvidence
from experiments.speed import llava_widths as llava

READINGS = {
    "air-paper": lambda: AIR.paper(layers=(0, 1), keep=3),
    "air-lineage": lambda: AIR.lineage(layers=(0, 2), keep=3, threshold=0.0),
    "air-transported": AIR.transported,
}


@torch.no_grad()
def measure(name: str) -> dict[str, Any]:
    """Held and peak bytes above what the same prefill takes without the method."""
    model, image = llava.build(2), llava.sample_image()
    inputs = {**llava.prompt(), **llava.encoded(model, image)}

    def prefill() -> None:
        model(**inputs, use_cache=True, logits_to_keep=1)

    prefill()  # vanilla's own peak, and the buffers that the libraries keep
    warm = AIR.paper(layers=(0, 1), keep=1, patches=1)
    with (
        warm(model, llava.processor(), images=[[llava.sample_image(1)]], check_images=False),
        llava.without_arithmetic(model),
    ):
        prefill()
    cache_of(model).clear()
    begin_peak()
    prefill()
    vanilla, before = peak(), begin_peak()
    if before is None:
        raise OSError("the kernel does not say what this process holds: this benchmark needs Linux")
    with READINGS[name]()(model, llava.processor(), images=[[image]], check_images=False) as run:
        with llava.without_arithmetic(model):  # what is held does not depend on the layers' products
            prefill()
        held = resident() - before
        reading = run.intervention
        assert isinstance(reading, WithEvidence)
        ((matched,),) = reading.matched
        evidence = cache_of(model).bytes  # the crops' tokens, and what was made of them
        memory = getattr(reading, "_memory", None)
        if memory is not None and memory[0].data_ptr() != matched.evidence.memory.data_ptr():
            evidence += memory[0].numel() * memory[0].element_size()  # the batch's padded copy
    return {"held": held, "evidence": evidence, "peak": peak() - vanilla}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    found: dict[str, Any] = {}
    for name in READINGS:
        out = subprocess.run([sys.executable, "-m", "benchmarks.memory", name], capture_output=True, text=True)
        if out.returncode:
            raise RuntimeError(out.stderr)
        found[name] = json.loads(out.stdout.splitlines()[-1])
    rows = [
        [
            name,
            *(f"{v[k] / 2**20:.0f}" for k in ("held", "evidence", "peak")),
            f"{v['held'] / v['evidence']:.2f}",
        ]
        for name, v in found.items()
    ]
    head = ["method", "held, MiB", "evidence, MiB", "peak in prefill, MiB", "held over evidence (0.8 to 1.2)"]
    llava.table("Memory above vanilla, fp32, 12 crops, 3 kept", head, rows)
    llava.write("memory", {"bytes": found})


if __name__ == "__main__":
    main()
