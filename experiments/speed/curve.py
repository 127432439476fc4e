"""What a comparison at equal recall costs: vanilla and one method alone, with the curve read from their own runs, and
with every bias of the curve as a run of its own.

Counts forward passes of the decoder, rows that were answered and tokens of their answers, and processor seconds of the
whole evaluation. The results at equal recall must be the same either way.

    python -m experiments.speed.curve [--items 64] [--batch-size 32] [--task tiny-chair] [--method crop-blend]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from typing import Any
from unittest import mock

from airvlm import VLM, Results, evaluate
from airvlm.evaluation import plan
from airvlm.inputs.cache import cache_of
from experiments.speed import timing

WAYS = {"vanilla and the method alone": False, "with the curve": True, "with every bias run": True}


def run(vlm: VLM, given: argparse.Namespace, name: str) -> tuple[Counter[str], Results]:
    """One evaluation from scratch, and what it cost."""
    cost: Counter[str] = Counter()

    def count_pass(*_: Any) -> None:
        cost["passes"] += 1

    answer_rows = vlm.answer_rows

    def count_rows(*args: Any, **kwargs: Any) -> Any:
        answers = answer_rows(*args, **kwargs)
        cost["rows"] += len(answers)
        cost["tokens"] += sum(answer.tokens for answer in answers)
        return answers

    untraced = mock.patch.object(plan, "plan_traces", lambda tasks, model: [[] for _ in tasks])
    hook = vlm.parts.decoder.register_forward_hook(count_pass)
    cache_of(vlm.model).clear()
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(vlm, "answer_rows", count_rows):
        with untraced if name == "with every bias run" else mock.patch.dict({}):
            wall, started = time.perf_counter(), time.process_time()
            results = evaluate(
                vlm,
                given.task,
                [given.method],
                out=folder,
                limit=given.items,
                batch_size=given.batch_size,
                curve=WAYS[name],
                progress=False,
            )
            cost["seconds"] = round(time.process_time() - started, 1)  # type: ignore[assignment]
            cost["wall"] = round(time.perf_counter() - wall, 1)  # type: ignore[assignment]
    hook.remove()
    return cost, results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--items", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--task", default="tiny-chair")
    parser.add_argument("--method", default="crop-blend")
    given = parser.parse_args()
    vlm = VLM.load(given.model)
    list(vlm.batch([(None, "Hello.")], progress=False))  # warm-up
    found = {name: run(vlm, given, name) for name in WAYS}
    base = found["vanilla and the method alone"][0]
    kinds = ("passes", "rows", "tokens", "seconds", "wall")
    rows = [
        [name, *(f"{cost[kind]} ({cost[kind] / max(base[kind], 1e-9):.2f})" for kind in kinds)]
        for name, (cost, _) in found.items()
    ]
    title = f"{given.task}, {given.method}, {given.items} images: cost (ratio to the two alone)"
    timing.print_table(title, ["evaluation", "forward passes", "rows", "tokens", "CPU seconds", "wall seconds"], rows)
    figures = [
        [results.tasks[given.task].figures(label) for label in results.methods]
        for name, (_, results) in found.items()
        if WAYS[name]
    ]
    print("the figures are the same either way" if figures[0] == figures[1] else "THE FIGURES DIFFER")


if __name__ == "__main__":
    main()
