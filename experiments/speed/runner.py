"""What batching saves, and whether the defaults of `airvlm evaluate` are as fast as settings chosen by hand.

Batching: `vlm.batch` against a loop of `vlm.ask`, as in most evaluation scripts, on the same questions with the
embedded emoji model (or --model) and greedy decoding. Answers must be equal letter by letter. Nothing is cached between
questions of the loop, as in scripts. Loop and batches alternate.

Defaults (--defaults): `airvlm evaluate` without options against workers and batch sizes chosen by hand, in wall-clock
seconds of the whole command, on an otherwise idle machine and beside processes that keep every core busy.

    python -m experiments.speed.runner [--items 128] [--batch-size 32] [--rounds 3] [--task tiny-chair --task tiny-pope]
    python -m experiments.speed.runner --defaults [--items 384] [--rounds 1]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from airvlm import VLM
from airvlm.inputs.cache import cache_of
from airvlm.tasks import load_task
from experiments.speed import timing


def compare_batching(given: argparse.Namespace) -> None:
    """Batches against a loop."""
    vlm = VLM.load(given.model or "tiny")
    for name in given.task or ["tiny-chair", "tiny-pope"]:
        task = load_task(name)
        items = task.items(given.items or 128)
        requests = [(item.image, task.prompt(item)) for item in items]
        texts: dict[str, list[str]] = {}
        how = {"method": given.method, "max_new_tokens": task.max_new_tokens}

        def ask_each(requests=requests, texts=texts, how=how) -> None:  # type: ignore[no-untyped-def]  # closure
            texts["loop"] = []
            for image, question in requests:
                cache_of(vlm.model).clear()
                texts["loop"].append(vlm.ask(image, question, **how).text)

        def ask_batches(requests=requests, texts=texts, how=how) -> None:  # type: ignore[no-untyped-def]  # closure
            cache_of(vlm.model).clear()
            answers = vlm.batch(requests, batch_size=given.batch_size, progress=False, **how)
            texts["batch"] = [answer.text for answer in answers]

        jobs = {
            "batch": lambda job=ask_batches: timing.time_job(job),
            "loop": lambda job=ask_each: timing.time_job(job),
        }
        taken = timing.interleave(jobs, given.rounds or 3)
        different = sum(a != b for a, b in zip(texts["loop"], texts["batch"], strict=True))
        if different:
            raise SystemExit(f"{name}: batching changed {different} answers")
        ratio = timing.show(timing.ratios(taken, "batch")["loop"], 1)
        print(f"{name}, {len(items)} questions, {given.method}: batches are {ratio} times as fast; no answer differs")


def compare_defaults(given: argparse.Namespace) -> None:
    """`airvlm evaluate` without options against settings chosen by hand."""
    cores = len(os.sched_getaffinity(0))
    settings: dict[str, list[str]] = {"default": []} | {
        f"--workers {w} --batch-size {b}": ["--workers", str(w), "--batch-size", str(b)]
        for w in sorted({1, cores})
        for b in (16, 64)
    }
    for busy in (0, cores):
        seconds: dict[str, list[float]] = {name: [] for name in settings}
        with busy_processes(busy):
            for _ in range(given.rounds or 1):
                for name, options in settings.items():
                    seconds[name].append(time_evaluate(given, options))
                    print(f"  {seconds[name][-1]:.1f} s, {name}", flush=True)
        best = min((name for name in seconds if name != "default"), key=lambda name: timing.median(seconds[name]))
        over = {name: [a / b for a, b in zip(own, seconds[best], strict=True)] for name, own in seconds.items()}
        rows = [[name, f"{timing.median(seconds[name]):.1f}", timing.show(own, 2)] for name, own in over.items()]
        title = f"airvlm evaluate beside {busy} busy processes" if busy else "airvlm evaluate on an idle machine"
        timing.print_table(title, ["setting", "seconds", "ratio to the best by hand: median [range]"], rows)


def time_evaluate(given: argparse.Namespace, options: list[str]) -> float:
    """Wall-clock seconds of the whole command."""
    command = [sys.executable, "-m", "airvlm", "evaluate", *(given.task or ["tiny-chair"]), "--model"]
    command += [given.model or "tiny", "--method", "crop-blend", "--no-curve", "--limit", str(given.items or 384)]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        done = subprocess.run(
            [*command, "--output", folder, "--json", *options], capture_output=True, text=True, env=environment
        )
        if done.returncode:
            raise SystemExit(f"airvlm evaluate {' '.join(options)} ended with {done.returncode}: {done.stderr[-500:]}")
        return time.perf_counter() - started


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Other processes that keep cores busy."""
    others = [multiprocessing.Process(target=_keep_busy, args=[os.getpid()], daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def _keep_busy(parent: int) -> None:
    """Compute until the parent process is gone, also if it was killed."""
    while os.getppid() == parent:
        sum(range(10_000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--model", default=None)
    parser.add_argument("--items", type=int, default=None)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--task", action="append", default=None)
    parser.add_argument("--method", default="vanilla")
    given = parser.parse_args()
    (compare_defaults if given.defaults else compare_batching)(given)


if __name__ == "__main__":
    main()
