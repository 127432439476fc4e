"""The first second: processor time of imports and of commands, each in a new interpreter.

Every round starts each of them once, so that a slow moment of the machine affects all; one more round is run first, in
which Python writes the bytecode that an installation has. Times are user and system time of the whole process, since
the clock also counts the other programs of a busy machine.

`airvlm ask` is compared with the imports that its model needs: torch, transformers, and the classes that
`from_pretrained` imports for a LLaVA.

    python -m experiments.speed.start [--rounds 7]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from airvlm import tiny
from experiments.speed import timing

LIBRARIES = "import torch, transformers"
MODEL = """import torch, transformers
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers import CLIPVisionModel, LlamaForCausalLM, LlavaForConditionalGeneration, LlavaProcessor
from transformers import PreTrainedTokenizerFast, CLIPImageProcessor"""
IMPORTS = {LIBRARIES: LIBRARIES, "from airvlm import VLM": "from airvlm import VLM", "imports of a LLaVA": MODEL}
COMMANDS = ("--help", "info methods", "info models", "info tasks", "info installation", "data list", "evaluate --help")


def processor_seconds(arguments: list[str]) -> float:
    """User and system time of a Python process with these arguments."""
    # One thread: with more, a busy machine adds the time in which they wait for one another
    skipped = {"PYTHONDONTWRITEBYTECODE"}
    environment = {n: v for n, v in os.environ.items() if n not in skipped} | {"OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert started.stderr is not None
    said = started.stderr.read()
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise SystemExit(f"python {' '.join(arguments)} ended with {started.returncode}: {said[-500:]}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    rounds = timing.parse_arguments(__doc__ or "", rounds=7).rounds
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "scene.webp"
        image.write_bytes(tiny.scenes("test")[0].path.read_bytes())
        ask = ["-m", "airvlm", "ask", str(image), "Is there a dog in the image?", "--model", "tiny"]
        jobs = {name: ["-c", script] for name, script in IMPORTS.items()}
        jobs |= {f"airvlm {line}": ["-m", "airvlm", *line.split()] for line in COMMANDS}
        jobs |= {"airvlm ask, vanilla": [*ask, "--method", "vanilla"], "airvlm ask, crop-blend": ask}
        taken = timing.interleave({n: lambda line=line: processor_seconds(line) for n, line in jobs.items()}, rounds)
    ratios = timing.ratios(taken, LIBRARIES)
    beyond = {
        name: [own - base for own, base in zip(taken[name], taken["imports of a LLaVA"], strict=True)]
        for name in jobs
        if name.startswith("airvlm ask")
    }
    rows = [
        [
            name,
            timing.show(own, 2),
            timing.show(ratios[name], 2),
            timing.show(beyond[name], 2) if name in beyond else "",
        ]
        for name, own in taken.items()
    ]
    head = ["started", "processor seconds", f"ratio to {LIBRARIES}", "seconds beyond the imports of a LLaVA"]
    timing.print_table(f"The first second, median [range] of {rounds} rounds", head, rows)
    timing.write_result("start", {"seconds": taken, "ratios": ratios, "beyond": beyond})


if __name__ == "__main__":
    main()
