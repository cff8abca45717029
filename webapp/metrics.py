"""What this process says of itself to Prometheus."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from webapp.feed import LiveFeed


def metrics_router(feed: LiveFeed) -> APIRouter:
    """GET /metrics: browsers on the live feed and ticks read, beside the process's own figures."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    subscribers = Gauge("pdd_live_subscribers", "Browsers that listen to the live feed.", registry=registry)
    subscribers.set_function(lambda: feed.subscribers)
    ticks = Counter("pdd_live_ticks", "Ticks read from the live stream.", registry=registry)
    counted = 0
    router = APIRouter(include_in_schema=False)

    @router.get("/metrics")
    def metrics() -> Response:
        nonlocal counted
        ticks.inc(feed.ticks_total - counted)
        counted = feed.ticks_total
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
