"""Processes of this machine that share an evaluation, each with a model of its own, all writing the same store.

Knows nothing about what the work is.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from airvlm.evaluation.shards import Shard

__all__ = ["working_together"]


@contextmanager
def working_together(count: int, work: Callable[[Shard], object]) -> Iterator[Shard]:
    """Start `count - 1` processes that `work` on their parts; ours is the first, which covers for any that dies.

    Torch's threads are divided among them. They are spawned, so `work` and what it holds must be picklable.
    """
    all_threads = torch.get_num_threads()
    threads = max(1, all_threads // count)
    parts = [Shard(i, count, helps=True, device=i) for i in range(count)]
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_help, args=(work, part, threads), daemon=True) for part in parts[1:]]
    for other in others:
        other.start()
    try:
        torch.set_num_threads(threads)
        yield parts[0]
    finally:
        torch.set_num_threads(all_threads)
        for other in others:  # by now everything is answered, or we failed
            other.terminate()
            other.join()


def _help(work: Callable[[Shard], object], part: Shard, threads: int) -> None:
    torch.set_num_threads(threads)
    work(part)
