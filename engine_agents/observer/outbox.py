"""Rounds on their way to Redis: bounded while it is down, oldest dropped first, every drop counted."""

import asyncio
import logging
from collections import deque

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from control.telemetry.records import BATCH_FIELD, SAMPLES_STREAM, SampleBatch

MAX_BATCHES = 300
STREAM_LENGTH = 20_000
MAX_BACK_OFF_S = 5.0

logger = logging.getLogger(__name__)


class Outbox:
    """Sends batches in order; `put` never waits."""

    def __init__(self, redis: Redis, site: str, max_batches: int = MAX_BATCHES) -> None:
        self._redis = redis
        self._stream = SAMPLES_STREAM.format(site=site)
        self._waiting: deque[SampleBatch] = deque()
        self._max_batches = max_batches
        self._filled = asyncio.Event()
        self._is_reachable = True
        self.taken_batches = 0
        self.dropped_batches = 0

    @property
    def waiting(self) -> int:
        """Batches that have not been delivered."""
        return len(self._waiting)

    def put(self, batch: SampleBatch) -> None:
        """Add a batch; with a full box the oldest one goes."""
        self.taken_batches += 1
        if len(self._waiting) >= self._max_batches:
            self._waiting.popleft()
            self.dropped_batches += 1
        self._waiting.append(batch)
        self._filled.set()

    async def run(self) -> None:
        """Deliver for ever; a batch leaves the box only once Redis has it, so it may arrive twice, never not."""
        back_off_s = 0.0
        while True:
            self._filled.clear()
            if not self._waiting:
                await self._filled.wait()
            try:
                await self._deliver()
                back_off_s = 0.0
            except (RedisError, OSError) as error:
                if self._is_reachable:
                    logger.warning("Redis does not answer, keeping up to %d rounds: %s", self._max_batches, error)
                self._is_reachable = False
                back_off_s = min(max(back_off_s * 2, 0.1), MAX_BACK_OFF_S)
                await asyncio.sleep(back_off_s)

    async def _deliver(self) -> None:
        while self._waiting:
            batch = self._waiting[0]
            fields = {BATCH_FIELD: msgspec.msgpack.encode(batch)}
            await self._redis.xadd(self._stream, fields, maxlen=STREAM_LENGTH, approximate=True)  # type: ignore[arg-type]
            if self._waiting and self._waiting[0] is batch:
                self._waiting.popleft()
            if not self._is_reachable:
                logger.info("Redis answers again; %d rounds were dropped so far", self.dropped_batches)
                self._is_reachable = True
