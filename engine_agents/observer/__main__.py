"""Starts a site's observer: `python -m engine_agents.observer --site ams --config observer.json`."""

import argparse
import asyncio
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from control.metric_catalogue import Process, metric
from control.metrics_server import Reading, serve_metrics
from control.settings import Settings
from control.stopping import run_until_signalled
from control.telemetry.records import SampleBatch
from engine_agents.observer.config import ObserverConfig, WatchedFile, load_config, load_site_of_fleet, watched_path
from engine_agents.observer.outbox import Outbox
from engine_agents.observer.scrape import Scraper

ROUND_S = 1.0
REDIS_TIMEOUT_S = 2.0

logger = logging.getLogger("engine_agents.observer")


async def observe(scraper: Scraper, outbox: Outbox, site: str) -> None:
    """Scrape once a second, for ever, on the grid of whole seconds."""
    epoch, sequence = time.time_ns() // 1_000_000, 0
    while True:
        now_s = time.time()
        await asyncio.sleep(math.floor(now_s / ROUND_S + 1) * ROUND_S - now_s)
        nodes, links = await scraper.scrape()
        sequence += 1
        batch = SampleBatch(
            observer=f"{site}-observer",
            site=site,
            epoch=epoch,
            sequence=sequence,
            sent_at_s=time.time(),
            nodes=nodes,
            links=links,
            dropped_batches=outbox.dropped_batches,
        )
        outbox.put(batch)


def readings(outbox: Outbox, site: str) -> Iterator[Reading]:
    """What the observer says of itself to Prometheus."""
    for name, value in (
        ("pdd_observer_rounds", outbox.taken_batches),
        ("pdd_observer_waiting_batches", outbox.waiting),
        ("pdd_observer_dropped_batches", outbox.dropped_batches),
    ):
        yield metric(Process.OBSERVER, name), [((site,), float(value))]


async def serve(site: str, config: ObserverConfig | WatchedFile, redis_url: str, metrics_address: str = "") -> None:
    """Observe until SIGTERM or SIGINT."""
    redis = Redis.from_url(
        redis_url,
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )
    outbox = Outbox(redis, site)
    serve_metrics(metrics_address, lambda: readings(outbox, site))
    async with redis, aiohttp.ClientSession() as session:
        source = config.refresh if isinstance(config, WatchedFile) else config
        work = asyncio.gather(outbox.run(), observe(Scraper(session, site, source), outbox, site))
        logger.info("observing %s", site)
        await run_until_signalled(work)
    logger.info("stopped")


def _watched(path: Path, data_dir: Path, site: str) -> WatchedFile:
    """The fleet document to begin with, and the file that says what it has become."""
    return WatchedFile(watched_path(data_dir, site), site, load_site_of_fleet(path, site))


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m engine_agents.observer", description=__doc__)
    parser.add_argument("--site", required=True)
    parser.add_argument("--config", type=Path, help="observer.json; without it, fleet.json in the data folder")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = Settings.from_environment()
    path = arguments.config or settings.data_dir / "fleet.json"
    try:
        config = load_config(path) if arguments.config else _watched(path, settings.data_dir, arguments.site)
    except (OSError, ValueError) as error:
        parser.error(f"{path}: {error}")
    asyncio.run(serve(arguments.site, config, settings.redis_url, settings.metrics_address))


if __name__ == "__main__":
    main()
