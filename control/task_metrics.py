"""What a Celery worker says of itself to Prometheus: counted and served by its own process, not by its children."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from celery.signals import task_received, worker_ready

from control.metric_catalogue import Process, metric
from control.metrics_server import Reading, serve_metrics


def count_tasks(process: Process, address: str) -> None:
    """Count orders from now on, and serve the counts once the worker is ready; no address means nothing."""
    received: Counter[str] = Counter()

    def note(request: Any, **_: Any) -> None:
        received[request.name] += 1

    def readings() -> Iterator[Reading]:
        counts = [((name,), float(count)) for name, count in list(received.items())]
        yield metric(process, "pdd_tasks_received"), counts

    def serve(**_: Any) -> None:
        serve_metrics(address, readings)

    if address:
        task_received.connect(note, weak=False)
        worker_ready.connect(serve, weak=False)
