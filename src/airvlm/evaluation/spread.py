"""Run a job with a model in this process, in several, in a shard, or on a Ray cluster.

A job gets a `Runner`, which answers batches into a store. Processes that share a store all run the same job: each
begins with its own part of the batches and goes on with what the others have not answered yet.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from airvlm.evaluation.plan import Batch, ModelInfo, Plan, plan_phases
from airvlm.evaluation.resources import MAX_ROWS, choose_resources, keep_images
from airvlm.evaluation.run import RunBatches, pending, run_batches
from airvlm.evaluation.store import Store, StoreError
from airvlm.evaluation.workers import Shard, sigterm_as_keyboard_interrupt, start_workers

__all__ = ["Interrupted", "Runner", "run_spread"]

T = TypeVar("T")
REPORT_EVERY = 60.0  # seconds between lines of progress in a file
FIRST_BATCHES = 2  # after which the first line says how long it will take


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM during an evaluation; says how many answers were stored."""


@dataclass(frozen=True)
class Runner:
    """Who answers batches, which part of them, and the folder of the answers."""

    run_batches: RunBatches
    model: ModelInfo
    depth: int  # decoder layers
    folder: Path
    shard: Shard = Shard()  # noqa: RUF009  # frozen
    batch_size: int = MAX_ROWS
    progress: bool = True

    def run(self, plan: Plan, store: Store) -> None:
        """Answer this shard's part of what the store lacks of a plan, runs with a trace first."""
        for chunks in plan_phases(plan, self.model, self.batch_size):
            own = len(range(self.shard.index, len(chunks), self.shard.count))
            # of other shards' chunks the last batches come first: two processes meet at most once in a chunk
            shared = enumerate(self.shard.share(chunks))
            batches = [batch for i, chunk in shared for batch in (chunk if i < own else reversed(chunk))]
            left = pending(batches, store)
            if left:
                with _show_progress(left, store, self.progress) as done:
                    self.run_batches(left, store, done)


@contextmanager
def _show_progress(batches: Sequence[Batch], store: Store, progress: bool) -> Iterator[Callable[[Batch], None]]:
    """A function to call after every batch: moves a bar on a terminal, and prints a line now and then elsewhere."""
    total, held, own = sum(len(batch.items) for batch in batches), len(store), 0
    # even a disabled bar takes a lock, which a forked process that was killed may still hold
    bar = tqdm(total=total, unit="answer") if progress and total and sys.stderr.isatty() else None
    printed = started = time.monotonic()
    batches_done = 0

    def done(batch: Batch) -> None:
        nonlocal own, printed, batches_done
        own += len(batch.items)
        batches_done += 1
        count = min(total, max(own, len(store) - held))  # other processes' answers count as well
        if bar is not None:
            bar.set_description(f"{batch.items[0].key.task} {batch.label}", refresh=False)
            bar.update(count - bar.n)
        elif progress and (batches_done == FIRST_BATCHES or time.monotonic() - printed > REPORT_EVERY):
            printed = time.monotonic()
            rest = (printed - started) * (total - count) / max(1, count)
            left = f", about {_show_time(rest)} left" if count < total else ""
            sys.stderr.write(f"airvlm: {count} of {total} answers{left}\n")

    try:
        yield done
    finally:
        if bar is not None:
            bar.close()


def _show_time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def run_spread(
    job: Callable[[Runner], T],
    model: Any,
    *,
    out: str | Path | None,
    answers: int,
    batch_size: int | None = None,
    workers: int | None = None,
    shard: Shard | str | None = None,
    ray: int = 0,
    ray_address: str | None = None,
    progress: bool = True,
) -> T:
    """Run a job with a model, by as many processes as asked for or as suit the model.

    Args:
        job: gets a Runner and returns the result; it is pickled for other processes.
        model: as in `evaluate`, like the other arguments.
        out: folder of the answers.
        answers: about how many the job asks for.
    """
    place = Shard.of(shard)
    if sum([bool(ray), (workers or 1) > 1, not place.whole]) > 1:
        raise ValueError("use one of workers, ray, shard and accelerate launch to spread the work, not two of them")
    vlm, load = (model, None) if hasattr(model, "batch") else (None, _loader(model))
    if load is None and (ray or (workers or 1) > 1):
        raise ValueError("other processes must load the model themselves: give its name or folder, not a VLM")
    if ray and load is not None:
        from airvlm.evaluation.ray_cluster import Cluster

        with Cluster(functools.partial(load, None), ray, ray_address) as cluster:
            info = cluster.model()
            folder = Path(out) if out is not None else _default_folder(info)
            with _interruptible(folder):
                size = batch_size or MAX_ROWS
                return job(Runner(cluster.run_batches, info, cluster.depth(), folder, place, size, progress))
    if load is not None:
        vlm = load(place.gpu())
    folder = Path(out) if out is not None else _default_folder(ModelInfo.of(vlm))
    left = max(0, answers - _count_stored(folder)) // place.count
    fixed = None if workers == 0 and load is not None and place.whole else workers or 1
    use = choose_resources(vlm, left, workers=fixed, batch_size=batch_size)
    part = functools.partial(_run_part, load, job, folder, use.batch_size)
    with _interruptible(folder), start_workers(use.workers, part, use.threads) as own:
        return _run_here(job, vlm, folder, use.batch_size, own if use.workers > 1 else place, progress)


def _run_here(job: Callable[[Runner], T], vlm: Any, folder: Path, batch_size: int, shard: Shard, progress: bool) -> T:
    runner = Runner(
        functools.partial(run_batches, vlm),
        ModelInfo.of(vlm),
        len(vlm.parts.layers),
        folder,
        shard,
        batch_size,
        progress,
    )
    with keep_images(vlm, shard.count):
        return job(runner)


def _run_part(load: Any, job: Callable[[Runner], T], folder: Path, batch_size: int, shard: Shard) -> None:
    """What a worker process runs: the same job, with a model of its own."""
    _run_here(job, load(shard.gpu()), folder, batch_size, shard, False)


def _loader(model: Any) -> Callable[[str | None], Any]:
    """A function of a device that returns the model."""
    if model is None or isinstance(model, str | os.PathLike):
        return functools.partial(_load, None if model is None else os.fspath(model))
    if callable(model):
        return model
    raise TypeError(f"a model is a VLM, a name, a folder or a function that loads one, not {type(model).__name__}")


def _load(name: str | None, device: str | None) -> Any:
    from airvlm.vlm import VLM

    return VLM.load(name, device=device)


def _default_folder(model: ModelInfo) -> Path:
    name = "".join(c if c.isalnum() or c in "-._" else "-" for c in Path(model.name).name) or "model"
    return Path("airvlm-runs") / f"{name}-{model.fingerprint[:8]}"


def _count_stored(folder: Path) -> int:
    try:
        return len(Store(folder, readonly=True))
    except StoreError:
        return 0


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into Interrupted, which says what was stored."""
    try:
        with sigterm_as_keyboard_interrupt():
            yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted. {_count_stored(folder)} answers are saved in {folder}; rerun the same command to resume."
        ) from None
