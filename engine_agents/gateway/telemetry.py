"""Sends request records to Redis in small batches, from beside the data path: it never waits and never raises."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from control.domain.policy import ServiceClass
from control.domain.policy_fields import DEFAULT_CLASS
from control.telemetry.records import BATCH_FIELD, REQUESTS_STREAM, RequestBatch, RequestRecord
from engine_agents.gateway.spool import Spool

log = logging.getLogger(__name__)

SEND_EVERY_S = 0.25
HEARTBEAT_EVERY_S = 1.0
STREAM_MAX_ENTRIES = 20_000
MAX_WAITING_RECORDS = 20_000
RESENT_PER_ROUND = 50
_REDIS_TIMEOUT_S = 1.0


class Stream(Protocol):
    """Where batches go."""

    async def send(self, data: bytes) -> None:
        """Append one batch.

        Raises:
            RedisError, OSError, TimeoutError: it may or may not have arrived; its key tells the reader.
        """

    async def close(self) -> None:
        """Close the connection."""


class RedisStream:
    """The site's stream of request batches."""

    def __init__(self, url: str, site: str) -> None:
        self._redis = Redis.from_url(url, socket_timeout=_REDIS_TIMEOUT_S, socket_connect_timeout=_REDIS_TIMEOUT_S)
        self._name = REQUESTS_STREAM.format(site=site)

    async def send(self, data: bytes) -> None:
        """Append one batch; the stream forgets its oldest ones."""
        await self._redis.xadd(self._name, {BATCH_FIELD: data}, maxlen=STREAM_MAX_ENTRIES, approximate=True)

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.aclose()


class Publisher:
    """Batches of one gateway. What cannot be sent is spooled and sent later, in order, under its own key."""

    def __init__(
        self,
        gateway: str,
        site: str,
        *,
        stream: Stream,
        spool: Spool,
        vitals: Callable[[], tuple[int, int]],
        classes: Callable[[], Mapping[str, ServiceClass]] = dict,
    ) -> None:
        """`vitals` gives the running policy revision and the number of requests in flight.

        `classes` gives what each service class was promised, so that goodput is counted against that.
        """
        self._gateway = gateway
        self._site = site
        self._stream = stream
        self._spool = spool
        self._vitals = vitals
        self._classes = classes
        self._epoch = time.time_ns() // 1_000_000
        self._sequence = 0
        self._records: deque[RequestRecord] = deque()
        self._encoder = msgspec.msgpack.Encoder()
        self._is_reachable = True
        self.dropped_records = 0

    def add(self, record: RequestRecord) -> None:
        """Take a record; the oldest leaves where too many wait."""
        if len(self._records) >= MAX_WAITING_RECORDS:
            self._records.popleft()
            self.dropped_records += 1
        self._records.append(record)

    async def run(self) -> None:
        """Send until cancelled, then send what is left once more."""
        last_sent_s = 0.0
        try:
            while True:
                now_s = time.monotonic()
                if self._records or now_s - last_sent_s >= HEARTBEAT_EVERY_S:
                    await self.send_batch()
                    last_sent_s = now_s
                await asyncio.sleep(SEND_EVERY_S)
        finally:
            if self._records:
                await self.send_batch()
            await self._stream.close()

    async def send_batch(self) -> None:
        """Send what waits, or a heartbeat; then some of what was spooled."""
        records = tuple(self._records)
        self._records.clear()
        revision, in_flight = self._vitals()
        classes = self._classes()
        objectives = classes.get(DEFAULT_CLASS)
        batch = RequestBatch(
            gateway=self._gateway,
            site=self._site,
            epoch=self._epoch,
            sequence=self._sequence,
            sent_at_s=time.time(),
            records=records,
            policy_revision=revision,
            dropped_records=self.dropped_records,
            requests_in_flight=in_flight,
            slo_ttft_p90_s=objectives.ttft_p90_s if objectives else None,
            slo_ttft_p99_s=objectives.ttft_p99_s if objectives else None,
            slo_tpot_p90_s=objectives.tpot_p90_s if objectives else None,
            class_objectives={
                name: (promised.ttft_p90_s, promised.ttft_p99_s, promised.tpot_p90_s)
                for name, promised in classes.items()
            },
        )
        self._sequence += 1
        data = self._encoder.encode(batch)
        if await self._send(data):
            await self._resend()
        elif records:
            await self._keep(batch, data)

    async def _send(self, data: bytes) -> bool:
        try:
            await self._stream.send(data)
        except (RedisError, OSError, TimeoutError) as error:
            if self._is_reachable:
                log.warning("telemetry cannot be sent (%s), it is spooled", type(error).__name__)
            self._is_reachable = False
            return False
        if not self._is_reachable:
            log.info("telemetry is sent again, %d batches are spooled", len(self._spool))
        self._is_reachable = True
        return True

    async def _resend(self) -> None:
        for _ in range(RESENT_PER_ROUND):
            try:
                kept = await asyncio.to_thread(self._spool.first)
                if kept is None or not await self._send(kept[1]):
                    return
                await asyncio.to_thread(self._spool.remove, kept[0])
            except OSError as error:
                log.warning("the telemetry spool cannot be read: %s", error)
                return

    async def _keep(self, batch: RequestBatch, data: bytes) -> None:
        try:
            left = await asyncio.to_thread(self._spool.put, batch.epoch, batch.sequence, data, len(batch.records))
        except OSError as error:
            log.warning("the telemetry spool cannot be written: %s", error)
            self.dropped_records += len(batch.records)
        else:
            self.dropped_records += left
