"""Processes that share an evaluation: shards, worker processes of this machine, and how they end.

Every process has a model of its own, and all write to the same store. Worker processes do not outlive the process that
started them, whatever ends it: none holds a GPU for nobody.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

__all__ = ["Shard", "die_with_parent", "sigterm_as_keyboard_interrupt", "start_workers"]

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count`: `--shard i/n`, a process of `accelerate launch`, or a worker process."""

    index: int = 0
    count: int = 1
    helps: bool = False  # goes on with the other shards after its own
    device: int | None = None  # which of the machine's GPUs it should use

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`i/n`, counted from 0; n/n is the same as 0/n, so that counting from 1 works too."""
        match = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", text)
        if not match or int(match[2]) < 1 or int(match[1]) > int(match[2]):
            raise ValueError(f"shard {text}: write i/n with i from 0 to n-1, as in 0/4")
        return cls(int(match[1]) % int(match[2]), int(match[2]))

    @classmethod
    def of(cls, shard: Shard | str | None, environment: Mapping[str, str] = os.environ) -> Shard:
        """The shard that is given, or this process's place under `accelerate launch` or torchrun, or the whole."""
        try:
            rank, world = int(environment.get("RANK", 0)), int(environment.get("WORLD_SIZE", 1))
            device = int(environment.get("LOCAL_RANK", rank))
        except ValueError as error:
            raise ValueError("RANK, WORLD_SIZE or LOCAL_RANK is set, but not to a number") from error
        if shard is None:
            return cls() if world <= 1 else cls(rank, world, helps=True, device=device)
        if world > 1:
            raise ValueError("a shard under a launcher: the launcher says already which part is this process's")
        return cls.parse(shard) if isinstance(shard, str) else shard

    @property
    def whole(self) -> bool:
        return self.count == 1

    @property
    def gathers(self) -> bool:
        """Whether this process shows the result: it is alone, or the first of those that help each other."""
        return self.whole or (self.helps and self.index == 0)

    def share(self, work: Sequence[T]) -> list[T]:
        """This shard's part of the work; if it helps, everything else after it.

        Other shards' work is taken from the end, which their own processes reach last: little is done twice, and what
        a dead process left is done by the rest.
        """
        own = list(work[self.index :: self.count])
        if not self.helps:
            return own
        others = [w for i, w in enumerate(work) if i % self.count != self.index]
        return own + others[::-1]

    def gpu(self) -> str | None:
        """The GPU that this process should use; with more processes than GPUs some share one."""
        import torch

        gpus = torch.cuda.device_count()
        return None if self.device is None or not gpus else f"cuda:{self.device % gpus}"


@contextmanager
def start_workers(count: int, work: Callable[[Shard], object], threads: int | None = None) -> Iterator[Shard]:
    """Start `count - 1` processes that run `work` on their shards, and yield the shard of this one.

    Args:
        count: processes in all.
        work: runs in the others; it is pickled, since they are spawned.
        threads: torch's threads per process; None divides those of this one.
    """
    import torch

    all_threads = torch.get_num_threads()
    threads = threads or max(1, all_threads // count)
    shards = [Shard(i, count, helps=count > 1, device=i if count > 1 else None) for i in range(count)]
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_work, args=(work, shard, threads), daemon=True) for shard in shards[1:]]
    try:
        for other in others:
            other.start()
        torch.set_num_threads(threads)
        yield shards[0]
    finally:
        torch.set_num_threads(all_threads)
        for other in others:  # everything is answered by now, or this process failed
            if other.pid is not None:
                other.kill()  # the store survives it; a process inside a long kernel reacts to nothing less
                other.join()


def _work(work: Callable[[Shard], object], shard: Shard, threads: int) -> None:
    """What a worker process runs."""
    import torch
    from tqdm import tqdm

    die_with_parent()
    # an interrupt at the terminal reaches every process: the first one handles it and ends the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # tqdm's own lock is a semaphore of the system, which would be reported as leaked when this process is killed
    tqdm.set_lock(threading.RLock())
    torch.set_num_threads(threads)
    work(shard)


@contextmanager
def sigterm_as_keyboard_interrupt() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that files are closed and workers are stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def die_with_parent() -> None:
    """End this child of multiprocessing when its parent ends, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()  # returns when the parent is gone, at once if it is gone already
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
