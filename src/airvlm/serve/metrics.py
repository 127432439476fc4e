"""What a server counts, in Prometheus' form. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Metrics"]


class Metrics:
    """The counters of one server; each server has a registry of its own."""

    def __init__(self, waiting: Callable[[], int], running: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("airvlm_requests", "Requests by status", ["status"], registry=registry)
        self.answers = Counter("airvlm_answers", "Answers by method", ["method"], registry=registry)
        self.fired = Counter("airvlm_fired", "Answers in which the method acted", ["method"], registry=registry)
        self.tokens = Counter("airvlm_tokens", "Tokens read and written", ["kind"], registry=registry)
        self.seconds = Histogram("airvlm_request_seconds", "Seconds of a request", registry=registry)
        self.batches = Histogram(
            "airvlm_batch_rows",
            "Answers given together",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=registry,
        )
        Gauge("airvlm_queue", "Answers that wait", registry=registry).set_function(waiting)
        Gauge("airvlm_running", "Answers that run", registry=registry).set_function(running)

    def text(self) -> bytes:
        return generate_latest(self.registry)
