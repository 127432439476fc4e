"""What batching buys: the runner against the one-at-a-time loop of most evaluation scripts, on the same questions.

Both use the embedded model (or --model), the same processor and the same greedy decoding; the answers must be equal,
letter by letter. The loop keeps nothing between questions, as scripts do; the runner writes its store. Seconds are
processor seconds, which a busy machine still disturbs, so that loop and runner take turns for some rounds. All ratios
are printed, and their median is what counts.

    python -m benchmarks.runner [--items 128] [--batch-size 32] [--rounds 3] [--task tiny-chair --task tiny-pope]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

from airvlm import VLM
from airvlm.evaluation.plan import Asked, ModelFacts, batches
from airvlm.evaluation.runner import work
from airvlm.evaluation.store import Store
from airvlm.methods import parse_method
from airvlm.tasks import load_task

TARGET = 4.0  # times the loop's throughput, on each task
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
    """Throw away what the model has kept of pictures, as a fresh call of a script would not have it."""
    vlm.encoder.forget()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=None)
    parser.add_argument("--items", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--task", action="append", default=None)
    parser.add_argument("--method", default="vanilla")
    chosen = parser.parse_args()
    vlm, method = VLM.load(chosen.model), parse_method(chosen.method)
    below = []
    for name in chosen.task or ["tiny-chair", "tiny-pope"]:
        asked = Asked.of(name, load_task(name), limit=chosen.items)
        warm = Asked.of(name, load_task(name), limit=2)
        one_at_a_time(vlm, warm, method), in_batches(vlm, warm, method, 2)
        ratios = []
        for _ in range(chosen.rounds):
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


if __name__ == "__main__":
    main()
