"""What batching buys, and whether the defaults choose as well as a person would.

Batching: the runner against the one-at-a-time loop of most evaluation scripts, on the same questions. Both use the
embedded model (or --model), the same processor and the same greedy decoding; the answers must be equal, letter by
letter. The loop keeps nothing between questions, as scripts do; the runner writes its store. Seconds are processor
seconds, which a busy machine still disturbs, so that loop and runner take turns for some rounds. All ratios are
printed, and their median is what counts.

Defaults (--defaults): `airvlm evaluate` as it stands against workers and batch sizes set by hand, in seconds by the
clock from start to end, on an otherwise quiet machine and beside a neighbour that keeps every core busy. The default
should need at most a tenth more than the best.

    python -m experiments.speed.runner [--items 128] [--batch-size 32] [--rounds 3] [--task tiny-chair --task tiny-pope]
    python -m experiments.speed.runner --defaults [--items 384] [--rounds 1]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airvlm import VLM
from airvlm.evaluation.plan import Asked, ModelFacts, batches
from airvlm.evaluation.resources import cores
from airvlm.evaluation.runner import work
from airvlm.evaluation.store import Store
from airvlm.methods import parse_method
from airvlm.tasks import load_task

TARGET = 4.0  # times the loop's throughput, on each task
ALLOWED = 1.1  # times the best manual setting's seconds
clock = time.process_time  # of this process over all its threads


def one_at_a_time(vlm: Any, asked: Asked, method: Any) -> tuple[float, dict[str, str]]:
    """Seconds and answers of the loop."""
    texts, started = {}, clock()
    for item in asked.items:
        _forget(vlm)
        cap = asked.generation["max_new_tokens"]
        texts[item.id] = vlm.ask(item.image, asked.task.prompt(item), method=method, max_new_tokens=cap).text
    return clock() - started, texts


def in_batches(vlm: Any, asked: Asked, method: Any, size: int) -> tuple[float, dict[str, str]]:
    """Seconds and answers of the runner."""
    _forget(vlm)
    with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
        started = clock()
        work(vlm, batches(asked, "method", method, ModelFacts.of(vlm), size), store)
        seconds = clock() - started
        return seconds, {record.question.item: record.text or "" for record in store}


def _forget(vlm: Any) -> None:
    """Throw away what the model has kept of images, as a fresh call of a script would not have it."""
    vlm.builder.forget()


def batching(chosen: argparse.Namespace) -> None:
    """The runner against the loop."""
    vlm, method = VLM.load(chosen.model or "tiny"), parse_method(chosen.method)
    below = []
    for name in chosen.task or ["tiny-chair", "tiny-pope"]:
        asked = Asked.of(name, load_task(name), limit=chosen.items or 128)
        warm = Asked.of(name, load_task(name), limit=2)
        one_at_a_time(vlm, warm, method), in_batches(vlm, warm, method, 2)
        ratios = []
        for _ in range(chosen.rounds or 3):
            loop, expected = one_at_a_time(vlm, asked, method)
            batched, texts = in_batches(vlm, asked, method, chosen.batch_size)
            different = sum(texts[key] != expected[key] for key in expected)
            if different:
                raise SystemExit(f"{name}: batching changed {different} answers")
            ratios.append(loop / batched)
        median = statistics.median(ratios)
        print(
            f"{name}, {len(asked.items)} questions, {chosen.method}: the runner gives {median:.1f} times as many "
            f"answers a second (rounds: {', '.join(f'{ratio:.1f}' for ratio in ratios)}); no answer differs"
        )
        if median < TARGET:
            below.append(name)
    if below:
        raise SystemExit(f"below the target of {TARGET:g} times: {', '.join(below)}")


def defaults(chosen: argparse.Namespace) -> None:
    """`airvlm evaluate` as it stands against settings by hand."""
    settings: dict[str, list[str]] = {"default": []} | {
        f"--workers {w} --batch-size {b}": ["--workers", str(w), "--batch-size", str(b)]
        for w in sorted({1, cores()})
        for b in (16, 64)
    }
    worst, rounds, started = 0.0, chosen.rounds or 1, time.perf_counter()
    total, done = 2 * rounds * len(settings), 0
    for busy in (0, cores()):
        with neighbours(busy):
            seconds: dict[str, list[float]] = {name: [] for name in settings}
            for _ in range(rounds):  # in turns, so that what else happens meets all of them
                for name, flags in settings.items():
                    taken = evaluated(chosen, flags)
                    seconds[name].append(taken)
                    done += 1
                    print(f"  {done} of {total}: {taken:.1f} s, {name}, {_where(busy)}", flush=True)
        medians = {name: statistics.median(found) for name, found in seconds.items()}
        best = min((name for name in medians if name != "default"), key=lambda name: medians[name])
        ratio = medians["default"] / medians[best]
        worst = max(worst, ratio)
        print(f"{_where(busy)}: the default takes {ratio:.2f} times the seconds of the best setting by hand")
        for name, value in medians.items():
            print(f"  {value:7.1f} s  {name}{' (best by hand)' if name == best else ''}")
    print(f"all of it took {(time.perf_counter() - started) / 60:.1f} minutes")
    if worst > ALLOWED:
        raise SystemExit(f"the default takes more than {ALLOWED:g} times the best setting's seconds")


def _where(busy: int) -> str:
    return f"beside {busy} busy processes" if busy else "quiet"


def evaluated(chosen: argparse.Namespace, flags: list[str]) -> float:
    """Seconds of a whole command, from start to end."""
    tasks = chosen.task or ["tiny-chair"]
    model = ["--model", chosen.model or "tiny"]
    command = [sys.executable, "-m", "airvlm", "evaluate", *tasks, *model, "--method", "air", "--no-curve"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        limit = ["--limit", str(chosen.items or 384), "--out", folder, "--json"]
        started = time.perf_counter()
        done = subprocess.run([*command, *limit, *flags], capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"airvlm evaluate {' '.join(flags)} ended with {done.returncode}: {done.stderr[-500:]}")
        return time.perf_counter() - started


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Other processes that keep cores busy meanwhile."""
    others = [multiprocessing.Process(target=_busy, args=[os.getpid()], daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def _busy(until_gone: int) -> None:
    """Ends with the benchmark, also where that is killed and cannot end it."""
    while os.getppid() == until_gone:
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
    chosen = parser.parse_args()
    (defaults if chosen.defaults else batching)(chosen)


if __name__ == "__main__":
    main()
