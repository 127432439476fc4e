"""Processes of this machine that share an evaluation, each with a model of its own, all writing the same store.

Knows nothing about what the work is.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airvlm.evaluation.shards import Shard

__all__ = ["helpers"]


@contextmanager
def helpers(count: int, work: Callable[[Shard], object]) -> Iterator[Shard]:
    """Start `count - 1` processes that `work` on their parts; ours is the first, which covers for any that dies.

    Cores are divided among them. They are spawned, so `work` and what it holds must be picklable.
    """
    threads = max(1, (os.cpu_count() or 1) // count)
    parts = [Shard(i, count, helps=True, device=str(i)) for i in range(count)]
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_help, args=(work, part, threads), daemon=True) for part in parts[1:]]
    for other in others:
        other.start()
    try:
        _use(threads)
        yield parts[0]
    finally:
        for other in others:  # by now everything is answered, or we failed
            other.terminate()
            other.join()


def _help(work: Callable[[Shard], object], part: Shard, threads: int) -> None:
    _use(threads)
    work(part)


def _use(threads: int) -> None:
    import torch  # here, so that a process is told its threads before anything computes

    torch.set_num_threads(threads)
