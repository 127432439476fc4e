"""Processes of this machine that share an evaluation, each with a model of its own, all writing the same store.

They do not outlive the process that started them, whatever ends it: a worker that holds a GPU for nobody is worse than
an evaluation that stops. Knows nothing about what the work is.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from airvlm.evaluation.shards import Shard

__all__ = ["die_with_parent", "terminated_as_interrupted", "working_together"]

PR_SET_PDEATHSIG = 1  # Linux: the kernel sends us a signal when our parent dies


@contextmanager
def working_together(count: int, work: Callable[[Shard], object], threads: int | None = None) -> Iterator[Shard]:
    """Start `count - 1` processes that `work` on their parts; ours is the first, which covers for any that dies.

    Torch's threads are divided among them, or `threads` each. They are spawned, so `work` and what it holds must be
    picklable.
    """
    all_threads = torch.get_num_threads()
    threads = threads or max(1, all_threads // count)
    parts = [Shard(i, count, helps=True, device=i) for i in range(count)]
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_help, args=(work, part, threads), daemon=True) for part in parts[1:]]
    try:
        for other in others:
            other.start()
        torch.set_num_threads(threads)
        yield parts[0]
    finally:
        torch.set_num_threads(all_threads)
        for other in others:  # by now everything is answered, or we failed
            if other.pid is not None:
                other.kill()  # the store survives it, and a worker inside a long kernel would not hear less
                other.join()


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end us as Ctrl-C does, so that what is open is closed and who works for us is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def die_with_parent() -> None:
    """End this process when the one that started it ends, even by SIGKILL; for a child of multiprocessing."""
    parent = multiprocessing.parent_process()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is None:
        return
    if not parent.is_alive():  # it died before the kernel knew that we care
        os._exit(1)

    def wait() -> None:
        parent.join()  # returns when the parent is gone, on every system
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _help(work: Callable[[Shard], object], part: Shard, threads: int) -> None:
    die_with_parent()
    # an interrupt at the terminal reaches us too: the first process hears it, says what was kept, and ends us
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    work(part)
