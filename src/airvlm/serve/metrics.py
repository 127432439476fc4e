"""What a server counts, in Prometheus' form."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from airvlm.methods import Method
from airvlm.serve.jobs import Finished

__all__ = ["Metrics"]


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self, waiting: Callable[[], int], running: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("airvlm_requests", "Requests by status", ["status"], registry=registry)
        self.answers = Counter("airvlm_answers", "Answers by method", ["method"], registry=registry)
        self.fired = Counter("airvlm_fired", "Answers in which the method acted", ["method"], registry=registry)
        self.tokens = Counter("airvlm_tokens", "Prompt tokens and generated tokens", ["kind"], registry=registry)
        self.seconds = Histogram("airvlm_request_seconds", "Seconds per request", registry=registry)
        self.batches = Histogram(
            "airvlm_batch_rows", "Answers per batch", buckets=(1, 2, 4, 8, 16, 32, 64), registry=registry
        )
        Gauge("airvlm_queue", "Answers waiting", registry=registry).set_function(waiting)
        Gauge("airvlm_running", "Answers running", registry=registry).set_function(running)

    def count(self, method: Method | None, finished: Mapping[int, Finished], prompt_tokens: int) -> None:
        """Count the answers of one request."""
        name = "vanilla" if method is None else method.name
        for end in finished.values():
            self.answers.labels(method=name).inc()
            self.tokens.labels(kind="prompt").inc(prompt_tokens)
            self.tokens.labels(kind="answer").inc(end.tokens)
            if end.report is not None and end.report.fired:
                self.fired.labels(method=name).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
