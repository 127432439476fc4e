"""AIR inside vLLM against plain vLLM, in one run: requests answered a second, the encoding of the crops included.

`python -m experiments.speed.vllm [FOLDER] [--requests 64] [--rounds 3] [--wall]`, where vLLM is installed; without one the
embedded model is taken, with heads that vLLM's CPU build knows. Three engines in turn: vLLM's own model, AIR's variant
with AIR off in every request, and with AIR on. Two loads: each image asked about once, and each asked about eight times
(where an image's reinforced tokens are kept, so that its crops are encoded once). On a CPU the seconds are processor
seconds, which a busy machine disturbs least; `--wall` takes the clock on the wall, the one to take on a GPU.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

QUESTIONS = ("a cat", "a dog", "a person", "a car", "a book", "a chair", "a bird", "a boat")
TOKENS = 24  # of every answer, whatever its end token says


def requests(count: int, repeats: int, round_: int, setting: Any) -> list[dict[str, Any]]:
    """`count` requests on count/repeats images that no other round shows."""
    from airvlm.inputs.images import load_image
    from airvlm.tiny import scenes

    images = count // repeats
    shown = [load_image(scene.path) for scene in scenes("test")[round_ * images : (round_ + 1) * images]]
    made = []
    for i in range(count):
        prompt = f"USER: <image>\nIs there {QUESTIONS[i % len(QUESTIONS)]} in the image? ASSISTANT:"
        request: dict[str, Any] = {"prompt": prompt, "multi_modal_data": {"image": shown[i // repeats]}}
        if setting is not None:
            request["mm_processor_kwargs"] = {"airvlm": setting}
        made.append(request)
    return made


def measure(
    folder: Path, count: int, rounds: int, air: bool, setting: Any, clock: Callable[[], float]
) -> dict[str, Any]:
    """Requests a second of each load: the median of the rounds, after one that warms up."""
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    from airvlm.integrations.vllm import overrides

    architectures = json.loads((folder / "config.json").read_text())["architectures"]
    chosen = {"hf_overrides": overrides(architectures)} if air else {}
    llm = LLM(str(folder), dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=16, **chosen)
    how = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    found: dict[str, Any] = {}
    for name, repeats, first in (("each image once", 1, 0), ("each image 8 times", 8, 1000)):
        speeds = []
        for round_ in range(rounds + 1):
            asked = requests(count, repeats, first // (count // repeats) + round_, setting)
            started = clock()
            llm.generate(asked, how, use_tqdm=False)
            speeds.append(count / (clock() - started))
        found[name] = statistics.median(speeds[1:])
    if air:
        found["counts"] = {k: v for k, v in llm.apply_model(lambda model: dict(model.air_counts))[0].items() if v}
    del llm
    cleanup_dist_env_and_memory()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wall", action="store_true")
    given = parser.parse_args()
    clock = time.perf_counter if given.wall else time.process_time
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder
        if folder is None:
            from tests.external.vllm_models import padded_tiny

            folder = padded_tiny(Path(scratch) / "model")
        rows = {
            name: measure(folder, given.requests, given.rounds, air, setting, clock)
            for name, air, setting in (
                ("vLLM", False, None),
                ("AIR's variant, off", True, False),
                ("AIR", True, None),
            )
        }
    plain, unit = rows["vLLM"], "second" if given.wall else "processor second"
    print(f"requests a {unit}, {given.requests} at once, {TOKENS} tokens each, median of {given.rounds} rounds")
    for name, row in rows.items():
        loads = [load for load in row if load != "counts"]
        cells = [f"{load} {row[load]:6.2f} ({row[load] / plain[load]:.2f} of vLLM)" for load in loads]
        print(f"  {name:20} {'   '.join(cells)}   {row.get('counts', '')}")


if __name__ == "__main__":
    main()
