"""crop-blend inside vLLM against plain vLLM, in one run: requests per second, the encoding of the crops included.

Needs vLLM. Without FOLDER the embedded emoji model is used, with heads that vLLM's CPU build supports. Three engines
are measured: vLLM's own model, airvlm's variant with the method off in every request, and with it on. Two loads: each
image asked about once, and each asked about eight times (vLLM then keeps the changed tokens of an image, so that its
crops are encoded once). On a CPU the seconds are processor seconds, which other programs disturb least; `--wall`
measures wall-clock time, which is the one to use on a GPU.

    python -m experiments.speed.vllm [FOLDER] [--requests 64] [--rounds 3] [--wall]
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.speed import timing

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

QUESTIONS = ("a cat", "a dog", "a person", "a car", "a book", "a chair", "a bird", "a boat")
TOKENS = 24  # of every answer; end tokens are ignored
LOADS = {"each image once": (1, 0), "each image 8 times": (8, 1000)}  # questions per image, first scene


def build_requests(count: int, repeats: int, number: int, setting: Any) -> list[dict[str, Any]]:
    """`count` requests about count / repeats images that no other round shows."""
    from airvlm import tiny
    from airvlm.inputs.images import load_image

    images = count // repeats
    shown = [load_image(scene.path) for scene in tiny.scenes("test")[number * images : (number + 1) * images]]
    requests = []
    for i in range(count):
        prompt = f"USER: <image>\nIs there {QUESTIONS[i % len(QUESTIONS)]} in the image? ASSISTANT:"
        request: dict[str, Any] = {"prompt": prompt, "multi_modal_data": {"image": shown[i // repeats]}}
        if setting is not None:
            request["mm_processor_kwargs"] = {"airvlm": setting}
        requests.append(request)
    return requests


def measure(
    folder: Path, count: int, rounds: int, variant: bool, setting: Any, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Requests per second of each load, per round; one more round is run first and not recorded."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    from airvlm.integrations.vllm import overrides

    architectures = json.loads((folder / "config.json").read_text())["architectures"]
    chosen = {"hf_overrides": overrides(architectures)} if variant else {}
    llm = LLM(str(folder), dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=16, **chosen)
    how = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    found: dict[str, list[float]] = {}
    for name, (repeats, first) in LOADS.items():
        speeds = []
        for number in range(rounds + 1):
            requests = build_requests(count, repeats, first // (count // repeats) + number, setting)
            started = clock()
            llm.generate(requests, how, use_tqdm=False)
            speeds.append(count / (clock() - started))
        found[name] = speeds[1:]
    del llm
    cleanup_dist_env_and_memory()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wall", action="store_true")
    given = parser.parse_args()
    clock = time.perf_counter if given.wall else time.process_time
    engines = {"vLLM": (False, None), "airvlm's variant, off": (True, False), "crop-blend": (True, None)}
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder
        if folder is None:
            from tests.external.vllm_models import padded_tiny

            folder = padded_tiny(Path(scratch) / "model")
        found = {
            name: measure(folder, given.requests, given.rounds, variant, setting, clock)
            for name, (variant, setting) in engines.items()
        }
    rows = []
    for name, loads in found.items():
        for load, speeds in loads.items():
            over = [own / plain for own, plain in zip(speeds, found["vLLM"][load], strict=True)]
            rows.append([name, load, f"{timing.median(speeds):.2f}", timing.show(over, 2)])
    unit = "wall-clock second" if given.wall else "processor second"
    title = f"{given.requests} requests at once, {TOKENS} tokens each, {given.rounds} rounds"
    timing.print_table(title, ["engine", "load", f"requests per {unit}", "ratio to vLLM: median [range]"], rows)


if __name__ == "__main__":
    main()
