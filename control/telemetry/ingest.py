"""The telemetry consumer: reads what gateways and observers send, publishes one tick a second, sums up in SQL.

Run: `python -m control.telemetry.ingest --site ams --site fra`.
"""

import argparse
import asyncio
import gc
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from control.metrics_server import serve_metrics
from control.settings import Settings
from control.stopping import run_until_signalled
from control.store.session import Database, open_database
from control.telemetry.metrics import IngestCounts
from control.telemetry.received import decode_requests, decode_samples
from control.telemetry.records import (
    LIVE_SNAPSHOT_KEY,
    LIVE_STREAM,
    REQUESTS_STREAM,
    SAMPLES_STREAM,
    TICK_FIELD,
    SampleBatch,
)
from control.telemetry.rollup_writer import Batch, Entry, RollupWriter, read_entry, received_of
from control.telemetry.windows import KEPT_S, SLOT_S, LiveWindows

TICK_S = 1.0
LIVE_TICKS = 900
READ_COUNT = 32  # so many batches fit into a core's cache when they are counted together
REPLY_TIMEOUT_S = 5.0
MAX_BACK_OFF_S = 5.0

logger = logging.getLogger("control.telemetry.ingest")

_encoder = msgspec.json.Encoder()


class Consumer:
    """Feeds the windows from the streams of all sites.

    All state is made again from the streams: a new consumer replays the last `KEPT_S` seconds, one that lost Redis
    goes on behind the last entry it read. Batch keys keep out what comes twice.
    """

    def __init__(
        self,
        redis: Redis,
        sites: Iterable[str],
        clock: Callable[[], float] = time.time,
        database: Database | None = None,
    ) -> None:
        """With a database, `rollups` sums up all that is read; `run` it beside the consumer."""
        self.windows = LiveWindows()
        self.counts = IngestCounts(left_out=self.windows.dropped)
        self._redis = redis
        self._clock = clock
        self._decoders: dict[str, Callable[[bytes], tuple[Batch, int]]] = {}
        for site in sites:
            self._decoders[REQUESTS_STREAM.format(site=site)] = decode_requests
            self._decoders[SAMPLES_STREAM.format(site=site)] = _decode_samples
        self.last_ids: dict[str, str] = {}
        self.rollups: RollupWriter | None = None
        if database is not None:
            self.rollups = RollupWriter(database, list(self._decoders), self._decode, clock)

    async def replay(self) -> None:
        """Read all that the windows can still hold.

        Raises:
            RedisError, OSError: Redis does not answer; call again.
        """
        if not self.last_ids:
            oldest_s = self._clock() - KEPT_S + SLOT_S  # the oldest slot falls out before the first tick
            start = f"{int(oldest_s * 1000)}-0"
            self.last_ids.update(dict.fromkeys(self._decoders, start))
        while await self._read(block_s=None):
            pass

    async def skip_published(self) -> None:
        """Keep rows and marks that the last consumer has already sent out of the next tick.

        Raises:
            RedisError, OSError: Redis does not answer; call again.
        """
        entries: Any = await self._redis.xrevrange(LIVE_STREAM, count=1)
        if entries:
            last_tick = msgspec.json.decode(entries[0][1][TICK_FIELD.encode()])
            self.windows.forget_new(sent_before_s=last_tick["now_s"])

    async def run_once(self, until_s: float) -> None:
        """Read until a time, Unix seconds, then publish a tick.

        Raises:
            RedisError, OSError: Redis does not answer; call again.
        """
        while (left_s := until_s - self._clock()) > 0:
            await self._read(block_s=left_s)
        await self.publish()

    async def publish(self) -> None:
        """Append one tick to the live stream and replace the snapshot.

        Raises:
            RedisError, OSError: Redis does not answer; what was new stays new.
        """
        now_s = self._clock()
        tick = self.windows.tick(now_s)
        tick_id: Any = await self._redis.xadd(
            LIVE_STREAM, {TICK_FIELD: _encoder.encode(tick)}, maxlen=LIVE_TICKS, approximate=True
        )
        self.windows.forget_new()
        self.counts.ticks += 1
        snapshot = {"id": tick_id.decode(), **self.windows.snapshot(now_s)}
        await self._redis.set(LIVE_SNAPSHOT_KEY, _encoder.encode(snapshot))

    async def _read(self, block_s: float | None) -> int:
        block_ms = None if block_s is None else max(int(block_s * 1000), 1)
        reply = await self._redis.xread(self.last_ids, count=READ_COUNT, block=block_ms)  # type: ignore[arg-type]
        entries = [read_entry(self._decode, *one) for one in _entries(reply)]
        if entries:
            self._take(entries)
        return len(entries)

    def _take(self, entries: Sequence[Entry]) -> None:
        """All that was read at once is counted at once."""
        self.counts.note(entries)
        received = received_of(entries, self._clock())
        self.windows.take_received(received)
        for entry in entries:
            self.last_ids[entry.stream] = entry.entry_id
            if entry.malformed:
                self.windows.dropped["malformed"] += entry.malformed
            if isinstance(entry.batch, SampleBatch):
                self.windows.take_samples(entry.batch, received.now_s)
        if self.rollups is not None:
            self.rollups.take(entries, received)

    def _decode(self, stream: str, raw: bytes) -> tuple[Batch, int]:
        return self._decoders[stream](raw)


def _decode_samples(raw: bytes) -> tuple[Batch, int]:
    return decode_samples(raw), 0


def _entries(reply: Any) -> Iterable[tuple[str, str, Mapping[bytes, bytes]]]:
    """Stream, id and fields of each entry of an XREAD reply, which is a dict or a list by protocol version."""
    for stream, entries in reply.items() if isinstance(reply, dict) else reply or ():
        # RESP3 replies carry the entries of a stream in a list of their own
        batches = entries if entries and isinstance(entries[0], list) else [entries]
        for batch in batches:
            for entry_id, fields in batch:
                yield stream.decode(), entry_id.decode(), fields or {}


def next_tick_s(now_s: float) -> float:
    """The next whole tick, so that the ticks of successive consumers fall on the same grid."""
    return math.floor(now_s / TICK_S + 1) * TICK_S


async def consume(consumer: Consumer, clock: Callable[[], float] = time.time) -> None:
    """Run for ever; a Redis that does not answer is asked again with growing pauses, and the log says so once."""
    has_replayed, back_off_s = False, 0.0
    lost_at_s: float | None = None
    while True:
        try:
            if not has_replayed:
                await consumer.replay()
                await consumer.skip_published()
                has_replayed = True
                logger.info("replayed the last %d s", KEPT_S)
            await consumer.run_once(next_tick_s(clock()))
        except (RedisError, OSError) as error:
            if lost_at_s is None:
                lost_at_s = clock()
                logger.warning("Redis does not answer, trying again: %s", error)
            back_off_s = min(max(back_off_s * 2, 0.1), MAX_BACK_OFF_S)
            await asyncio.sleep(back_off_s)
        else:
            if lost_at_s is not None:
                logger.info("Redis answers again after %.1f s", clock() - lost_at_s)
            lost_at_s, back_off_s = None, 0.0


def calm_collector() -> None:
    """Look for cycles seldom: reading makes many short-lived tuples and hardly any cycles."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def connect(url: str) -> Redis:
    """A client that reports failures instead of hiding them behind retries of its own."""
    return Redis.from_url(
        url, socket_timeout=REPLY_TIMEOUT_S, socket_connect_timeout=REPLY_TIMEOUT_S, retry=Retry(NoBackoff(), 0)
    )


async def serve(redis_url: str, sites: Iterable[str], database: Database, metrics_address: str) -> None:
    """Consume until SIGTERM or SIGINT. Rollups have a connection of their own, so that they delay no tick."""
    async with connect(redis_url) as redis, connect(redis_url) as second:
        consumer = Consumer(redis, sites, database=database)
        serve_metrics(metrics_address, lambda: consumer.counts.readings(consumer.rollups, time.time()))
        rollups = consumer.rollups.run(second, consumer.last_ids) if consumer.rollups else asyncio.sleep(0)
        await run_until_signalled(asyncio.gather(consume(consumer), rollups))
    logger.info("stopped")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m control.telemetry.ingest", description=__doc__)
    parser.add_argument("--site", action="append", required=True, help="a site to read; give it once for each")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = Settings.from_environment()
    database = open_database(settings.database_url)
    calm_collector()
    try:
        asyncio.run(serve(settings.redis_url, arguments.site, database, settings.metrics_address))
    finally:
        database.engine.dispose()


if __name__ == "__main__":
    main()
