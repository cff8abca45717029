"""What this process says of itself to Prometheus."""

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from control.metric_catalogue import Process, metric
from control.metrics_server import Reading, registry_of
from webapp.feed import LiveFeed


def metrics_router(feed: LiveFeed) -> APIRouter:
    """GET /metrics: browsers on the live feed and ticks read, beside the process's own figures."""

    def readings() -> Iterator[Reading]:
        yield metric(Process.WEB, "pdd_live_subscribers"), [((), float(feed.subscribers))]
        yield metric(Process.WEB, "pdd_live_ticks"), [((), float(feed.ticks_total))]

    registry = registry_of(readings)
    router = APIRouter(include_in_schema=False)

    @router.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
