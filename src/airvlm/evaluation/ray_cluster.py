"""Batches answered by the actors of a Ray cluster, one model each; the driver alone writes the store.

The workers' machines therefore need no shared disk for the answers. An actor that dies is restarted by Ray and runs
its batch again; a batch that keeps killing its worker ends as an error of its items. Needs `airvlm[ray]`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from airvlm.evaluation.questions import Batch, ModelFacts
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

    def answer(self, batch: Batch) -> list[Record]:
        return answer(self.vlm, batch)


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
        lasting = {"max_restarts": -1, "max_task_retries": DEATHS - 1}
        actor = ray.remote(num_cpus=1, num_gpus=gpus, **lasting)(_Actor)
        self._actors = [actor.remote(load) for _ in range(workers)]

    def facts(self) -> ModelFacts:
        """Which model the workers hold; waits until the first has loaded it."""
        found: ModelFacts = self._ray.get(self._actors[0].facts.remote())
        return found

    def work(self, batches: Sequence[Batch], store: Store, done: Callable[[Batch], None]) -> None:
        """Answer all batches; each is stored as soon as it comes back."""
        waiting, free = deque(batches), deque(self._actors)
        running: dict[Any, tuple[Any, Batch]] = {}  # reference -> who answers what, one batch each
        while waiting or running:
            while waiting and free:
                actor, batch = free.popleft(), waiting.popleft()
                running[actor.answer.remote(batch)] = (actor, batch)
            [reference], _ = self._ray.wait(list(running), num_returns=1)
            actor, batch = running.pop(reference)
            free.append(actor)
            try:
                records = self._ray.get(reference)
            except self._ray.exceptions.RayActorError:  # Ray has restarted it and tried again, in vain
                reason = f"the worker died {DEATHS} times on this batch"
                records = [Record(job.question, error=reason) for job in batch.jobs]
            store.extend(records)
            done(batch)

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        if self._ours:
            self._ray.shutdown()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
