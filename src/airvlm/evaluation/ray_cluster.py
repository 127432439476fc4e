"""Batches answered by the actors of a Ray cluster, one model each; only the driver writes to the store.

The workers' machines therefore need no shared disk. An actor that dies is restarted by Ray, and its batch is asked
again; a batch that keeps killing its actor ends as an error of its items. An actor gets a batch only once its model is
loaded: one that cannot load it is left out. Needs `airvlm[ray]`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from airvlm.evaluation.plan import Batch, ModelInfo
from airvlm.evaluation.run import generate_batch
from airvlm.evaluation.store import Record, Store

__all__ = ["Cluster"]

DEATHS = 3  # of actors on one batch, before the batch counts as their cause


class _Actor:
    """One worker: a model, loaded where the actor lives."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.vlm = load()

    def model(self) -> ModelInfo:
        return ModelInfo.of(self.vlm)

    def depth(self) -> int:
        return len(self.vlm.parts.layers)

    def generate(self, batch: Batch) -> list[Record]:
        return generate_batch(self.vlm, batch)


def _chunk_of(batch: Batch) -> tuple[str, int]:
    return batch.items[0].key.task, batch.chunk


def _take_next(
    waiting: deque[tuple[Batch, int]], own: tuple[str, int] | None, others: set[tuple[str, int]]
) -> tuple[Batch, int]:
    """The next batch for an actor: about the images it has just seen, else about images that no other has cached."""
    near = next((i for i, (batch, _) in enumerate(waiting) if _chunk_of(batch) == own), None)
    if near is None:
        near = next((i for i, (batch, _) in enumerate(waiting) if _chunk_of(batch) not in others), 0)
    found = waiting[near]
    del waiting[near]
    return found


class Cluster:
    """Actors that answer batches, inside a `with` block.

    Args:
        load: loads the model; runs in each actor.
        workers: number of actors.
        address: of a running cluster, or "auto"; None starts one on this machine.
        gpus: per actor; None is one each if the cluster has as many.
    """

    def __init__(
        self, load: Callable[[], Any], workers: int, address: str | None = None, gpus: float | None = None
    ) -> None:
        try:
            ray = import_module("ray")
        except ImportError as error:
            raise ImportError("a Ray cluster needs Ray: pip install 'airvlm[ray]'") from error
        if workers < 1:
            raise ValueError(f"{workers} workers: give at least one")
        self._ray = ray
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._started_here = not ray.is_initialized()
        if self._started_here:
            local = {} if address else {"num_cpus": workers, "include_dashboard": False}
            ray.init(address=address, log_to_driver=False, logging_level="warning", **local)
        if gpus is None:
            gpus = 1.0 if ray.cluster_resources().get("GPU", 0) >= workers else 0.0
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1)(_Actor)
        self._actors = [actor.remote(load) for _ in range(workers)]

    def model(self) -> ModelInfo:
        """The actors' model; waits until one of them has loaded it."""
        found: ModelInfo = self._ask_first("model")
        return found

    def depth(self) -> int:
        """Decoder layers of the actors' model."""
        found: int = self._ask_first("depth")
        return found

    def _ask_first(self, what: str) -> Any:
        """What the first actor that has its model returns."""
        loading = [self._call(actor, what) for actor in self._actors]
        while True:
            [reference], loading = self._ray.wait(loading, num_returns=1)
            found = self._result(reference)
            if not isinstance(found, Exception):
                return found
            if not loading:
                raise RuntimeError(f"no worker could load the model: {found}") from found

    def run_batches(self, batches: Sequence[Batch], store: Store, done: Callable[[Batch], None]) -> None:
        """Answer all batches; each is stored as soon as it comes back."""
        waiting = deque((batch, 0) for batch in batches)  # with the number of actors that died on it
        loading = {self._call(actor, "model"): actor for actor in self._actors}
        running: dict[Any, tuple[Any, Batch, int]] = {}  # reference -> which actor answers what
        free: deque[Any] = deque()
        latest: dict[Any, tuple[str, int]] = {}  # actor -> the chunk whose images it has cached
        while waiting or running:
            while waiting and free:
                actor = free.popleft()
                batch, deaths = _take_next(waiting, latest.get(actor), set(latest.values()))
                latest[actor] = _chunk_of(batch)
                running[actor.generate.remote(batch)] = (actor, batch, deaths)
            [reference], _ = self._ray.wait([*running, *loading], num_returns=1)
            result = self._result(reference)
            died = isinstance(result, Exception)
            if reference in loading:
                actor = loading.pop(reference)
                if not died:
                    free.append(actor)
                elif not (loading or running or free):
                    raise RuntimeError(f"no worker is left that can load the model: {result}") from result
                continue
            actor, batch, deaths = running.pop(reference)
            if not died:
                free.append(actor)
            else:
                loading[self._call(actor, "model")] = actor  # Ray restarts it
                if deaths + 1 < DEATHS:
                    waiting.append((batch, deaths + 1))
                    continue
                reason = f"the worker died {DEATHS} times on this batch"
                result = [Record(item.key, error=reason) for item in batch.items]
            store.extend(result)
            done(batch)

    def _call(self, actor: Any, what: str) -> Any:
        """A reference to an actor's answer; it is there only once the actor has its model."""
        return getattr(actor, what).options(max_task_retries=-1).remote()

    def _result(self, reference: Any) -> Any:
        """What an actor returned, or the error of its death."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            return error

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started_here:
            self._ray.shutdown()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
