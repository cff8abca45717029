"""The live feed of one web process: one reader of the Redis stream, each tick serialised once for every browser."""

import asyncio
import contextlib
import json
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import asdict
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from control.stopping import cancel_until_done
from control.telemetry.records import LIVE_SNAPSHOT_KEY, LIVE_STREAM, TICK_FIELD
from webapp.fleet_state import fleet_state

log = logging.getLogger(__name__)

RING_TICKS = 300
QUEUE_TICKS = 32
KEPT_SLOTS = 48
READ_BLOCK_MS = 5_000
KEEP_ALIVE_S = 15.0
RETRY_S = 1.0

RESET = b"event: reset\ndata: {}\n\n"
ALIVE = b": alive\n\n"
HELLO = b"retry: 2000\n\n"


class FeedUnreachableError(Exception):
    """The live feed cannot be read: Redis does not answer."""


class LiveFeed:
    """Fans ticks out to browsers. One task reads while `running`; everything else only looks at its memory."""

    def __init__(self, redis: Redis, clock: Callable[[], float]) -> None:
        """`clock` gives Unix time in seconds; `redis` may answer in bytes or text."""
        self._redis = redis
        self._clock = clock
        self._ring: deque[tuple[tuple[int, int], bytes]] = deque(maxlen=RING_TICKS)
        self._slots: OrderedDict[float, Mapping[str, Any]] = OrderedDict()
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._last_id = "0-0"
        self._is_closed = False
        self._sent_at_s = clock()
        self._newest: dict[str, Any] | None = None
        self.ticks_total = 0

    @property
    def subscribers(self) -> int:
        """Browsers that listen now."""
        return len(self._queues)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Read as long as the context lasts; streams end with it."""
        reader = asyncio.create_task(self._run(), name="live feed")
        try:
            yield
        finally:
            self.close()
            await cancel_until_done(reader)

    async def _run(self) -> None:
        """Read for ever; a Redis that went away is asked again once a second."""
        is_reachable = True
        while not self._is_closed:
            self._keep_alive()
            try:
                if self._last_id == "0-0":
                    await self._load_recent()
                await self._read_new()
                is_reachable = True
            except (RedisError, OSError) as error:
                if is_reachable:
                    log.warning("live feed unreachable: %s", error)
                is_reachable = False
                await asyncio.sleep(RETRY_S)

    def _keep_alive(self) -> None:
        """Say something where there was no tick for long, so that nothing on the way takes a stream for dead."""
        now_s = self._clock()
        if now_s - self._sent_at_s >= KEEP_ALIVE_S:
            self._send(ALIVE, now_s)

    def _send(self, event: bytes, now_s: float) -> None:
        self._sent_at_s = now_s
        for queue in self._queues:
            _offer(queue, event)

    def close(self) -> None:
        """End every stream, so that a server that stops does not wait for browsers."""
        self._is_closed = True
        for queue in self._queues:
            _offer(queue, None)

    async def snapshot(self) -> bytes | None:
        """The whole picture as JSON, with its age in seconds and the state of the fleet; None before the first tick.

        Raises:
            FeedUnreachableError: Redis does not answer.
        """
        try:
            raw = await self._redis.get(LIVE_SNAPSHOT_KEY)
        except (RedisError, OSError) as error:
            raise FeedUnreachableError from error
        if raw is None:
            return None
        picture = json.loads(raw)
        picture["fleet"] = asdict(fleet_state(picture, picture.get("slots", [])[:-1]))
        picture["age_s"] = max(0.0, self._clock() - picture["now_s"])
        return _dumps(picture)

    def pulse(self) -> dict[str, Any]:
        """The state of the fleet by the newest tick, and the seconds since its figures were made; None before one."""
        if self._newest is None:
            return {"fleet": None, "age_s": None}
        return {"fleet": self._newest["fleet"], "age_s": max(0.0, self._clock() - self._newest["now_s"])}

    async def stream(self, last_id: str) -> AsyncGenerator[bytes, None]:
        """Server-sent events after `last_id`; a reader too far behind, or of another life, is told to start again."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=QUEUE_TICKS)
        backlog = self._after(last_id)
        self._queues.add(queue)
        try:
            yield HELLO
            for event in backlog:
                yield event
            while not self._is_closed and (waiting := await queue.get()) is not None:
                yield waiting
        finally:
            self._queues.discard(queue)

    def _after(self, last_id: str) -> list[bytes]:
        known = _parse_id(last_id)
        if known is None or not self._ring or known < self._ring[0][0] or known > self._ring[-1][0]:
            return [RESET]
        return [event for event_id, event in self._ring if event_id > known]

    async def _load_recent(self) -> None:
        raw = await self._redis.get(LIVE_SNAPSHOT_KEY)
        if raw is not None:
            for slot in json.loads(raw).get("slots", [])[-KEPT_SLOTS:]:
                self._slots[slot["at_s"]] = slot
        entries: list[Any] = await self._redis.xrevrange(LIVE_STREAM, count=RING_TICKS) or []
        for event_id, fields in reversed(entries):
            self._take(_text(event_id), fields)

    async def _read_new(self) -> None:
        reply: Any = await self._redis.xread({LIVE_STREAM: self._last_id}, count=100, block=READ_BLOCK_MS)
        streams = reply.values() if isinstance(reply, dict) else [entries for _, entries in reply or ()]
        for entries in streams:
            for event_id, fields in _flat(entries):
                self._send(self._take(_text(event_id), fields), self._clock())

    def _take(self, event_id: str, fields: Mapping[Any, Any]) -> bytes:
        """Remember a tick and give it as an event."""
        tick = json.loads(fields.get(TICK_FIELD.encode()) or fields[TICK_FIELD])
        tick["id"] = event_id
        slot = tick.get("slot")
        if slot:
            self._slots[slot["at_s"]] = slot
            while len(self._slots) > KEPT_SLOTS:
                self._slots.popitem(last=False)
        tick["fleet"] = asdict(fleet_state(tick, list(self._slots.values())[:-1]))
        self._newest = {"fleet": tick["fleet"], "now_s": tick["now_s"]}
        event = b"event: tick\nid: " + event_id.encode() + b"\ndata: " + _dumps(tick) + b"\n\n"
        self._last_id = event_id
        self.ticks_total += 1
        self._ring.append((_parse_id(event_id) or (0, 0), event))
        return event


def _offer(queue: asyncio.Queue[bytes | None], event: bytes | None) -> None:
    """Never wait for a slow browser: what it missed is replaced by one order to start again."""
    try:
        queue.put_nowait(event)
    except asyncio.QueueFull:
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                queue.get_nowait()
        queue.put_nowait(None if event is None else RESET)


def _flat(entries: list[Any]) -> list[Any]:
    """RESP3 nests the entries of a stream once more than RESP2."""
    return entries[0] if entries and isinstance(entries[0], list) else entries


def _parse_id(event_id: str) -> tuple[int, int] | None:
    milliseconds, dash, sequence = event_id.partition("-")
    if not (dash and milliseconds.isdecimal() and sequence.isdecimal()):
        return None
    return int(milliseconds), int(sequence)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
