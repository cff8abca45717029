"""What changes, for programs that listen: one reader of the database per process, however many streams there are.

Changes come from the audit trail, whose ids appear in order; so a stream that broke goes on behind the last id it has
seen, and the database remembers for it. Progress of operations is a state: a new stream gets the present one first.
"""

import asyncio
import contextlib
import json
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from control.api.operation_schemas import OperationOut
from control.domain.audit import exported
from control.errors import ControlError, TooManyStreamsError
from control.services.audit import load_events_after, load_newest_id
from control.services.operation_store import load_open_rows, load_operation, load_typical_s
from control.services.plane import ControlPlane
from control.stopping import cancel_until_done
from control.store.audit_chain import chained
from control.store.tables import AuditEventRow

log = logging.getLogger(__name__)

POLL_S = 0.5
RETRY_S = 2.0
KEEP_ALIVE_S = 15.0
RING_EVENTS = 1000
BATCH_EVENTS = 200
MAX_STREAMS = 100
MAX_STREAMS_PER_CALLER = 10

HELLO = b"retry: 2000\n\n"
ALIVE = b": alive\n\n"


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event as it is sent; `audit_id` is None for an operation's progress."""

    target: str
    body: bytes
    audit_id: int | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """An operation as it was last told of; the time left changes all the time and is no news."""

    news: str
    event: FeedEvent
    is_over: bool


class EventHub:
    """Reads while anybody listens. Only the event loop's thread touches its memory."""

    def __init__(self, plane: ControlPlane, poll_s: float = POLL_S) -> None:
        """`poll_s` is how often the database is asked, seconds."""
        self._plane = plane
        self._poll_s = poll_s
        self._ring: deque[FeedEvent] = deque(maxlen=RING_EVENTS)
        self._told = 0
        self._newest_id = 0
        self._operations: dict[int, _Seen] = {}
        self._callers: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def streams(self) -> int:
        """How many listen now."""
        return self._callers.total()

    def admit(self, caller: str) -> None:
        """See that there is room for one more stream.

        Raises:
            TooManyStreamsError: there is none, for anybody or for this caller.
        """
        if self.streams >= MAX_STREAMS or self._callers[caller] >= MAX_STREAMS_PER_CALLER:
            raise TooManyStreamsError

    def close(self) -> None:
        """End every stream, so that a server that stops does not wait for its readers."""
        self._is_closed = True
        self._ready.set()
        self._wake()

    async def stream(
        self, caller: str, last_id: int | None, target: str, check: Callable[[], object]
    ) -> AsyncGenerator[bytes, None]:
        """Events from now on, or behind an audit id.

        Args:
            caller: whose stream it is.
            last_id: the last change that the caller has seen; None begins now.
            target: only events whose target begins so.
            check: raises a ControlError once the caller may no longer listen; asked at least every 15 s.
        """
        async with self._listening(caller):
            yield HELLO
            await self._ready.wait()
            position, seen_id = self._told, self._newest_id if last_id is None else last_id
            async for event in self._stored(seen_id, self._newest_id):
                seen_id = event.audit_id or seen_id
                if event.target.startswith(target):
                    yield event.body
            for known in list(self._operations.values()):
                if known.event.target.startswith(target):
                    yield known.event.body
            checked_s = asyncio.get_running_loop().time()
            while not self._is_closed:
                changed = self._changed
                behind = self._told - position
                if behind > len(self._ring):
                    return  # too slow: it comes back and goes on from the database
                for event in list(self._ring)[len(self._ring) - behind :]:
                    if event.target.startswith(target) and (event.audit_id is None or event.audit_id > seen_id):
                        yield event.body
                position += behind
                if asyncio.get_running_loop().time() - checked_s >= KEEP_ALIVE_S:
                    try:
                        await run_in_threadpool(check)
                    except ControlError:
                        return
                    checked_s = asyncio.get_running_loop().time()
                    yield ALIVE
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await changed.wait()

    @contextlib.asynccontextmanager
    async def _listening(self, caller: str) -> AsyncIterator[None]:
        self._callers[caller] += 1
        if self._reader is None:
            self._ready.clear()
            self._reader = asyncio.create_task(self._read(), name="event hub")
        try:
            yield
        finally:
            self._callers[caller] -= 1
            self._callers += Counter()  # forgets callers without streams
            if not self.streams and self._reader is not None:
                reader, self._reader = self._reader, None
                await cancel_until_done(reader)

    async def _read(self) -> None:
        """Read for ever; a database that went away is asked again."""
        is_first = True
        while not self._is_closed:
            try:
                if is_first:
                    self._ring.clear()
                    self._operations.clear()
                    self._newest_id = await run_in_threadpool(self._load_newest_id)
                changes, operations = await run_in_threadpool(self._load_news, dict(self._operations))
            except ControlError as error:
                log.warning("events cannot be read: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            self._take(changes, operations, tell=not is_first)
            is_first = False
            self._ready.set()
            if len(changes) < BATCH_EVENTS:
                await asyncio.sleep(self._poll_s)

    def _take(self, changes: Sequence[FeedEvent], operations: dict[int, _Seen], *, tell: bool) -> None:
        fresh = list(changes)
        for number, seen in operations.items():
            known = self._operations.get(number)
            if tell and (known is None or known.news != seen.news):
                fresh.append(seen.event)
        self._operations = {number: seen for number, seen in operations.items() if not seen.is_over}
        if changes:
            self._newest_id = changes[-1].audit_id or self._newest_id
        if fresh:
            self._ring.extend(fresh)
            self._told += len(fresh)
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _stored(self, after_id: int, to_id: int) -> AsyncIterator[FeedEvent]:
        while after_id < to_id:
            events = await run_in_threadpool(self._load_changes, after_id)
            for event in events:
                yield event
            if len(events) < BATCH_EVENTS:
                return
            after_id = events[-1].audit_id or to_id

    def _load_newest_id(self) -> int:
        with self._plane.database.reading() as session:
            return load_newest_id(session)

    def _load_changes(self, after_id: int) -> list[FeedEvent]:
        with self._plane.database.reading() as session:
            return [change_event(row) for row in load_events_after(session, BATCH_EVENTS, after_id)]

    def _load_news(self, known: dict[int, _Seen]) -> tuple[list[FeedEvent], dict[int, _Seen]]:
        with self._plane.database.reading() as session:
            changes = [change_event(row) for row in load_events_after(session, BATCH_EVENTS, self._newest_id)]
            numbers = {row.id for row in load_open_rows(session) if row.id is not None} | set(known)
            typical_s = load_typical_s(session) if numbers else {}
            now = self._plane.now()
            found = [OperationOut.of(load_operation(session, number), now, typical_s) for number in sorted(numbers)]
        return changes, {one.id: _seen(one) for one in found}


def change_event(row: AuditEventRow) -> FeedEvent:
    """An audit event as a change that somebody made."""
    data = json.dumps(exported(chained(row)), separators=(",", ":"))
    return FeedEvent(row.target, f"event: change\nid: {row.id}\ndata: {data}\n\n".encode(), row.id)


def _seen(operation: OperationOut) -> _Seen:
    data = operation.model_dump_json()
    event = FeedEvent(operation.target, f"event: operation\ndata: {data}\n\n".encode())
    return _Seen(operation.model_dump_json(exclude={"eta_s"}), event, operation.finished_at is not None)
