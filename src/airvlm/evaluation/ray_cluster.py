"""Batches answered by the actors of a Ray cluster, one model each; the driver alone writes the store.

The workers' machines therefore need no shared disk for the answers. An actor that dies is restarted by Ray, and its
batch is asked again; a batch that keeps killing its worker ends as an error of its items. An actor is given a batch
only when its model is loaded: one that cannot load it is left out, and blames no batch. Needs `airvlm[ray]`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from airvlm.evaluation.plan import Batch, ModelFacts
from airvlm.evaluation.runner import answer
from airvlm.evaluation.store import Record, Store

__all__ = ["Cluster"]

DEATHS = 3  # of its worker on one batch, before the batch is blamed


class _Actor:
    """One worker: a model, loaded where the actor lives."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.vlm = load()

    def facts(self) -> ModelFacts:
        return ModelFacts.of(self.vlm)

    def depth(self) -> int:
        return len(self.vlm.parts.layers)

    def answer(self, batch: Batch) -> list[Record]:
        return answer(self.vlm, batch)


def _chunk(batch: Batch) -> tuple[str, int]:
    return batch.jobs[0].question.task, batch.chunk


def _taken(
    waiting: deque[tuple[Batch, int]], own: tuple[str, int] | None, others: set[tuple[str, int]]
) -> tuple[Batch, int]:
    """The next batch for a worker: about the images it has just seen, else about images that nobody has at hand."""
    near = next((i for i, (batch, _) in enumerate(waiting) if _chunk(batch) == own), None)
    if near is None:
        near = next((i for i, (batch, _) in enumerate(waiting) if _chunk(batch) not in others), 0)
    found = waiting[near]
    del waiting[near]
    return found


class Cluster:
    """`with Cluster(load, workers=8) as cluster: evaluate(None, ..., worker=cluster.work, model=cluster.facts())`."""

    def __init__(
        self,
        load: Callable[[], Any],  # makes the model; runs in each worker
        workers: int,
        address: str | None = None,  # of a running cluster, or "auto"; None starts one on this machine
        gpus: float | None = None,  # a worker's share; None: one each, where the cluster has any
    ) -> None:
        try:
            ray = import_module("ray")
        except ImportError as error:
            raise ImportError("a Ray cluster needs Ray: pip install 'airvlm[ray]'") from error
        if workers < 1:
            raise ValueError(f"{workers} workers: at least one has to work")
        self._ray = ray
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an evaluation reports to nobody
        self._ours = not ray.is_initialized()
        if self._ours:
            local = {} if address else {"num_cpus": workers, "include_dashboard": False}
            ray.init(address=address, log_to_driver=False, logging_level="warning", **local)
        if gpus is None:
            gpus = 1.0 if ray.cluster_resources().get("GPU", 0) >= workers else 0.0
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1)(_Actor)
        self._actors = [actor.remote(load) for _ in range(workers)]

    def facts(self) -> ModelFacts:
        """Which model the workers hold; waits until one of them has loaded it."""
        found: ModelFacts = self._first("facts")
        return found

    def depth(self) -> int:
        """Decoder layers of the workers' model."""
        found: int = self._first("depth")
        return found

    def _first(self, what: str) -> Any:
        """What the first worker that has its model answers."""
        loading = [self._asked(actor, what) for actor in self._actors]
        while True:
            [reference], loading = self._ray.wait(loading, num_returns=1)
            found = self._result(reference)
            if not isinstance(found, Exception):
                return found
            if not loading:
                raise RuntimeError(f"no worker could load the model: {found}") from found

    def work(self, batches: Sequence[Batch], store: Store, done: Callable[[Batch], None]) -> None:
        """Answer all batches; each is stored as soon as it comes back."""
        waiting = deque((batch, 0) for batch in batches)  # with how many workers died on it
        loading = {self._loaded(actor): actor for actor in self._actors}
        running: dict[Any, tuple[Any, Batch, int]] = {}  # reference -> who answers what, one batch each
        free: deque[Any] = deque()
        latest: dict[Any, tuple[str, int]] = {}  # actor -> the chunk whose images it has at hand
        while waiting or running:
            while waiting and free:
                actor = free.popleft()
                batch, deaths = _taken(waiting, latest.get(actor), set(latest.values()))
                latest[actor] = _chunk(batch)
                running[actor.answer.remote(batch)] = (actor, batch, deaths)
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
                loading[self._loaded(actor)] = actor  # Ray restarts it
                if deaths + 1 < DEATHS:
                    waiting.append((batch, deaths + 1))
                    continue
                reason = f"the worker died {DEATHS} times on this batch"
                result = [Record(job.question, error=reason) for job in batch.jobs]
            store.extend(result)
            done(batch)

    def _loaded(self, actor: Any) -> Any:
        """A reference that is there when the actor has its model; an error in its place says that it never will."""
        return self._asked(actor, "facts")

    def _asked(self, actor: Any, what: str) -> Any:
        return getattr(actor, what).options(max_task_retries=-1).remote()

    def _result(self, reference: Any) -> Any:
        """What a worker returned, or the error that tells of its death."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            return error

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        if self._ours:
            self._ray.shutdown()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
